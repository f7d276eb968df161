"""Data to try things on: textures, faces, singing, and a synthetic spectrogram.

They are embedded in other packages, read from a folder, or downloaded.
"""
