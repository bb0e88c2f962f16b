"""Pillow's JPEG files, left encoded where a dataset's own code converts them in one of our workers.

`Image.open(...)` is Pillow's own: it reads the header alone. `convert("RGB")` and a `load()` whose result nobody takes
then give images that are not decoded until something looks at their pixels; torchvision's transforms have the native
core decode what they need of them.
"""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType
from typing import Any

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from penstock.hooks import tally
from penstock.recipe.compose_hook import this_thread
from penstock.recipe.encoded_image import converted_to_rgb, leave_encoded
from penstock.recipe.originals import replaced_in_class

_CONVERT = "PIL.Image.convert"
_exchanged: set[str] = set()


def exchange() -> None:
    """Exchange two methods of Pillow's images for ones that do what they did, except in a worker at work.

    A method that a program has put in the place of Pillow's stays.
    """
    for kind, name, wrap in ((Image.Image, "convert", _converting), (ImageFile.ImageFile, "load", _loading)):
        original = vars(kind).get(name)
        if name not in _exchanged and original is not None and replaced_in_class(kind, name) is None:
            setattr(kind, name, wrap(original))
            _exchanged.add(name)


def _converting(original: Any) -> Any:
    @functools.wraps(original)
    def convert(self: Any, *arguments: Any, **named: Any) -> Any:
        if this_thread.native and type(self) is JpegImageFile and _wants_rgb(self, arguments, named):
            example = tally.example_of(self.fp)
            why = leave_encoded(self)
            converted = converted_to_rgb(self)
            if converted is not None:
                tally.answered(_CONVERT)
                return converted
            tally.refused(_CONVERT, why or "the image has a transparent colour", example)
        return original(self, *arguments, **named)

    return convert


def _loading(original: Any) -> Any:
    @functools.wraps(original)
    def load(self: Any) -> Any:
        if this_thread.native and type(self) is JpegImageFile:
            caller = sys._getframe(1)
            by_pillow = caller.f_globals.get("__name__", "").partition(".")[0] == "PIL"
            if not by_pillow and _is_dropped(caller.f_code, caller.f_lasti) and leave_encoded(self) is None:
                return None
        return original(self)

    return load


def _wants_rgb(image: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Return whether convert() with these arguments gives an image of mode RGB, by no other rule than its mode."""
    if len(arguments) + len(named) > 1:
        return False
    mode = arguments[0] if arguments else named.get("mode") if named else image.mode
    return type(mode) is str and mode == "RGB"


@functools.cache
def _is_dropped(code: CodeType, call: int) -> bool:
    """Return whether the result of the call that ends at an offset of a function's code is not used."""
    following = (instruction for instruction in dis.get_instructions(code) if instruction.offset > call)
    return next(following).opname == "POP_TOP"
