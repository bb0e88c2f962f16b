// Weights of one axis of a resize: which source pixels each output pixel is a sum of, and with which weights.
//
// Threads: plain values, one owner each. Memory: AxisTable owns its vectors and reuses their capacity.
#pragma once

#include <cstdint>
#include <vector>

#include "image/resize.h"

namespace penstock {

// One axis of a resize: `in` source pixels become `out`; [begin, end) of the outputs are wanted. `small` is ATen's
// condition for its channels-last kernel (output height + width <= 128), which rounds nearest-exact differently.
struct Axis {
  int in, out, begin, end;
  Filter filter;
  Arithmetic arithmetic;
  bool antialias;
  bool small;
  friend bool operator==(const Axis&, const Axis&) = default;
};

struct Span {
  int first, count;  // source pixels [first, first + count)
};

struct AxisTable {
  std::vector<Span> span;            // per output of [begin, end)
  std::vector<std::int32_t> weight;  // taps per output; zero beyond span.count; fixed point, `precision` bits
  int taps = 0;
  int precision = 0;
  std::vector<double> exact;  // scratch
};

[[nodiscard]] constexpr bool is_nearest(Filter filter) {
  return filter == Filter::nearest || filter == Filter::nearest_exact;
}

[[nodiscard]] constexpr bool is_pillow(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::pillow || arithmetic == Arithmetic::pillow_12;
}

// Source pixels of the first output to the last one of the axis's [begin, end), as one span; of a filter that is not
// nearest.
[[nodiscard]] Span axis_reach(const Axis& axis);

// Fills `table` for a filter that is not nearest. False when the table would be absurdly large. May throw bad_alloc.
[[nodiscard]] bool build_axis_table(const Axis& axis, AxisTable& table);

// Source pixel of each output of [begin, end) for the nearest filters. May throw bad_alloc.
void build_nearest_index(const Axis& axis, std::vector<int>& index);

}  // namespace penstock
