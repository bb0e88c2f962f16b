"""soundfile.read, SoundFile.read and torchaudio.load answered natively: the libraries themselves are the oracle."""

from __future__ import annotations

import io
import random
import struct
import wave
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io.wavfile
import torch

import penstock
from tests import python_processes
from tests.corrupt import damages
from tests.data import Made
from tests.in_workers import Worker, answered, is_answered, refused, within
from tests.same import assert_same

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed: pip install soundfile")
pytestmark = pytest.mark.native

RATE = 8000
DTYPES = ("float64", "float32", "int32", "int16")
#: (start, stop, frames), as of soundfile.read.
RANGES = [
    (0, None, -1), (5, 50, -1), (5, None, 7), (-20, None, -1), (-20, -3, -1), (30, 10, -1), (0, 10**9, -1),
    (10**6, None, -1), (90, None, 10**6), (-(10**6), 3, -1), (4, None, 0), (2**70, None, -1),
]  # fmt: skip


def noise(frames: int, channels: int) -> Any:
    return np.random.default_rng(3).uniform(-1, 1, (frames, channels))


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def fmt(channels: int = 2, bits: int = 16, tag: int = 1, mask: int | None = None, valid: int | None = None) -> bytes:
    block = channels * bits // 8
    plain = struct.pack("<HHIIHH", tag if mask is None else 0xFFFE, channels, RATE, RATE * block, block, bits)
    if mask is None:
        return chunk(b"fmt ", plain)
    guid = struct.pack("<H", tag) + b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    return chunk(b"fmt ", plain + struct.pack("<HHI", 22, bits if valid is None else valid, mask) + guid)


DATA = chunk(b"data", random.Random(2).randbytes(400))
INFO = chunk(b"LIST", b"INFO" + chunk(b"ISFT", b"made by hand\0\0") + chunk(b"INAM", b"odd"))
LIST_OF_CUES = chunk(b"LIST", b"adtl" + chunk(b"labl", b"\1\0\0\0a\0"))
FLOATS = chunk(b"data", np.array([0.5, -2, np.inf, -np.inf, 1e-45, 3e38, np.nan, -0.0] * 12, np.float32).tobytes())


def by_hand() -> dict[str, bytes]:
    """Return files of headers that other programs write, and of such as none does."""
    plain = fmt()
    return {
        "plain": riff(plain, DATA),
        "list before": riff(plain, INFO, DATA),
        "list first": riff(INFO, plain, DATA),
        "list behind": riff(plain, DATA, INFO),
        "cues": riff(plain, LIST_OF_CUES, DATA),
        "fact": riff(plain, chunk(b"fact", struct.pack("<I", 77)), DATA),
        "fmt of 18": riff(chunk(b"fmt ", plain[8:] + b"\0\0"), DATA),
        "fmt of 18, wrong": riff(chunk(b"fmt ", plain[8:] + b"\1\0"), DATA),
        "fmt twice": riff(plain, fmt(1, 8), DATA),
        "no fmt": riff(DATA),
        "no data": riff(plain),
        "data first": riff(DATA, plain),
        "data twice": riff(plain, DATA, DATA),
        "empty data": riff(plain, chunk(b"data", b"")),
        "half a frame": riff(plain, chunk(b"data", DATA[8:-1])),
        "8 bits, odd": riff(fmt(1, 8), chunk(b"data", DATA[8:-1])),
        "8 bits, odd, a list behind": riff(fmt(1, 8), chunk(b"data", DATA[8:-1]), INFO),
        "odd chunk": riff(plain, chunk(b"note", b"abc"), DATA),
        "junk": riff(plain, chunk(b"JUNK", b"\0" * 28), DATA),
        "long header": riff(plain, chunk(b"LIST", b"INFO" + chunk(b"ICMT", b"x" * 6000)), DATA),
        "behind its end": riff(plain, DATA) + b"more",
        "data of all": riff(plain, b"data" + struct.pack("<I", 0xFFFFFFFF) + DATA[8:]),
        "size of none": b"RIFF\0\0\0\0" + riff(plain, DATA)[8:],
        "size of all": b"RIFF\xff\xff\xff\xff" + riff(plain, DATA)[8:],
        "big-endian": b"RIFX" + riff(plain, DATA)[4:],
        "RF64": b"RF64" + riff(plain, DATA)[4:],
        "packed": riff(plain, chunk(b"data", b"wvpk" + DATA[12:])),
        "floats": riff(fmt(1, 32, 3), FLOATS),
        "float 64": riff(fmt(1, 64, 3), FLOATS),
        "mu-law": riff(fmt(1, 8, 7), DATA),
        "12 bits": riff(fmt(1, 12), DATA),
        "no channels": riff(fmt(0), DATA),
        "many channels": riff(fmt(20, 8), DATA),
        "wrong block": riff(plain[:-4] + b"\5\0" + plain[-2:], DATA),
        "wrong rate": riff(plain[:16] + b"\1\0\0\0" + plain[20:], DATA),
        **{f"extensible {mask}": riff(fmt(2, 16, 1, mask), DATA) for mask in (0, 3, 4, 12, 0x80000000)},
        "extensible mono": riff(fmt(1, 24, 1, 4), chunk(b"data", DATA[8:-1])),
        "extensible floats": riff(fmt(2, 32, 3, 3), FLOATS),
        "extensible, 20 of 24 bits": riff(fmt(2, 24, 1, 3, 20), chunk(b"data", DATA[8:-4])),
        "extensible surround": riff(fmt(6, 16, 1, 0x3F), chunk(b"data", DATA[8:-4])),
        "S/PDIF": riff(plain, chunk(b"data", b"\x72\xf8\x1f\x4e".ljust(512, b"\1") * 16)),
        "nothing": b"",
        "other": b"fLaC" + DATA,
    }


