"""Pillow's JPEG files, left encoded where a dataset's own code converts them in one of our workers.

`Image.open(...)` is Pillow's own: it reads the header alone. `convert("RGB")` then gives an image that is not decoded
until something looks at its pixels; torchvision's transforms have the native core decode what they need of it.
"""

from __future__ import annotations

from typing import Any

from PIL.JpegImagePlugin import JpegImageFile

from penstock import call_counts
from penstock.hooks.answers import example_of
from penstock.recipe.encoded_image import converted_to_rgb, leave_encoded

_CONVERT = "PIL.Image.convert"


def _converting(original: Any) -> Any:
    def convert(self: Any, mode: Any = None, *others: Any, **named: Any) -> Any:
        plain = not others and not named  # nothing but the mode is asked for
        if type(self) is JpegImageFile and plain and _wants_rgb(self, mode):
            why = leave_encoded(self)
            converted = converted_to_rgb(self)
            if converted is not None:
                call_counts.answered(_CONVERT)
                return converted
            example = example_of(self.filename or self.fp)
            call_counts.refused(_CONVERT, why or "the image has a transparent colour", example)
        return original(self, mode, *others, **named)

    return convert


#: What is answered of Pillow's images.
METHODS = (("PIL.Image", "Image", "convert", _converting),)


def _wants_rgb(image: Any, mode: Any) -> bool:
    """Return whether convert() to a mode gives an image of mode RGB, by no other rule than its mode."""
    wanted = image.mode if mode is None else mode
    return type(wanted) is str and wanted == "RGB"
