"""Decoders of JPEG files on a device, and the headers of files, which say whether a decoder can be trusted with them.

Their libraries are optional, and imported when a decoder is asked for.
"""

from __future__ import annotations

import importlib
import io
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from penstock.errors import InvalidOption
from penstock.system.limits import usable_cpus

#: torchvision's and torchcodec's number for the colour mode RGB.
_RGB = 3


class Decoder(Protocol):
    """Decodes JPEG files to a device. Any thread may call it."""

    name: str

    def decode(self, encoded: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Return the pixels of files: uint8 (3, height, width) on the device, RGB; None for what cannot be decoded.

        The files have been read when it returns. The rest may be under way still: the current stream waits for it.

        Args:
            encoded: the bytes of each file, uint8 in pageable host memory.
        """


class NvImageCodec:
    """NVIDIA nvImageCodec: on the GPU's JPEG engine where it has one, else on its cores."""

    name = "NVIDIA nvImageCodec"

    def __init__(self, device: torch.device) -> None:
        codec: Any = importlib.import_module("nvidia.nvimgcodec")
        kinds = codec.BackendKind
        self._stream_of = codec.CodeStream
        self._device = device
        self._decoder = codec.Decoder(
            device_id=device.index or 0,
            max_num_cpu_threads=max(1, usable_cpus() - 1),
            backends=[codec.Backend(kind) for kind in (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)],
            options=":fancy_upsampling=1",  # as libjpeg has it; off by default in some versions
        )
        self._params = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)
        self._lock = threading.Lock()  # a decoder of it belongs to one thread at a time

    def decode(self, encoded: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        stream = torch.cuda.current_stream(self._device).cuda_stream
        with self._lock:
            given = [self._stream_of(data.numpy()) for data in encoded]
            # Version 0.9 was reported to wait for ever with one file and several threads.
            images = self._decoder.decode(
                given * 2 if len(given) == 1 else given, params=self._params, cuda_stream=stream
            )
            return [
                None if image is None else planes(torch.utils.dlpack.from_dlpack(image))
                for image in images[: len(given)]
            ]


class _AllOrNothing:
    """Decoders that raise where they cannot decode one file of several."""

    name: str

    def __init__(self, decode: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> None:
        self._decode = decode

    def decode(self, encoded: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        try:
            return list(self._decode(list(encoded)))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return [None] if len(encoded) == 1 else [self.decode([one])[0] for one in encoded]


class TorchCodec(_AllOrNothing):
    """torchcodec (0.16 and newer), by nvJPEG."""

    name = "torchcodec"

    def __init__(self, device: torch.device) -> None:
        decode_jpeg: Any = importlib.import_module("torchcodec.decoders").decode_jpeg
        super().__init__(lambda encoded: decode_jpeg(encoded, mode="RGB", device=device))


class TorchVision(_AllOrNothing):
    """torchvision with CUDA, by nvJPEG."""

    name = "torchvision's nvJPEG"

    def __init__(self, device: torch.device) -> None:
        importlib.import_module("torchvision.io")  # registers the operator; decode_jpeg itself warns since 0.29
        super().__init__(self._decode_all)
        self._operator: Any = torch.ops.image.decode_jpegs_cuda
        self._device = device

    def _decode_all(self, encoded: list[torch.Tensor]) -> list[torch.Tensor]:
        # Its stream writes into memory of the current one without waiting for what that one still does with it.
        torch.cuda.current_stream(self._device).synchronize()
        return list(self._operator(encoded, _RGB, self._device))


def decoder_for(device: torch.device) -> Decoder:
    """Return the first decoder that is installed and decodes a small file on this device as Pillow does.

    Raises InvalidOption where there is none, with what was tried and what to install.
    """
    tried = []
    for kind in (NvImageCodec, TorchCodec, TorchVision) if device.type == "cuda" else ():
        try:
            decoder: Decoder = kind(device)
            why = _fault(decoder)
        except Exception as error:  # whatever a library of another version, or for another CUDA, raises
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if why is None:
            return decoder
        tried.append(f"{kind.name} ({why})")
    found = f"; tried {', '.join(tried)}" if tried else f"; there is none for {device.type}"
    raise InvalidOption(
        f"decode='gpu': nothing decodes JPEG images on {device}{found}. nvImageCodec does (pip install "
        '"penstock-loader[gpu]"), and torchcodec 0.16 or newer, for the CUDA version of the installed torch'
    )


def _fault(decoder: Decoder) -> str | None:
    """Return what is wrong with what a decoder makes of a small file, or None."""
    ramp: NDArray[np.uint8] = np.add.outer(np.arange(16), np.arange(24)).astype(np.uint8) * 6
    file = io.BytesIO()
    Image.fromarray(np.dstack([ramp, ramp[::-1], ramp[:, ::-1]])).save(file, "JPEG", quality=95, subsampling=0)
    data = torch.from_numpy(np.frombuffer(file.getvalue(), dtype=np.uint8).copy())
    expected = decoded_by_pillow(file.getvalue())
    for decoded in decoder.decode([data, data]):
        if decoded is None:
            return "it does not decode a small image"
        if decoded.shape != expected.shape or (decoded.cpu().int() - expected.int()).abs().max() > 8:
            return "its pixels are not those of the image"
    return None


def decoded_by_pillow(data: bytes) -> torch.Tensor:
    """Return the pixels of a file as a decoder is to give them, on the host."""
    with Image.open(io.BytesIO(data)) as image:
        return planes(torch.from_numpy(np.array(image.convert("RGB"))))


def planes(pixels: torch.Tensor) -> torch.Tensor:
    """Return interleaved pixels, (height, width, 3), as (3, height, width) of the same memory."""
    return pixels.permute(2, 0, 1)


# --- files ------------------------------------------------------------------------------------------------------------


def read_header(data: NDArray[np.uint8]) -> tuple[int, int] | str:
    """Return the (width, height) that a file's header says, or why Pillow must decode it.

    Decoders of GPUs fill what is missing with grey and guess at the rest: a file is trusted to them only when it is
    YCbCr, and ends as a whole JPEG does.
    """
    try:
        image = JpegImageFile(io.BytesIO(data.data))
    except (SyntaxError, OSError, ValueError):
        return "not a JPEG, or a damaged header"
    parts = [part[0] for part in image.layer]
    if image.mode != "RGB" or image.info.get("adobe_transform", 1) != 1 or parts not in ([1, 2, 3], [0, 1, 2]):
        return "JPEG: not YCbCr, or unusual components"
    if bytes(data[-2:]) != b"\xff\xd9":
        return "JPEG: no end-of-image marker at its end"
    return image.size