def by_writers(folder: Path) -> dict[str, bytes]:
    """Return files of libsndfile, Python's wave module and scipy."""
    found = {}
    for channels in (1, 2, 6):
        for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "MS_ADPCM"):
            for form in ("WAV", "WAVEX"):
                if soundfile.check_format(form, subtype) and not (channels > 2 and subtype == "MS_ADPCM"):
                    file = io.BytesIO()
                    soundfile.write(file, noise(101, channels), RATE, subtype, format=form)
                    found[f"{form} {subtype} {channels}"] = file.getvalue()
        for width in (1, 2, 3, 4):
            file = io.BytesIO()
            with wave.open(file, "wb") as written:
                written.setparams((channels, width, RATE, 0, "NONE", ""))
                written.writeframes(random.Random(4).randbytes(101 * channels * width))
            found[f"wave {width} {channels}"] = file.getvalue()
        for dtype in (np.uint8, np.int16, np.int32, np.float32, np.float64):
            file = io.BytesIO()
            scipy.io.wavfile.write(file, RATE, (noise(101, channels) * 100 + 100).astype(dtype))
            found[f"scipy {dtype.__name__} {channels}"] = file.getvalue()
    return found


def read(*arguments: Any, **named: Any) -> Any:
    return soundfile.read(*arguments, **named)


def torchaudio_load(*arguments: Any, **named: Any) -> Any:
    return pytest.importorskip("torchaudio").load(*arguments, **named)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error).partition("<")[0]


def assert_alike(call: Callable[[], Any]) -> None:
    """Assert that a call gives or raises in our workers what it does elsewhere."""
    assert_same(within(outcome, call), outcome(call))


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, str]:
    files = {}
    for number, (name, content) in enumerate((by_hand() | by_writers(tmp_path)).items()):
        files[name] = str(tmp_path / f"{number}.wav")
        Path(files[name]).write_bytes(content)
    return files


