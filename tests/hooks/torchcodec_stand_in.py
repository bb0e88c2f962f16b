"""What torchcodec.decoders._image_decoders holds, as far as decoders of images are answered: for tests without it.

Names, signatures, defaults and the calls of operators are torchcodec 0.17's; torchvision's operators decode.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torchvision.io  # noqa: F401


class ImageReadMode(Enum):
    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4


# Operators themselves, in whose place nothing is put: not the names under which our workers find others.
_of_torchvision: Any = torch.ops.image.decode_jpeg.default, torch.ops.image.decode_png.default
_library = torch.library.Library("torchcodec_stand_in", "DEF")
_library.define("decode_jpeg(Tensor data, int mode) -> Tensor")
_library.define("decode_png(Tensor data, int mode, int output_dtype) -> Tensor")
_library.impl("decode_jpeg", lambda data, mode: _of_torchvision[0](data, mode, True), "CPU")
_library.impl("decode_png", lambda data, mode, output_dtype: _of_torchvision[1](data, mode, True), "CPU")
_decode_jpeg: Any = torch.ops.torchcodec_stand_in.decode_jpeg.default
_decode_png: Any = torch.ops.torchcodec_stand_in.decode_png.default


def _mode_of(mode: Any) -> int:
    if isinstance(mode, ImageReadMode):
        return int(mode.value)
    if not isinstance(mode, str):
        raise TypeError(f"mode must be a str (or ImageReadMode), got {type(mode)}.")
    if mode.upper() not in ImageReadMode.__members__:
        raise ValueError(f"Invalid mode {mode!r}.")
    return int(ImageReadMode[mode.upper()].value)


def _source_to_tensor(source: Any) -> torch.Tensor:
    if isinstance(source, torch.Tensor):
        return source
    if isinstance(source, str | Path):
        source = Path(source).read_bytes()
    if isinstance(source, bytes | bytearray):
        return torch.frombuffer(bytearray(source), dtype=torch.uint8)
    raise TypeError(f"Unknown source type: {type(source)}.")


def decode_jpeg(source: Any, *, mode: Any = "RGB", output_dtype: Any = torch.uint8, device: Any = "cpu") -> Any:
    if output_dtype not in (torch.uint8, torch.uint16, "auto"):
        raise ValueError(f"Invalid output_dtype ({output_dtype}).")
    number = _mode_of(mode)
    several = isinstance(source, list | tuple)
    images = []
    for one in source if several else [source]:
        image = _decode_jpeg(_source_to_tensor(one), 3 if number == 4 else 1 if number == 2 else number)
        if number in (2, 4):
            image = torch.cat([image, torch.full_like(image[:1], 255)], dim=-3)
        images.append((image.to(torch.int32) * 257).to(torch.uint16) if output_dtype == torch.uint16 else image)
    return images if several else images[0]


def decode_png(source: Any, *, mode: Any = "RGB", output_dtype: Any = torch.uint8) -> Any:
    return _decode_png(_source_to_tensor(source), _mode_of(mode), 0)


def decode_image(source: Any, *, mode: Any = "RGB", output_dtype: Any = torch.uint8) -> Any:
    data = _source_to_tensor(source)
    decode = decode_png if bytes(data[:4].tolist()) == b"\x89PNG" else decode_jpeg
    return decode(data, mode=mode, output_dtype=output_dtype)
