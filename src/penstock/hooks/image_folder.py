"""ImageFolder's __getitem__, answered natively where a dataset's own code calls it in one of our workers.

A subclass that adds the index or the path to its samples calls ``super().__getitem__(index)``. Where the whole
transform is known and ends in a tensor, nobody sees the PIL image, and Pillow need not open the file: the tensor is the
same, after the same draws. All else is left to torchvision's method, which also raises all errors.
"""

from __future__ import annotations

import sys
from typing import Any

from PIL import ImageFile

from penstock import call_counts
from penstock.recipe.compose_hook import run_whole
from penstock.recipe.composed_run import REFUSED
from penstock.recipe.encoded_image import unopened
from penstock.recipe.jpeg_pixels import decoded_alike
from penstock.recipe.originals import is_original, replaced_in_opening

_FUNCTION = "torchvision ImageFolder"
_MODULE = "torchvision.datasets.folder"
#: How the segments begin of which Pillow may say something when it opens a file (Exif 2.32, CIPA DC-007): it opens such
#: files itself.
_SPOKEN_OF = (b"Exif", b"MPF\0")
_START_OF_SCAN = 0xDA


def _asking(original: Any) -> Any:
    def getitem(self: Any, index: Any) -> Any:
        path, target = self.samples[index]
        image = _image(self, path)
        if image is not REFUSED:
            call_counts.answered(_FUNCTION)
            change = self.target_transform
            return image, target if change is None else change(target)
        return original(self, index)

    return getitem


#: What is answered of torchvision's folders.
METHODS = ((_MODULE, "DatasetFolder", "__getitem__", _asking),)


def _image(dataset: Any, path: Any) -> Any:
    """Return what a dataset's transform makes of a file; REFUSED: torchvision's method must read it."""
    try:
        if not _opens_as_torchvision(dataset.loader):
            return REFUSED
        with open(path, "rb") as file:
            data = file.read()
        image = unopened(data)
        if image is None or not _is_silent(data):
            return REFUSED
    except Exception:  # torchvision's method raises it, if it is an error
        return REFUSED
    return run_whole(dataset.transform, image)


def _is_silent(data: bytes) -> bool:
    """Return whether a certified JPEG file has no segment of which Pillow may warn. Raises IndexError."""
    position = 2
    while (marker := data[position + 1]) != _START_OF_SCAN:
        if data[position] != 0xFF or data[position + 4 : position + 8] in _SPOKEN_OF:
            return False
        # The length counts its own two bytes (ITU-T T.81, B.1.1.4); a marker may be preceded by bytes of 0xFF.
        position += 1 if marker == 0xFF else 2 + int.from_bytes(data[position + 2 : position + 4])
    return True


def _opens_as_torchvision(loader: Any) -> bool:
    """Return whether a folder's loader is torchvision's own, and Pillow behind it."""
    return (
        is_original(loader, _MODULE, "default_loader")
        and sys.modules["torchvision"].get_image_backend() == "PIL"
        and not ImageFile.LOAD_TRUNCATED_IMAGES
        and decoded_alike()
        and replaced_in_opening() is None
    )