def test_soundfile(corpus: dict[str, str]) -> None:
    answers = set()
    for name, path in corpus.items():
        for number, (start, stop, frames) in enumerate(RANGES):
            for dtype in DTYPES if number < 2 else DTYPES[number % 4 :][:1]:
                options = {"start": start, "stop": stop, "frames": frames, "dtype": dtype, "always_2d": number % 2 == 0}
                assert_alike(partial(read, path, **options))
        if is_answered(read, path):
            answers.add(name)
    writers = {f"wave {width} {channels}" for width in (1, 2, 3, 4) for channels in (1, 2, 6)}
    writers |= {f"{form} PCM_{bits} {n}" for form in ("WAV", "WAVEX") for bits in (16, 24, 32) for n in (1, 2, 6)}
    writers |= {f"WAV{x} {kind} {n}" for x in ("", "EX") for kind in ("PCM_U8", "FLOAT") for n in (1, 2, 6)}
    hand = {
        "plain", "list before", "list first", "fact", "fmt of 18", "8 bits, odd", "floats", "extensible 3",
        "extensible mono",
    }  # fmt: skip
    assert writers | hand <= answers
    assert not answers & {
        "packed", "behind its end", "half a frame", "float 64", "mu-law", "wrong block", "big-endian", "other",
    }  # fmt: skip


def test_soundfile_objects(corpus: dict[str, str]) -> None:
    for path in corpus.values():

        def read_parts() -> Any:
            with soundfile.SoundFile(path) as file:  # noqa: B023
                parts = [file.read(10, "float32"), file.tell(), file.seek(40), file.read(always_2d=True), file.tell()]
                return [*parts, file.read(5), file.seek(3), file.read(2, "int16"), file.read(1, fill_value=0.0)]

        assert_alike(read_parts)


def test_what_is_left_to_soundfile(corpus: dict[str, str], tmp_path: Path) -> None:
    path = corpus["WAV PCM_16 2"]
    cases: list[dict[str, Any]] = [
        {"dtype": "float16"}, {"dtype": []}, {"frames": 3, "stop": 5}, {"start": 1.5}, {"start": None},
        {"fill_value": 0.0, "frames": 500}, {"out": np.zeros((3, 2))}, {"samplerate": RATE}, {"format": "WAV"},
        {"nonsense": 1}, {"start": np.int64(3), "stop": np.int8(9)},
    ]  # fmt: skip
    for options in cases:
        assert_alike(partial(read, path, **options))
    assert_alike(partial(read, path + "missing"))
    assert_alike(partial(read, Path(path)))
    with open(path, "rb") as file:
        assert "BufferedReader" in repr(file) and "path" in refused(read, file)
    soundfile.write(tmp_path / "x.flac", noise(50, 2), RATE)
    assert "RIFF" in refused(read, str(tmp_path / "x.flac"))
    with soundfile.SoundFile(tmp_path / "x.flac") as flac, soundfile.SoundFile(path) as wav:
        assert "WAV" in refused(lambda: flac.read())
        soundfile.write(path, noise(40, 2), RATE)
        assert "by now" in refused(lambda: wav.read())


def test_damaged_files(tmp_path: Path) -> None:
    path, draw = str(tmp_path / "x.wav"), random.Random(7)
    for content in (
        by_hand()["list before"],
        by_hand()["extensible 3"],
        riff(fmt(1, 32, 3), chunk(b"fact", b"\x18\0\0\0"), FLOATS),
    ):
        for damaged in damages(content, draw, flips=4, head=content.index(b"data") + 12):
            Path(path).write_bytes(damaged)
            assert_alike(lambda: soundfile.read(path))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a closed file, within soundfile
def test_files_in_memory(corpus: dict[str, str]) -> None:
    worker = Worker()
    for name, path in corpus.items():
        content = Path(path).read_bytes()
        if not is_answered(read, path):
            continue
        for start, stop, frames in RANGES:
            ours, theirs = io.BytesIO(content), io.BytesIO(content)
            call = {"start": start, "stop": stop, "frames": frames}
            found, wanted = worker(outcome, partial(read, ours, **call)), outcome(partial(read, theirs, **call))
            assert_same(found, wanted)
            assert ours.tell() == theirs.tell(), (name, call)
    assert worker.answered > 100
    moved, closed = io.BytesIO(b"1234"), io.BytesIO(b"")
    moved.read(2)
    closed.close()
    assert "no io.BytesIO at its start" in refused(read, moved)
    assert "no io.BytesIO at its start" in refused(read, closed)


