#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "image/resize_kernels.h"

#define PENSTOCK_AVX2 __attribute__((target("avx2")))

namespace penstock {
namespace {

constexpr int kLanes = 8;  // int32 in a vector
constexpr int kSplitBits = 11;

struct Split {
  std::int32_t high, low;  // weight = high * 2^kSplitBits + low, both int16
};

[[nodiscard]] Split split_weight(std::int32_t weight) {
  constexpr std::int32_t half = 1 << (kSplitBits - 1);
  const std::int32_t high = (weight + half) >> kSplitBits;
  return {high, weight - (high << kSplitBits)};
}

[[nodiscard]] std::int32_t pack_pair(std::int32_t first, std::int32_t second) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(second) << 16) |
                                   (static_cast<std::uint32_t>(first) & 0xFFFFU));
}

// Layout of the weights.

// Whether four consecutive output bytes always find two neighbouring taps within 16 source bytes.
[[nodiscard]] bool fits_dense(const AxisTable& table, int channels) {
  const auto& span = table.span;
  const std::size_t ahead = channels == 1 ? 3 : 1;  // pixels that four bytes reach beyond the first one's
  for (std::size_t x = 0; x < span.size(); ++x) {
    const Span& last = span[std::min(x + ahead, span.size() - 1)];
    if ((last.first - span[x].first) * channels + 2 * channels > 16) return false;
  }
  return true;
}

// The weights of one output as pair words: high and low per pair if split, else low only.
std::int32_t* put_pairs(const std::int32_t* weight, int count, int pairs, bool split, std::int32_t* words) {
  for (int p = 0; p < pairs; ++p) {
    const std::int32_t a = 2 * p < count ? weight[2 * p] : 0;
    const std::int32_t b = 2 * p + 1 < count ? weight[2 * p + 1] : 0;
    if (split) {
      const Split sa = split_weight(a), sb = split_weight(b);
      *words++ = pack_pair(sa.high, sb.high);
      *words++ = pack_pair(sa.low, sb.low);
    } else {
      *words++ = pack_pair(a, b);
    }
  }
  return words;
}

[[nodiscard]] int longest_span(const AxisTable& table) {
  int longest = 1;
  for (const Span& span : table.span) longest = std::max(longest, span.count);
  return longest;
}

// Fills the int32 lanes of a plan one after the other, over all blocks.
class LaneWriter {
 public:
  LaneWriter(LanePlan& plan, int channels)
      : plan_(plan), channels_(channels), pair_words_(static_cast<std::size_t>(plan.pairs) * (plan.split ? 2U : 1U)) {}

  [[nodiscard]] std::size_t lane() const { return lane_; }

  // The byte at `first` + c of the row and its weights; every fourth lane begins a new load at `first`.
  void put(std::int32_t first, int c, const std::int32_t* pair_words) {
    if (lane_ % 4 == 0) plan_.offset[lane_ / 4] = base_ = first;
    const auto byte = static_cast<std::uint32_t>(first - base_ + c);
    std::int32_t* out = plan_.words.data() + lane_ / kLanes * kLanes * (1 + pair_words_) + lane_ % kLanes;
    // Each int16 takes one source byte and a zero (0x80).
    *out = static_cast<std::int32_t>(0x80008000U | byte | ((byte + static_cast<std::uint32_t>(channels_)) << 16));
    for (std::size_t i = 0; i < pair_words_; ++i) out[(i + 1) * kLanes] = pair_words[i];
    ++lane_;
  }

 private:
  LanePlan& plan_;
  int channels_;
  std::size_t pair_words_;
  std::size_t lane_ = 0;
  std::int32_t base_ = 0;
};

}  // namespace

void build_lane_plan(const AxisTable& table, int origin, int channels, LanePlan& plan) {
  const bool dense = fits_dense(table, channels);
  const std::size_t outputs = table.span.size(), depth = static_cast<std::size_t>(channels);
  plan.pairs = (longest_span(table) + 1) / 2;
  plan.precision = table.precision;
  plan.split = table.precision > 15;
  plan.pair_step = 2 * channels;
  plan.bytes_per_block = dense ? kLanes : 2 * channels;
  const std::size_t blocks = dense ? (outputs * depth + kLanes - 1) / kLanes : (outputs + 1) / 2;
  plan.blocks = static_cast<int>(blocks);
  const std::size_t pair_words = static_cast<std::size_t>(plan.pairs) * (plan.split ? 2U : 1U);
  const std::size_t words = blocks * kLanes * (1 + pair_words);
  if (plan.words.size() < words + pair_words) plan.words.resize(words + pair_words);
  plan.offset.resize(blocks * 2);
  std::int32_t* pixel = plan.words.data() + words;  // the words of one output pixel
  LaneWriter writer(plan, channels);
  std::int32_t first = 0;
  for (std::size_t x = 0; x < outputs; ++x) {
    const Span& span = table.span[x];
    first = (span.first - origin) * channels;
    put_pairs(table.weight.data() + x * static_cast<std::size_t>(table.taps), span.count, plan.pairs, plan.split,
              pixel);
    for (int c = 0; c < channels; ++c) writer.put(first, c, pixel);
    while (!dense && writer.lane() % 4 != 0) writer.put(first, 0, pixel);
  }
  // What is left of the last block repeats the last pixel; it is written beyond the end of the row.
  while (writer.lane() < blocks * kLanes) writer.put(first, 0, pixel);
  plan.row_bytes = outputs * depth;
  plan.reach = static_cast<std::size_t>(first + plan.pair_step * (plan.pairs - 1) + 16);
}

