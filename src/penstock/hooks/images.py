"""torchvision.io's decode_image, decode_jpeg and read_image, answered by the native core with the same tensors.

torchvision's own functions read files, look at their arguments and warn; then they call an operator of torch. In our
workers an operator of ours stands in its place, which decodes JPEG files: the same elements, strides and memory of
torch's own. Refused are other formats, files in which libjpeg finds anything unusual, and the grey of colours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

import penstock._native as _native
from penstock.hooks.loads import Refused, modes_are_on
from penstock.recipe.installed import encoded_in_grey, operator_decodes_alike
from penstock.recipe.patches import Patches, in_worker

_Operator: Any = torch._ops.OpOverloadPacket
_UNCHANGED, _GRAY, _RGB = 0, 1, 3  # torchvision.io.ImageReadMode
#: What an orientation in a file's Exif may have torchvision do to the image.
_TURNS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda image: image,
    lambda image: image.flip(-1),
    lambda image: image.flip((-2, -1)),
    lambda image: image.flip(-2),
    lambda image: image.transpose(-1, -2),
    lambda image: image.transpose(-1, -2).flip(-1),
    lambda image: image.transpose(-1, -2).flip((-2, -1)),
    lambda image: image.transpose(-1, -2).flip(-2),
)


class Standing(_Operator):  # type: ignore[misc]
    """Another operator in all but its calls in our workers, which `answer` gets."""

    def __init__(self, original: Any, answer: Callable[..., Any]) -> None:
        self.__dict__.update(vars(original), original=original, answer=answer)

    def __getattr__(self, key: str) -> Any:
        return getattr(self.original, key)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return (self.answer if in_worker() else self.original)(*arguments, **named)


def find(patches: Patches, asking: Callable[[Callable[..., Any], str, Any], Callable[..., Any]]) -> None:
    """Add the operators of what is imported of torchvision.

    asking: returns what asks an answer first, and then an original; it counts the calls under a name.
    """
    if "torchvision.io.image" not in sys.modules:
        return
    for name in ("decode_image", "decode_jpeg"):
        operator = getattr(torch.ops.image, name, None)
        if type(operator) is _Operator:
            answer = asking(_answer_of(operator), f"torchvision.io.{name}", operator)
            patches.add_value(torch.ops.image, name, operator, Standing(operator, answer))


def _answer_of(operator: Any) -> Callable[..., Any]:
    def decode(data: Any, mode: int = _UNCHANGED, apply_exif_orientation: bool = False) -> Any:
        if type(data) is not torch.Tensor or data.dtype != torch.uint8 or data.ndim != 1 or not data.is_contiguous():
            return Refused("its bytes are not a contiguous uint8 tensor")
        if not data.is_cpu or modes_are_on():
            return Refused("one of torch's modes is on, or its bytes are not in memory")
        if mode not in (_UNCHANGED, _GRAY, _RGB):
            return Refused("no mode of JPEG files")
        if not operator_decodes_alike(operator):
            return Refused("this torchvision decodes JPEG in another way")
        turn = _turn_of(operator, data.numpy().tobytes()) if apply_exif_orientation else _TURNS[0]
        if turn is None:
            return Refused("its Exif orientation is unclear")
        image = _native.decode_tensor(data, _room, mode == _GRAY, mode == _RGB)
        return Refused(image) if isinstance(image, str) else turn(image.permute(2, 0, 1))

    return decode


def _room(height: int, width: int, channels: int) -> torch.Tensor:
    return torch.empty((height, width, channels), dtype=torch.uint8, device="cpu")


def _turn_of(operator: Any, data: bytes) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return what torchvision does to an image for what its file has in APP1 segments; None: it is unclear.

    It is shown a small image with these segments.
    """
    found = _segments(data)
    if not found:
        return _TURNS[0] if found is not None else None
    small = encoded_in_grey(((0, 100, 200), (50, 150, 250)))
    upright = operator(_tensor_of(small), _UNCHANGED, False)
    turned = operator(_tensor_of(small[:2] + found + small[2:]), _UNCHANGED, True)
    return next((turn for turn in _TURNS if torch.equal(turn(upright), turned)), None)


def _segments(data: bytes) -> bytes | None:
    """Return the APP1 segments before a JPEG file's first scan; None: bytes lie between segments."""
    found, at = b"", 2
    while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] not in (b"\xda", b"\xff", b""):
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found += data[at:end] if data[at + 1] == 0xE1 else b""
        at = end
    return found if data[at : at + 2] == b"\xff\xda" else None


def _tensor_of(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
