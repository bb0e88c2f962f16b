"""Triton kernels that make a batch of images on a GPU in one pass over its pixels.

torch brings Triton on Linux. A kernel is compiled at its first call (Triton keeps it in its own cache folder), on the
calling thread. Elements are moved as integers of their size: those of a table come out bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: Elements that one instance of a kernel makes.
BLOCK = 1024
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit  # type: ignore[untyped-decorator]
def _placed(at, size, channels: tl.constexpr, last: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads these
    if last:
        channel, place = at % channels, at // channels
    else:
        channel, place = at // size, at % size
    return channel, place


@triton.jit  # type: ignore[untyped-decorator]
def _convert(  # type: ignore[no-untyped-def]  # Triton reads annotations
    pixels,
    table,
    out,
    size,
    channels: tl.constexpr,
    from_last: tl.constexpr,
    to_last: tl.constexpr,
    block: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64) * size * channels
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < size * channels
    channel, place = _placed(at, size, channels, to_last)
    source = place * channels + channel if from_last else channel * size + place
    value = tl.load(pixels + sample + source, mask=inside, other=0).to(tl.int32)
    tl.store(out + sample + at, tl.load(table + channel * 256 + value, mask=inside, other=0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gather(  # type: ignore[no-untyped-def]
    store,
    index,
    maps,
    fills,
    table,
    out,
    source_size,
    source_width,
    height,
    width,
    channels: tl.constexpr,
    to_last: tl.constexpr,
    has_fills: tl.constexpr,
    has_table: tl.constexpr,
    block: tl.constexpr,
):
    number, size = tl.program_id(0).to(tl.int64), height * width
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < size * channels
    channel, place = _placed(at, size, channels, to_last)
    own = maps + number * (height + width)
    row = tl.load(own + place // width, mask=inside, other=0)
    column = tl.load(own + height + place % width, mask=inside, other=0)
    shown = tl.minimum(row, column)  # -1 - k where fill k is shown: of two, the later operation's
    first = tl.load(index + number) * source_size
    source = (first + row * source_width + column) * channels + channel
    value = tl.load(store + source, mask=inside & (shown >= 0), other=0)
    if has_fills:
        fill = tl.load(fills + (-1 - shown) * channels + channel, mask=inside & (shown < 0), other=0)
        value = tl.where(shown >= 0, value, fill)
    if has_table:
        value = tl.load(table + channel * 256 + value.to(tl.int32), mask=inside, other=0)
    tl.store(out + number * size * channels + at, value, mask=inside)


def convert(pixels: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """Write the elements that a table gives for pixels.

    Args:
        pixels: uint8 of shape (samples, channels, height, width), dense: contiguous or channels-last.
        table: (channels, 256) elements of the dtype of `out`, contiguous.
        out: of the shape of `pixels`, dense likewise.
    """
    samples, channels, height, width = pixels.shape
    size = height * width
    grid = samples, triton.cdiv(size * channels, BLOCK)
    last = not pixels.is_contiguous(), not out.is_contiguous()
    if pixels.numel():
        _convert[grid](pixels, _bits(table), _bits(out), size, channels, *last, BLOCK)


def gather(
    store: torch.Tensor,
    index: torch.Tensor,
    maps: torch.Tensor,
    fills: torch.Tensor | None,
    table: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Write images of a store, cropped, padded and flipped as maps say, converted by a table where there is one.

    Args:
        store: uint8 of shape (images, height, width, channels), contiguous.
        index: int64, the image of each sample.
        maps: int32 of shape (samples, height + width), as `_native.axis_maps` writes them.
        fills: uint8 of shape (fills, channels); None: no result has a place outside its picture.
        table: as in `convert`; None: `out` is uint8.
        out: of shape (samples, channels, height, width), dense: contiguous or channels-last.
    """
    samples, channels, height, width = out.shape
    grid = samples, triton.cdiv(height * width * channels, BLOCK)
    there = fills is not None, table is not None
    if out.numel():
        _gather[grid](
            store,
            index,
            maps,
            store if fills is None else fills,
            store if table is None else _bits(table),
            _bits(out),
            store.shape[1] * store.shape[2],
            store.shape[2],
            height,
            width,
            channels,
            not out.is_contiguous(),
            *there,
            BLOCK,
        )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_BITS[tensor.element_size()])
