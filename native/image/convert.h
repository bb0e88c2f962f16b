// The last pass over a sample: pixels of an 8-bit picture, seen through two axis maps, become elements of a
// batch row, by a table of 256 elements a channel or as they are.
//
// Threads: `Output` is immutable once built and read by all; write_output may run on any thread.
// Memory: all buffers are the caller's; the only allocation is in an Indices object, which is kept.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "image/axis_map.h"
#include "image/planes.h"
#include "image/resize.h"
#include "tensor/dtype.h"

namespace penstock {

enum class Layout : std::uint8_t { chw, hwc };

// What a position outside the picture holds, a channel: `pixel` while the picture is 8-bit, `element` in the
// output (the element's bytes, first byte first in memory).
struct Fill {
  std::array<std::uint8_t, kMaxChannels> pixel{};
  std::array<std::uint64_t, kMaxChannels> element{};
};

struct Output {
  DType dtype = DType::u8;
  Layout layout = Layout::chw;
  int channels = 3;                  // 1 or 3, of the picture and of the output
  bool copy = true;                  // uint8 as it is, no table
  std::vector<std::uint8_t> table;  // channels x 256 elements of the dtype's size (bytes; allocated for any alignment)
  std::optional<Standard> standard;  // arithmetic that gives the table, if there is one
  std::array<Standard, kMaxChannels> standards;  // with it: the same for each single channel
  std::vector<Fill> fills;
};

// Sets output.standard where a float32 table can be replaced by arithmetic.
void find_standard(Output& output);

// Working memory for maps that are not affine.
struct Indices {
  std::vector<std::int32_t> x;
};

// Writes y.size() x x.size() pixels to `row`, which has room for them and is aligned for the dtype. `part`
// holds every source position that the maps show. The dtype's size is 1, 2, 4 or 8.
void write_output(const Output& output, const ImagePart& part, const AxisMap& x, const AxisMap& y, std::uint8_t* row,
                  Indices& indices);

// The same from a picture whose channels lie apart, plane_stride bytes from one to the next; `part` is the first
// channel. The layout is chw.
void write_planes(const Output& output, const ImagePart& part, std::ptrdiff_t plane_stride, const AxisMap& x,
                  const AxisMap& y, std::uint8_t* row, Indices& indices);

// Copies `box` of a picture whose channels lie apart to dst, interleaved.
void interleave(const ImagePart& part, std::ptrdiff_t plane_stride, int channels, Box box, std::uint8_t* dst,
                std::ptrdiff_t dst_stride);

// Copies `box` of a picture whose pixels lie `spacing` bytes apart, more than their three channels need, to dst without
// the gaps.
void close_up(const ImagePart& part, int spacing, Box box, std::uint8_t* dst, std::ptrdiff_t dst_stride);

// Copies positions [box) of the mapped picture to dst, interleaved; fills give their `pixel`.
void materialise(const std::vector<Fill>& fills, const ImagePart& part, const AxisMap& x, const AxisMap& y, Box box,
                 std::uint8_t* dst, std::ptrdiff_t dst_stride);

// Pillow's RGB to L: (19595 R + 38470 G + 7471 B + 0x8000) >> 16 (libImaging/Convert.c, rgb2l), written to
// out_channels equal channels. A one-channel source is only repeated.
void to_grayscale(const ImagePart& part, Box box, int out_channels, std::uint8_t* dst, std::ptrdiff_t dst_stride);

}  // namespace penstock
