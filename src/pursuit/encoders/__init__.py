"""Encoders: the steps of the plain iterations, cut off after T layers and made learnable."""