void build_row_plan(const AxisTable& table, RowPlan& plan) {
  const int pairs = (longest_span(table) + 1) / 2;
  plan.precision = table.precision;
  plan.split = table.precision > 15;
  plan.words_per_output = pairs * (plan.split ? 2 : 1);
  plan.words.resize(table.span.size() * static_cast<std::size_t>(plan.words_per_output));
  std::int32_t* words = plan.words.data();
  for (std::size_t y = 0; y < table.span.size(); ++y)
    words = put_pairs(table.weight.data() + y * static_cast<std::size_t>(table.taps), table.span[y].count, pairs,
                      plan.split, words);
}

// The horizontal pass.

namespace {

PENSTOCK_AVX2 inline __m256i load_two(const std::uint8_t* low, const std::uint8_t* high) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(high));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

PENSTOCK_AVX2 inline __m256i load_words(const std::int32_t* words) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
}

// Sums of the rounding term and the products, shifted down to whole numbers.
template <bool kSplit>
PENSTOCK_AVX2 inline __m256i finish(__m256i high, __m256i low, __m128i shift) {
  if constexpr (kSplit) low = _mm256_add_epi32(low, _mm256_slli_epi32(high, kSplitBits));
  return _mm256_sra_epi32(low, shift);
}

// Where the bytes of a block go: dense blocks whole, of sparse ones the 2 * channels bytes that matter.
struct Output {
  std::uint8_t* dst[4];
  std::size_t row_bytes, step;
  __m128i squeeze;
};

PENSTOCK_AVX2 inline void store_block(const __m256i sum[4], const Output& out, std::size_t at) {
  const __m256i words01 = _mm256_packs_epi32(sum[0], sum[1]), words23 = _mm256_packs_epi32(sum[2], sum[3]);
  const __m256i bytes = _mm256_packus_epi16(words01, words23);
  const __m256i rows = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  __m128i rows01 = _mm256_castsi256_si128(rows), rows23 = _mm256_extracti128_si256(rows, 1);
  if (out.step != kLanes) {
    rows01 = _mm_shuffle_epi8(rows01, out.squeeze);
    rows23 = _mm_shuffle_epi8(rows23, out.squeeze);
  }
  if (at + kLanes <= out.row_bytes) {
    const std::int64_t row[4] = {_mm_cvtsi128_si64(rows01), _mm_extract_epi64(rows01, 1), _mm_cvtsi128_si64(rows23),
                                 _mm_extract_epi64(rows23, 1)};
    for (int r = 0; r < 4; ++r) std::memcpy(out.dst[r] + at, &row[r], kLanes);
    return;
  }
  std::uint8_t tail[32];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tail), rows01);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tail + 16), rows23);
  for (std::size_t r = 0; r < 4; ++r) std::memcpy(out.dst[r] + at, tail + 8 * r, out.row_bytes - at);
}

// kPairs 0 means as many as the plan says.
template <bool kSplit, int kPairs>
PENSTOCK_AVX2 void horizontal_rows(const std::uint8_t* const src[4], const LanePlan& plan,
                                   std::uint8_t* const dst[4]) {
  const int pairs = kPairs ? kPairs : plan.pairs;
  const std::ptrdiff_t next_pair = plan.pair_step;
  const __m256i half = _mm256_set1_epi32(1 << (plan.precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(plan.precision);
  const Output out{{dst[0], dst[1], dst[2], dst[3]}, plan.row_bytes, static_cast<std::size_t>(plan.bytes_per_block),
                   plan.bytes_per_block == 6
                       ? _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, 8, 9, 10, 12, 13, 14, -1, -1)
                       : _mm_setr_epi8(0, 4, -1, -1, -1, -1, -1, -1, 8, 12, -1, -1, -1, -1, -1, -1)};
  const std::uint8_t* const row[4] = {src[0], src[1], src[2], src[3]};  // bytes stored may alias src itself
  const std::int32_t* words = plan.words.data();
  const std::int32_t* offset = plan.offset.data();
  std::size_t at = 0;
  for (int block = 0; block < plan.blocks; ++block, offset += 2, at += out.step) {
    const __m256i shuffle = load_words(words);
    words += kLanes;
    __m256i high[4], low[4];
    for (int r = 0; r < 4; ++r) {
      high[r] = _mm256_setzero_si256();
      low[r] = half;
    }
    std::ptrdiff_t left = offset[0], right = offset[1];
#pragma GCC unroll 4
    for (int p = 0; p < pairs; ++p, left += next_pair, right += next_pair) {
      const __m256i weight_high = load_words(words);
      const __m256i weight_low = kSplit ? load_words(words + kLanes) : weight_high;
      words += kSplit ? 2 * kLanes : kLanes;
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const __m256i pixels = _mm256_shuffle_epi8(load_two(row[r] + left, row[r] + right), shuffle);
        if constexpr (kSplit) high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(pixels, weight_high));
        low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(pixels, weight_low));
      }
    }
    for (int r = 0; r < 4; ++r) low[r] = finish<kSplit>(high[r], low[r], shift);
    store_block(low, out, at);
  }
}

