"""Sequential JPEG files of given coefficients, Huffman codes and restart intervals, as no usual encoder writes them.

Section numbers are those of ITU-T T.81.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Coefficients = Sequence[npt.NDArray[np.int16]]  # a component each: (rows of blocks, columns of blocks, 8, 8)

# Figure A.6: the natural index of each coefficient in zigzag order.
ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, i // 8 if (i // 8 + i % 8) % 2 else i % 8))


@dataclass(frozen=True)
class Code:
    """A Huffman code: the symbols of each length, in order. Annex C makes its bits."""

    symbols: dict[int, list[int]]

    def bits(self) -> dict[int, tuple[int, int]]:
        """Return the code and its length for each symbol (C.2)."""
        code, codes = 0, {}
        for length in range(1, 17):
            for symbol in self.symbols.get(length, ()):
                codes[symbol] = (code, length)
                code += 1
            code <<= 1
        return codes

    def segment(self, kind: int, number: int) -> bytes:
        """Return the DHT segment (B.2.4.2): kind 0 for DC, 1 for AC."""
        counts = bytes(len(self.symbols.get(length, ())) for length in range(1, 17))
        values = bytes(itertools.chain.from_iterable(self.symbols.get(length, ()) for length in range(1, 17)))
        return segment(0xC4, bytes((kind << 4 | number,)) + counts + values)


def flat(symbols: Sequence[int]) -> Code:
    """Give every symbol a code of 8 bits."""
    return Code({8: list(symbols)})


def steep(symbols: Sequence[int]) -> Code:
    """Give eight symbols codes of 1 to 8 bits, and the others 16 bits."""
    return Code({**{n: [symbol] for n, symbol in enumerate(symbols[:8], 1)}, 16: list(symbols[8:])})


def segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload


def size_and_bits(value: int) -> tuple[int, int]:
    """Return the size of a value and its additional bits (F.1.2.1)."""
    size = abs(value).bit_length()
    return size, value if value >= 0 else value + (1 << size) - 1


def symbols_of(block: npt.NDArray[np.int16], difference: int) -> Iterator[tuple[bool, int, int, int]]:
    """Yield (whether it is an AC symbol, the symbol, its size, its additional bits) for a block (F.1.2)."""
    size, bits = size_and_bits(difference)
    yield False, size, size, bits
    zigzag = block.reshape(64)[ZIGZAG].tolist()
    run = 0
    for value in zigzag[1:]:
        if value == 0:
            run += 1
            continue
        for _ in range(run // 16):
            yield True, 0xF0, 0, 0
        size, bits = size_and_bits(value)
        yield True, run % 16 << 4 | size, size, bits
        run = 0
    if run:
        yield True, 0, 0, 0


def entropy_coded(blocks: Sequence[tuple[int, npt.NDArray[np.int16]]], codes: Sequence[tuple[Code, Code]]) -> bytes:
    """Return one entropy-coded segment (F.1.2.3) of blocks, each with the number of its component."""
    tables = [(dc.bits(), ac.bits()) for dc, ac in codes]
    predictions = [0] * len(codes)
    parts = []
    for component, block in blocks:
        value = int(block[0, 0])
        for is_ac, symbol, size, bits in symbols_of(block, value - predictions[component]):
            code, length = tables[component][is_ac][symbol]
            parts.append(f"{code:0{length}b}" + (f"{bits:0{size}b}" if size else ""))
        predictions[component] = value
    text = "".join(parts)
    text += "1" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\x00")


def mcus(
    coefficients: Coefficients, factors: Sequence[tuple[int, int]]
) -> list[list[tuple[int, npt.NDArray[np.int16]]]]:
    """Return the blocks of each MCU, in order (A.2.3)."""
    rows, columns = coefficients[0].shape[0] // factors[0][1], coefficients[0].shape[1] // factors[0][0]
    return [
        [
            (c, coefficients[c][y * v + j, x * h + i])
            for c, (h, v) in enumerate(factors)
            for j in range(v)
            for i in range(h)
        ]
        for y in range(rows)
        for x in range(columns)
    ]


def write_jpeg(
    coefficients: Coefficients,
    size: tuple[int, int],
    factors: Sequence[tuple[int, int]],
    codes: Sequence[tuple[Code, Code]],
    restart_interval: int = 0,
) -> bytes:
    """Return a file of (width, height) = size whose component i has sampling factors (h, v) and codes (dc, ac)."""
    width, height = size
    units = mcus(coefficients, factors)
    step = restart_interval or len(units)
    parts = [b"\xff\xd8", segment(0xDB, bytes(1) + bytes([1]) * 64)]
    frame = [bytes((c + 1, h << 4 | v, 0)) for c, (h, v) in enumerate(factors)]
    sides = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    parts.append(segment(0xC1, b"\x08" + sides + bytes((len(factors),)) + b"".join(frame)))
    for number, (dc, ac) in enumerate(codes):
        parts += [dc.segment(0, number), ac.segment(1, number)]
    if restart_interval:
        parts.append(segment(0xDD, restart_interval.to_bytes(2, "big")))
    scan = b"".join(bytes((c + 1, c << 4 | c)) for c in range(len(factors)))
    parts.append(segment(0xDA, bytes((len(factors),)) + scan + b"\x00\x3f\x00"))
    for number, first in enumerate(range(0, len(units), step)):
        if number:
            parts.append(bytes((0xFF, 0xD0 + (number - 1) % 8)))
        parts.append(entropy_coded(list(itertools.chain.from_iterable(units[first : first + step])), codes))
    return b"".join([*parts, b"\xff\xd9"])
