"""WAV files in memory (44.1 kHz, stereo, PCM 16), decoded by 1 to 16 threads: the files a second of SPDL's own table.

Each thread takes as many files as the others, and drops what it has decoded. `spdl.io.load_wav` decodes nothing: it
gives a view of the bytes that it is given, whatever their length, and no floats and no range.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np

from benchmarks.question import Contestant, Options, Question, Role, Running, Setup, Table, Target

RATE = 44_100
SECONDS = (1, 10, 60)
THREADS = (1, 2, 4, 8, 16)


def prepare(options: Options) -> Setup:
    """Nothing on disk: each process makes the same files."""
    seconds = 60 if options.quick else 300
    return Setup("", seconds, batch=1, facts={"seconds_of_sound": seconds, "rate": RATE, "channels": 2, "bits": 16})


def files_of(setup: Setup) -> tuple[list[bytes], int]:
    """The files of a table, and its number of threads."""
    import soundfile

    seconds, threads = map(int, setup.variant.split(" s, "))
    noise = np.random.default_rng(1).integers(-(2**15), 2**15, (seconds * RATE, 2), np.int16)
    file = io.BytesIO()
    soundfile.write(file, noise, RATE, "PCM_16", format="WAV")
    return [file.getvalue()] * max(16, setup.samples // seconds), threads


def decoding(setup: Setup, decode: Callable[[bytes], Any], works: Callable[[], Any] = nullcontext) -> Running:
    """Epochs of decode(file) over the files; works: the context that a thread decodes in."""
    files, threads = files_of(setup)
    pool = ThreadPoolExecutor(threads)

    def share(first: int) -> None:
        with works():
            for file in files[first::threads]:
                decode(file)

    def epoch() -> int:
        for _ in pool.map(share, range(threads)):
            pass
        return len(files)

    return Running(epoch)


def ours(setup: Setup) -> Running:
    """soundfile.read(io.BytesIO(file), dtype="int16") as in a dataset that a penstock loader reads."""
    import soundfile

    from penstock.hooks.calls import natively

    return decoding(setup, lambda file: soundfile.read(io.BytesIO(file), dtype="int16"), natively)


def theirs(setup: Setup) -> Running:
    """soundfile.read(io.BytesIO(file), dtype="int16")."""
    import soundfile

    return decoding(setup, lambda file: soundfile.read(io.BytesIO(file), dtype="int16"))


def torchcodec(setup: Setup) -> Running:
    """torchcodec's AudioDecoder(file).get_all_samples(), which gives float32."""
    from torchcodec.decoders import AudioDecoder

    return decoding(setup, lambda file: AudioDecoder(file).get_all_samples().data)


def spdl_audio(setup: Setup) -> Running:
    """spdl.io.load_audio, by FFmpeg, and to_numpy."""
    import spdl.io

    return decoding(setup, lambda file: spdl.io.to_numpy(spdl.io.load_audio(file, filter_desc=None)))


def spdl_wav(setup: Setup) -> Running:
    """spdl.io.load_wav and to_numpy: a view of the file's bytes."""
    import spdl.io

    return decoding(setup, lambda file: spdl.io.to_numpy(spdl.io.load_wav(file)))


CONTESTANTS = (
    Contestant("penstock", Role.PENSTOCK, ours),
    Contestant("soundfile", Role.PEER, theirs, packages=("soundfile",)),
    Contestant("torchcodec", Role.PEER, torchcodec, packages=("torchcodec",)),
    Contestant("SPDL load_audio", Role.PEER, spdl_audio, peers=("spdl", "spdl_io", "soundfile")),
    Contestant("SPDL load_wav", Role.ASIDE, spdl_wav, peers=("spdl", "spdl_io", "soundfile")),
)

QUESTION = Question(
    "sounds",
    "WAV files in memory",
    tuple(
        Table(
            f"{seconds} s, {threads}",
            f"Files of {seconds} s, {threads} thread{'s' * (threads > 1)}",
            CONTESTANTS,
            (Target("penstock", 1, "best peer"), Target("penstock", 1, "SPDL load_wav")),
        )
        for seconds in SECONDS
        for threads in THREADS
    ),
    prepare,
)
