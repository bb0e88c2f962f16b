"""Where the samples' bytes are. Each source is a map-style dataset too."""

from penstock.sources.arrays import Arrays
from penstock.sources.image_folder import ImageFolder
from penstock.sources.images import Images
from penstock.sources.shards import Shards
from penstock.sources.tensor_folder import TensorFolder

__all__ = ["Arrays", "ImageFolder", "Images", "Shards", "TensorFolder"]
