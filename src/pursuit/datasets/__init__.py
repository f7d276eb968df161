"""Data to try things on: textures, faces, singing, and a synthetic spectrogram.

Some come with other packages; others are read from a folder, or downloaded into one.
"""
