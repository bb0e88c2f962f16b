"""The image decoders of torchvision.io and torchcodec, answered by the native core with the same tensors.

The libraries' own functions read files, look at their arguments and warn; then they call an operator of torch. In our
workers an operator of ours takes its place, which decodes JPEG files: the same elements, strides and memory of
torch's own. Refused are other formats, files in which libjpeg finds anything unusual, and the grey of colours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

import penstock._native as _native
from penstock.hooks.loads import Refused, modes_are_on
from penstock.recipe.installed import operator_decodes_alike, turn_of
from penstock.recipe.patches import Patches, in_worker, wrap

_Operator: Any = torch._ops.OpOverloadPacket
_UNCHANGED, _GRAY, _RGB = 0, 1, 3  # ImageReadMode of both libraries
#: Operators of torchvision.io, and functions of torchcodec.decoders, that are answered.
OF_TORCHVISION = ("decode_image", "decode_jpeg")
OF_TORCHCODEC = ("decode_jpeg", "decode_png", "decode_webp", "decode_gif", "decode_avif")
#: What an orientation in a file's Exif may have a library do to the image.
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
    """Add the operators of what is imported of torchvision and torchcodec.

    asking: returns what asks an answer first, and then an original; it counts the calls under a name.
    """
    for name in OF_TORCHVISION if "torchvision.io.image" in sys.modules else ():
        operator = getattr(torch.ops.image, name, None)
        if type(operator) is _Operator:
            answer = asking(_answer_of(operator), f"torchvision.io.{name}", operator)
            patches.add_value(torch.ops.image, name, operator, Standing(operator, answer))
    codec = sys.modules.get("torchcodec.decoders._image_decoders")
    for name in OF_TORCHCODEC if codec is not None else ():
        operator, held = getattr(codec, f"_{name}", None), (codec, f"_{name}")
        if isinstance(operator, torch._ops.OpOverload) and held not in patches:
            answer = _answer_of(operator, turns=True) if name == "decode_jpeg" else _not_jpeg
            instead = asking(answer, f"torchcodec.decoders.{name}", operator)
            patches.add_value(*held, operator, wrap(operator, instead, in_worker))


def _not_jpeg(*_: Any) -> Refused:
    return Refused("not a JPEG")


def _answer_of(operator: Any, *, turns: bool = False) -> Callable[..., Any]:
    """Return what answers for an operator.

    turns: it always does to an image what its Exif says, and has no argument for that.
    """
    turning = () if turns else (True,)

    def decode(data: Any, mode: int = _UNCHANGED, apply_exif_orientation: bool = turns) -> Any:
        if type(data) is not torch.Tensor or data.dtype != torch.uint8 or data.ndim != 1 or not data.is_contiguous():
            return Refused("its bytes are not a contiguous uint8 tensor")
        if not data.is_cpu or modes_are_on():
            return Refused("one of torch's modes is on, or its bytes are not in memory")
        if mode not in (_UNCHANGED, _GRAY, _RGB):
            return Refused("no mode of JPEG files")
        if not operator_decodes_alike(operator):
            return Refused("the installed library decodes JPEG in another way")
        turn = _turn_of(operator, data.numpy().tobytes(), *turning) if apply_exif_orientation else _TURNS[0]
        if turn is None:
            return Refused("its Exif orientation is unclear")
        image = _native.decode_tensor(data, _room, mode == _GRAY, mode == _RGB)
        return Refused(image) if isinstance(image, str) else turn(image.permute(2, 0, 1))

    return decode


def _room(height: int, width: int, channels: int) -> torch.Tensor:
    return torch.empty((height, width, channels), dtype=torch.uint8, device="cpu")


def _turn_of(operator: Any, data: bytes, *turning: bool) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return what a library does to an image for what its file has in APP1 segments; None: it is unclear.

    turning: arguments that have the operator turn images.
    """
    found = _segments(data)
    if not found:
        return _TURNS[0] if found is not None else None
    return turn_of(found, lambda file: operator(_tensor_of(file), _UNCHANGED, *turning), _TURNS)


def _segments(data: bytes) -> bytes | None:
    """Return the APP1 segments before a JPEG file's first scan; None: there are others, or bytes between segments."""
    found, at, components = b"", 2, b""
    while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] not in (b"\xda", b"\xff", b""):
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found += data[at:end] if data[at + 1] == 0xE1 else b""
        components = data[at + 9 : at + 10] if data[at + 1] in (0xC0, 0xC1) else components
        at = end
    one_scan = data[at + 4 : at + 5] == components  # of several torchcodec reads all before it looks for Exif
    return found if data[at : at + 2] == b"\xff\xda" and (one_scan or data.find(b"\xff\xe1", at) < 0) else None


def _tensor_of(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
