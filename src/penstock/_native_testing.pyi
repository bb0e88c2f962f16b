"""Parts of the native core by themselves, for tests: built beside penstock._native, but left out of wheels.

This module links the core a second time. What is set through an object of penstock._native holds for that object only.
"""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native

def forgo_openat2(table: _native.PathTable) -> None:
    """Make a table that has opened nothing yet open its names as on kernels without openat2."""

class SampleFile:
    """The bytes of one sample: a file, a part of one, or memory. Reads raise OSError."""

    @staticmethod
    def whole(path: str) -> SampleFile: ...
    @staticmethod
    def part(path: str, offset: int, length: int) -> SampleFile: ...
    @staticmethod
    def checked(path: str, offset: int, length: int, crc32c: int) -> SampleFile: ...
    @staticmethod
    def memory(data: bytes) -> SampleFile: ...
    def size(self) -> int:
        """Return the number of bytes. Raises ValueError where it is not a regular file."""

    def readv(self, rooms: list[int], offset: int) -> bytes:
        """Return what one call read into rooms of these sizes."""

    def read(self, bytes: int, offset: int) -> bytes:
        """Return so many bytes, or fewer where the sample ends."""

class SlowTable(_native.FileTable):
    """Another table of files, each of whose opens takes so many seconds, and waits while the table is shut."""

    def __init__(self, table: _native.FileTable, seconds: float) -> None: ...
    def __len__(self) -> int: ...
    def set_delay(self, seconds: float) -> None: ...
    def shut(self) -> None: ...
    def release(self) -> None: ...
    def opened(self) -> list[int]:
        """Return how often each file was opened."""

    def waiting(self) -> int:
        """Return the threads that wait for release()."""

    def deepest(self) -> int:
        """Return the most threads that were opening a file at a time."""

class ReadDepth:
    """How many readers work (native/pool/read_depth.h)."""

    def __init__(self, most: int) -> None: ...
    def now(self) -> int: ...
    def start(self) -> None: ...
    def judge(self, seconds: float, bytes: int, files: int, blocked: int, served: int, starved: int) -> bool:
        """Choose by what was seen in a span; False: it is too short to be judged."""

class TensorLayout(TypedDict):
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    reach: int
    contiguous: bool

def parse_tensor(data: bytes, head: int = -1, tail: int = 0) -> TensorLayout | str:
    """Return where the one tensor of a .pt or .npy file lies, or why Python must read it."""

def crc32_by(way: str, data: bytes, before: int = 0) -> int:
    """Return the CRC-32 of some bytes by one of crc_ways(). Raises ValueError where the processor lacks it."""

def crc32c_by(way: str, data: bytes, before: int = 0) -> int:
    """Return the CRC-32C of some bytes in the same way."""

def crc_ways() -> list[str]:
    """Return the ways of computing a CRC that this processor has."""

def probe(path: str) -> tuple[str, str | tuple[int, ...]]:
    """Return the dtype and shape of the tensor in a file, or ("python", why Python must read it). Raises OSError."""

class TensorReader:
    """Reads tensor files; one thread at a time."""

    def __init__(self) -> None: ...
    def read(
        self, path: str, name_length: int, dtype: str, shape: tuple[int, ...]
    ) -> bytes | tuple[str, str | tuple[str, tuple[int, ...]]]: ...
    @property
    def predicted(self) -> int: ...

class JpegRowStates:
    """States of the entropy decoder at rows of MCUs of one JPEG (native/jpeg/row_state.h)."""

    def __init__(self) -> None: ...
    @property
    def known(self) -> list[tuple[int, int, int, int] | None]: ...
    def forget(self, row: int) -> None: ...
    def suppose(self, row: int, state: tuple[int, int, int, int]) -> None:
        """Set the state (bit, DC predictions) before a row."""

def jpeg_decoders() -> list[str]:
    """Return the decoders of decode_jpeg_by() that this processor has."""

def decode_jpeg_by(
    data: bytes, name: str, box: tuple[int, int, int, int] | None = None, states: JpegRowStates | None = None
) -> NDArray[np.uint8] | str:
    """Return what decode_jpeg() does, by one of jpeg_decoders() only."""

def resize(
    image: NDArray[np.uint8],
    size: tuple[int, int],
    filter: str,
    arithmetic: str,
    antialias: bool = True,
    window: tuple[int, int, int, int] | None = None,
    source_part: tuple[int, int, int, int] | None = None,
    simd: bool = True,
) -> NDArray[np.uint8] | None:
    """Return the image resized to (height, width), or the window (x0, y0, x1, y1) of it; None when it is refused.

    source_part is (x0, y0, full_width, full_height) of the image that `image` is a part of.
    """

def resize_needed(
    full: tuple[int, int],
    size: tuple[int, int],
    filter: str,
    arithmetic: str,
    antialias: bool,
    window: tuple[int, int, int, int],
) -> tuple[int, int, int, int]:
    """Return the box of the source that a window of the result depends on."""
