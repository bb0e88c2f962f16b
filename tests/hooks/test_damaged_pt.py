"""Damaged and hostile .pt files: an answer is what torch.load gives, and nothing in a file is called."""

from __future__ import annotations

import io
import random
import warnings
from typing import Any

import pytest
import torch

from penstock.hooks.loads import Refused
from penstock.hooks.loads import load_torch as load
from tests.corrupt import archive_of, saved
from tests.hooks.loaded import assert_equal, corpus, filled, refused

CORPUS = corpus()

SMALL = saved({"x": torch.arange(3.0), "y": [filled((2, 2), torch.int16).t(), (1, 2.5, "text", None, b"\xff", {1})]})


def assert_as_torch(content: bytes, **options: Any) -> bool:
    """Return whether there was an answer, which torch.load then also has."""
    ours = load(io.BytesIO(content), **options)
    if type(ours) is Refused:
        return False
    assert_equal(ours, torch.load(io.BytesIO(content), **options))
    return True


def test_every_truncation() -> None:
    assert not any(assert_as_torch(SMALL[:length]) for length in range(len(SMALL)))
    assert not assert_as_torch(SMALL + b"\0")


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_every_byte_flipped(bits: int) -> None:
    count = 0
    for at in range(len(SMALL)):
        damaged = bytearray(SMALL)
        damaged[at] ^= bits
        count += assert_as_torch(bytes(damaged))
    assert 0 < count < len(SMALL)


@pytest.mark.parametrize("name", ["views", "dict", "parameter", "sets", "same list", "cyclic", "complex", "uint16"])
def test_pickles_that_were_changed(name: str) -> None:
    """Bytes of a pickle are changed, and its CRC-32 with them."""
    value = torch.ones(2, dtype=torch.uint16) if name == "uint16" else CORPUS[name]
    archive = archive_of(saved(value))
    pickled, draw = archive.pickle, random.Random(name)
    for at in range(len(pickled)):
        for byte in (draw.randrange(256), pickled[at] ^ 1, draw.choice(b"NK)]}(.tueaqhRcQX\x85\x86\x87")):
            data = pickled[:at] + bytes([byte]) + pickled[at + 1 :]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert_as_torch(archive.edit(b"data.pkl", data=data).file())


@pytest.mark.native
def test_bytes_at_random() -> None:
    """Nothing that a file holds makes the native core step outside its memory."""
    draw = random.Random(5)
    contents = [saved(CORPUS[name]) for name in ("views", "dict", "parameter", "cyclic", "many tensors", "keys")]
    for content in contents:
        archive = archive_of(content)
        for _ in range(400):
            data = bytearray(archive.pickle)
            for _ in range(draw.randrange(1, 4)):
                at = draw.randrange(len(data))
                data[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
            load(io.BytesIO(archive.edit(b"data.pkl", data=bytes(data)).file()))
            damaged = bytearray(content)
            for _ in range(draw.randrange(1, 5)):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            load(io.BytesIO(damaged))


RAN: list[int] = []


def evil() -> None:
    RAN.append(1)


class Evil:
    def __reduce__(self) -> Any:
        return evil, ()


def test_nothing_in_a_file_is_called() -> None:
    for value in (Evil(), [Evil()], {"x": torch.ones(2), "y": Evil()}):
        assert "evil" in refused(io.BytesIO(saved(value)))
    archive = archive_of(saved([1, 2]))
    for pickled in (
        b"\x80\x02cos\nsystem\nX\4\0\0\0true\x85R.",
        b"\x80\x02c__builtin__\neval\nX\1\0\0\x001\x85R.",
        b"\x80\x02ctorch\nfloat32\n)R.",
        b"\x80\x02ctorch\nFloatStorage\n)R.",
        b"\x80\x02c__builtin__\nset\n](K\1K\2ec__builtin__\nset\n\x85R\x85R.",
        b"\x80\x04]\x94.",
        b"\x80\x02ccollections\nOrderedDict\n)Rq\0}b.",
        b"\x80\x02]q\0h\0h\0e.",
        b"\x80\x02h\0.",
        b"\x80\x02r\xff\xff\xff\xff.",
        b"\x80\x02X\xff\xff\xff\xffab.",
        b"\x80\x02\x8a\xff\1.",
        b"\x80\x02" + b"(" * 100 + b".",
        b"\x80\x02}(K\1u.",
        b"\x80\x02}(]K\1u.",
        b"\x80\x02.",
        b"\x80\x02t.",
        b"\x80\x02N",
        b"",
    ):
        assert refused(io.BytesIO(archive.edit(b"data.pkl", data=pickled).file())), pickled
    assert not RAN