def test_another_library_is_left_alone(corpus: dict[str, str]) -> None:
    program = """
import sys, soundfile
from tests.in_workers import refused
soundfile.SoundFile.buffer_read = lambda *_: b"others"
assert "others than" in refused(lambda: soundfile.read(sys.argv[1]))
"""
    ended = python_processes.run(program, corpus["plain"])
    assert ended.returncode == 0, ended


def test_calls_in_a_dataset(corpus: dict[str, str]) -> None:
    path = corpus["wave 2 1"]
    clips = Made(lambda index: soundfile.read(path, start=index, stop=index + 50, dtype="float32"), 8)
    for options in ({}, {"num_workers": 1}, {"num_workers": 2, "worker_method": "thread"}):
        loader = penstock.DataLoader(clips, 4, **options)
        assert_same(list(loader), list(torch.utils.data.DataLoader(clips, 4)))
        assert "calls    soundfile.read: 8 answered natively" in loader.explain()


# --- torchaudio -------------------------------------------------------------------------------------------------------


@pytest.fixture
def torchaudio(corpus: dict[str, str]) -> Any:
    module = pytest.importorskip("torchaudio", reason="torchaudio is not installed")
    if not hasattr(module, "load_with_torchcodec"):
        pytest.skip("torchaudio before 2.9")
    try:
        module.load(corpus["plain"])
    except Exception as error:
        pytest.skip(f"torchaudio.load does not work here: {str(error)[:80]}")
    return module


def assert_same_bytes(call: Callable[[], Any]) -> None:
    """Assert that a call gives or raises in our workers what it does elsewhere, but for strides."""
    both = within(outcome, call), outcome(call)
    ours, theirs = (
        (one[0].dtype, one[0].shape, one[0].numpy().tobytes(), one[1]) if type(one[0]) is torch.Tensor else one
        for one in both
    )
    assert ours == theirs


def test_torchaudio(torchaudio: Any, corpus: dict[str, str]) -> None:
    answers = set()
    for name, path in corpus.items():
        for offset, frames in ((0, -1), (5, 20), (90, 50), (10**6, -1), (3, 0), (-4, 7)):
            for first in (True, False) if offset == 5 else (True,):
                assert_same_bytes(partial(torchaudio_load, path, offset, frames, channels_first=first))
        if is_answered(torchaudio_load, path):
            answers.add(name)
    assert {
        "plain", "list before", "wave 1 1", "wave 3 2", "WAV FLOAT 2", "WAVEX PCM_24 1", "extensible 3", "8 bits, odd",
    } <= answers  # fmt: skip
    assert not answers & {"S/PDIF", "extensible 12", "wave 2 6", "half a frame", "mu-law", "other"}
    found = answered(torchaudio_load, corpus["plain"], 5, 20)[0]
    assert found.is_contiguous() and found.untyped_storage().nbytes() == 2 * 20 * 4


def test_what_is_left_to_torchaudio(torchaudio: Any, corpus: dict[str, str]) -> None:
    path = corpus["plain"]
    for options in ({"normalize": False}, {"format": "wav"}, {"buffer_size": 1}, {"backend": "soundfile"}):
        assert "arguments" in refused(torchaudio_load, path, **options)

    def load_to_meta() -> Any:
        with torch.device("meta"):
            return torchaudio.load(path)

    assert "modes" in refused(load_to_meta)
    assert not is_answered(torchaudio_load, io.BytesIO(b""))
    for arguments in ((path + "x",), (path, "a"), (), (path, 0, 1.5)):
        assert_same_bytes(lambda: torchaudio.load(*arguments))  # noqa: B023


def test_damaged_files_of_torchaudio(torchaudio: Any, tmp_path: Path) -> None:
    path, draw = str(tmp_path / "x.wav"), random.Random(9)
    for content in (by_hand()["list before"], by_hand()["extensible 3"]):
        for damaged in damages(content, draw, head=content.index(b"data") + 12):
            Path(path).write_bytes(damaged)
            assert_same_bytes(lambda: torchaudio.load(path))
