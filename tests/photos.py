"""The names of tests/data.py, as tests of executors still import them."""

from tests.data import FORMS, grey_files, in_memory, noise_image, photo_files, smooth_photos

__all__ = ["FORMS", "grey_files", "in_memory", "noise_image", "photo_files", "smooth_photos"]
