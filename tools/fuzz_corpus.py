"""python -m tools.fuzz_corpus: writes native/fuzz/corpus, small JPEG files of every form for the fuzzer to change."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.jpeg_writer import flat, steep, write_jpeg
from tests.jpegs import encode

CORPUS = Path(__file__).resolve().parents[1] / "native" / "fuzz" / "corpus"
FACTORS = ((2, 2), (1, 1), (1, 1))


def written() -> bytes:
    """Return a file with codes of 16 bits and coefficients of 15."""
    rng = np.random.default_rng(0)
    blocks = [
        np.where(rng.random((2 * v, 2 * h, 8, 8)) < 0.1, rng.integers(-32767, 32768, (2 * v, 2 * h, 8, 8)), 0)
        for h, v in FACTORS
    ]
    for component in blocks:
        component[..., 0, 0] //= 2
    symbols = [0, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 16))]
    codes = [
        (flat(range(16)), flat(symbols)),
        (steep(range(16)), steep(symbols)),
        (flat(range(16)), steep(symbols[::-1])),
    ]
    return write_jpeg([b.astype(np.int16) for b in blocks], (30, 19), FACTORS, codes, restart_interval=3)


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    for sampling in ("4:4:4", "4:2:2", "4:2:0", "4:4:0", "grey", "rgb"):
        name = sampling.replace(":", "")
        optimised = encode(37, 29, sampling, quality=75, optimize=True)
        (CORPUS / f"{name}.jpg").write_bytes(optimised)
        (CORPUS / f"{name}-restarts.jpg").write_bytes(
            encode(37, 29, sampling, quality=40, optimize=True, restart_marker_blocks=2)
        )
    (CORPUS / "standard-tables.jpg").write_bytes(encode(17, 17, "4:2:0", quality=90))
    (CORPUS / "finest.jpg").write_bytes(encode(16, 16, "4:4:4", quality=100, optimize=True))
    (CORPUS / "progressive.jpg").write_bytes(encode(16, 16, "4:2:0", quality=50, progressive=True))
    (CORPUS / "written.jpg").write_bytes(written())
    print(sum(path.stat().st_size for path in CORPUS.iterdir()), "bytes")


if __name__ == "__main__":
    main()
