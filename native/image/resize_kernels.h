// Inner loops of the resize: weighted sums along rows (horizontal) and across rows (vertical).
//
// Threads: pure functions of their arguments. Memory: the caller owns everything; a LanePlan owns its words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/resize_tables.h"

namespace penstock {

// Portable. row is that of source pixel `origin`; dst takes table.span.size() * channels bytes.
void horizontal_scalar(const std::uint8_t* row, int origin, int channels, const AxisTable& table, std::uint8_t* dst);

// rows[i] is row span.first + i of the source; dst takes `bytes` bytes.
void vertical_scalar(const std::uint8_t* const* rows, int count, const std::int32_t* weight, int precision,
                     std::size_t bytes, std::uint8_t* dst);

#if defined(__x86_64__)

// The horizontal weights laid out for AVX2: per block of two 128-bit lanes a byte shuffle that puts two neighbouring
// taps of four output bytes side by side, and the weights of those taps as pairs of int16.
// Dense: a block is 8 consecutive output bytes. Sparse (great reductions): a block is 2 output pixels, one a lane.
// A weight of more than 16 bits is split, weight = high * 2^11 + low, and both parts are summed exactly.
struct LanePlan {
  std::vector<std::int32_t> offset;  // two per block: first byte loaded, from the start of the row
  std::vector<std::int32_t> words;   // per block: 8 shuffle words, then per pair 8 high words (if split), 8 low words
  int blocks = 0;
  int pairs = 0;
  int bytes_per_block = 0;
  int pair_step = 0;  // source bytes from a pair of taps to the next
  int precision = 0;
  bool split = false;
  std::size_t reach = 0;      // bytes from the start of a source row that may be read
  std::size_t row_bytes = 0;  // bytes of a result row
};

void build_lane_plan(const AxisTable& table, int origin, int channels, LanePlan& plan);

// Four rows at once; src[i] has plan.reach readable bytes, dst[i] room for plan.row_bytes.
void horizontal_avx2(const std::uint8_t* const src[4], const LanePlan& plan, std::uint8_t* const dst[4]);

// The vertical weights: per output `pairs` times a high word (if split) and a low word.
struct RowPlan {
  std::vector<std::int32_t> words;
  int words_per_output = 0;
  int precision = 0;
  bool split = false;
};

void build_row_plan(const AxisTable& table, RowPlan& plan);

// As vertical_scalar, with the weights of one output of the plan; bytes >= 32.
void vertical_avx2(const std::uint8_t* const* rows, int count, const RowPlan& plan, std::size_t output,
                   std::size_t bytes, std::uint8_t* dst);

#endif

}  // namespace penstock
