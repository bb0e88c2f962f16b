"""Pillow's JPEG files, left encoded where a dataset's own code converts them in one of our workers.

`Image.open(...)` is Pillow's own: it reads the header alone. `convert("RGB")` and a `load()` whose result nobody takes
then give images that are not decoded until something looks at their pixels; torchvision's transforms have the native
core decode what they need of them.
"""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType, FrameType
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


def _loading(original: Any) -> Any:
    def load(self: Any) -> Any:
        if type(self) is JpegImageFile:
            # Behind this function and the one that chose it.
            caller = sys._getframe(1).f_back
            if caller is not None and _drops(caller) and leave_encoded(self) is None:
                return None
        return original(self)

    return load


#: What is answered of Pillow's images.
METHODS = (("PIL.Image", "Image", "convert", _converting), ("PIL.ImageFile", "ImageFile", "load", _loading))


def _wants_rgb(image: Any, mode: Any) -> bool:
    """Return whether convert() to a mode gives an image of mode RGB, by no other rule than its mode."""
    wanted = image.mode if mode is None else mode
    return type(wanted) is str and wanted == "RGB"


def _drops(caller: FrameType) -> bool:
    """Return whether a function that is no one of Pillow's calls load() and does not use the result."""
    by_pillow = caller.f_globals.get("__name__", "").partition(".")[0] == "PIL"
    return not by_pillow and _is_dropped(caller.f_code, caller.f_lasti)


@functools.cache
def _is_dropped(code: CodeType, call: int) -> bool:
    """Return whether the code that ends at an offset is a call of a method `load()` whose result is not used."""
    instructions = [one for one in dis.get_instructions(code) if one.opname != "PRECALL"]
    following = next(number for number, one in enumerate(instructions) if one.offset > call)
    if following < 2:
        return False
    method, called, after = instructions[following - 2 : following + 1]
    return after.opname == "POP_TOP" and called.opname == "CALL" and called.arg == 0 and method.argval == "load"
