"""Where the samples' bytes are. Each source is a map-style dataset too."""

from typing import TYPE_CHECKING

from penstock.system.deferred import attributes_of

if TYPE_CHECKING:
    from penstock.sources.arrays import Arrays
    from penstock.sources.audio_folder import AudioFolder
    from penstock.sources.image_folder import ImageFolder, Images
    from penstock.sources.shards import Shards
    from penstock.sources.tensor_folder import TensorFolder

if not TYPE_CHECKING:
    __getattr__ = attributes_of(
        __name__,
        {
            "arrays": ("Arrays",),
            "audio_folder": ("AudioFolder",),
            "image_folder": ("ImageFolder", "Images"),
            "shards": ("Shards",),
            "tensor_folder": ("TensorFolder",),
        },
    )

__all__ = ["Arrays", "AudioFolder", "ImageFolder", "Images", "Shards", "TensorFolder"]