// The vertical pass.

// 32 bytes of `count` rows summed with the pair words of one output. kPairs 0 means as many as count needs.
template <bool kSplit, int kPairs>
PENSTOCK_AVX2 inline __m256i vertical_block(const std::uint8_t* const* rows, int count, const std::int32_t* words,
                                            std::size_t at, __m256i half, __m128i shift) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i high[4], low[4];
  for (int q = 0; q < 4; ++q) {
    high[q] = zero;
    low[q] = half;
  }
  const int pairs = kPairs ? kPairs : (count + 1) / 2;
#pragma GCC unroll 4
  for (int p = 0; p < pairs; ++p) {
    const std::uint8_t* second = rows[2 * p + 1 < count ? 2 * p + 1 : 2 * p];  // its weight is 0 beyond the end
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[2 * p] + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second + at));
    const __m256i ab_low = _mm256_unpacklo_epi8(a, b), ab_high = _mm256_unpackhi_epi8(a, b);
    const __m256i pixels[4] = {_mm256_unpacklo_epi8(ab_low, zero), _mm256_unpackhi_epi8(ab_low, zero),
                               _mm256_unpacklo_epi8(ab_high, zero), _mm256_unpackhi_epi8(ab_high, zero)};
    const __m256i weight_high = _mm256_set1_epi32(words[0]);
    const __m256i weight_low = kSplit ? _mm256_set1_epi32(words[1]) : weight_high;
    words += kSplit ? 2 : 1;
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      if constexpr (kSplit) high[q] = _mm256_add_epi32(high[q], _mm256_madd_epi16(pixels[q], weight_high));
      low[q] = _mm256_add_epi32(low[q], _mm256_madd_epi16(pixels[q], weight_low));
    }
  }
  for (int q = 0; q < 4; ++q) low[q] = finish<kSplit>(high[q], low[q], shift);
  return _mm256_packus_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
}

template <bool kSplit, int kPairs>
PENSTOCK_AVX2 void vertical_row(const std::uint8_t* const* rows, int count, const std::int32_t* words, int precision,
                                std::size_t bytes, std::uint8_t* dst) {
  const __m256i half = _mm256_set1_epi32(1 << (precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(precision);
  std::size_t at = 0;
  for (; at + 32 <= bytes; at += 32)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + at),
                        vertical_block<kSplit, kPairs>(rows, count, words, at, half, shift));
  if (at == bytes) return;
  at = bytes - 32;  // the last block overlaps the one before it
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + at),
                      vertical_block<kSplit, kPairs>(rows, count, words, at, half, shift));
}

}  // namespace

void horizontal_avx2(const std::uint8_t* const src[4], const LanePlan& plan, std::uint8_t* const dst[4]) {
  if (!plan.split) return horizontal_rows<false, 0>(src, plan, dst);
  switch (plan.pairs) {
    case 1: return horizontal_rows<true, 1>(src, plan, dst);
    case 2: return horizontal_rows<true, 2>(src, plan, dst);
    case 3: return horizontal_rows<true, 3>(src, plan, dst);
    default: return horizontal_rows<true, 0>(src, plan, dst);
  }
}

void vertical_avx2(const std::uint8_t* const* rows, int count, const RowPlan& plan, std::size_t output,
                   std::size_t bytes, std::uint8_t* dst) {
  const std::int32_t* words = plan.words.data() + output * static_cast<std::size_t>(plan.words_per_output);
  if (!plan.split) return vertical_row<false, 0>(rows, count, words, plan.precision, bytes, dst);
  switch ((count + 1) / 2) {
    case 1: return vertical_row<true, 1>(rows, count, words, plan.precision, bytes, dst);
    case 2: return vertical_row<true, 2>(rows, count, words, plan.precision, bytes, dst);
    case 3: return vertical_row<true, 3>(rows, count, words, plan.precision, bytes, dst);
    default: return vertical_row<true, 0>(rows, count, words, plan.precision, bytes, dst);
  }
}

}  // namespace penstock

#endif
