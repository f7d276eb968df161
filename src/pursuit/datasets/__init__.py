"""Data to try things on: textures that come with scikit-image, and a synthetic spectrogram."""
