#include "image/planes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {
namespace {

#if defined(__x86_64__)

// Shuffles that bring channel c of 16 pixels together: its part p takes from bytes 16 p .. 16 p + 15; 0x80 gives
// zero. Sixteen pixels are always split at once; a rest overlaps the block before it.
struct Masks {
  alignas(16) std::uint8_t mask[3][3][16];
};

constexpr Masks masks_for(int channels, bool reversed) {
  Masks masks{};
  for (int c = 0; c < channels; ++c)
    for (int part = 0; part < channels; ++part)
      for (int i = 0; i < 16; ++i) {
        const int byte = channels * (reversed ? 15 - i : i) + c - 16 * part;
        masks.mask[c][part][i] = byte >= 0 && byte < 16 ? static_cast<std::uint8_t>(byte) : std::uint8_t{0x80};
      }
  return masks;
}

template <int C, bool Reversed>
constexpr Masks kMasks = masks_for(C, Reversed);

struct Cpu {
  bool ssse3, avx2_fma;
};

const Cpu kCpu = [] {
  __builtin_cpu_init();
  return Cpu{__builtin_cpu_supports("ssse3") != 0,
             __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0};
}();

// The 16 bytes of channel c among C * 16 interleaved ones.
template <int C, bool Reversed>
__attribute__((target("ssse3"), always_inline)) inline __m128i channel(const std::uint8_t* pixels, int c) {
  __m128i plane = _mm_setzero_si128();
  for (int part = 0; part < C; ++part) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixels + 16 * part));
    const __m128i mask = _mm_load_si128(reinterpret_cast<const __m128i*>(kMasks<C, Reversed>.mask[c][part]));
    plane = _mm_or_si128(plane, _mm_shuffle_epi8(bytes, mask));
  }
  return plane;
}

template <int C, bool Reversed>
__attribute__((target("ssse3"))) void split_ssse3(const std::uint8_t* src, int count, const Planes<std::uint8_t>& dst) {
  for (int i = 0;;) {
    const int at = Reversed ? count - 16 - i : i;
    for (int c = 0; c < C; ++c)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst[static_cast<std::size_t>(c)] + at),
                       channel<C, Reversed>(src + std::ptrdiff_t{C} * i, c));
    if (i == count - 16) return;
    i = i + 32 <= count ? i + 16 : count - 16;
  }
}

// Bytes at and after dst, in blocks of 16 of which the last one overlaps the one before it.
__attribute__((target("ssse3"))) void narrow_ssse3(const NarrowPlane& plane, std::uint8_t* dst) {
  constexpr int kBlocks = NarrowPlane::kMost / 16;
  constexpr int kMargin = NarrowPlane::kMost + 16;
  const int width = plane.left + plane.columns + plane.right;
  const int blocks = (width + 15) / 16;
  const __m128i fill = _mm_set1_epi8(static_cast<char>(plane.fill));
  const __m128i turn = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m128i keep = _mm_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m128i order = plane.reversed ? turn : keep;
  // Per block: where it begins in the result, where its bytes lie from `first`, which of them are source bytes.
  std::array<int, kBlocks> at;
  std::array<std::ptrdiff_t, kBlocks> from;
  __m128i inside[kBlocks], outside[kBlocks];  // no std::array: GCC warns of a vector type as its argument
  std::ptrdiff_t lowest = 0, highest = 0;
  for (int b = 0; b < blocks; ++b) {
    const auto k = static_cast<std::size_t>(b);
    at[k] = std::min(16 * b, width - 16);
    from[k] = plane.reversed ? plane.columns - 16 - (at[k] - plane.left) : at[k] - plane.left;
    alignas(16) std::array<std::uint8_t, 16> mask;
    for (int i = 0; i < 16; ++i)
      mask[static_cast<std::size_t>(i)] =
          at[k] + i >= plane.left && at[k] + i < plane.left + plane.columns ? std::uint8_t{255} : std::uint8_t{0};
    inside[k] = _mm_load_si128(reinterpret_cast<const __m128i*>(mask.data()));
    outside[k] = _mm_andnot_si128(inside[k], fill);
    lowest = std::min(lowest, from[k]);
    highest = std::max(highest, from[k] + 16);
  }
  const auto blank = [&](int count) {
    for (int i = 0; i < count; ++i, dst += width)
      for (int b = 0; b < blocks; ++b)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + at[static_cast<std::size_t>(b)]), fill);
  };
  blank(plane.above);
  const std::uint8_t* row = plane.first;
  for (int i = 0; i < plane.rows; ++i, row += plane.stride, dst += width) {
    std::array<std::uint8_t, NarrowPlane::kMost + 2 * kMargin> copy;  // of a row at an end of what may be read
    const std::uint8_t* source = row;
    if (lowest < plane.begin - row || highest > plane.end - row) {
      copy.fill(0);
      std::memcpy(copy.data() + kMargin, row, static_cast<std::size_t>(plane.columns));
      source = copy.data() + kMargin;
    }
    for (int b = 0; b < blocks; ++b) {
      const auto k = static_cast<std::size_t>(b);
      const __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + from[k])), order);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + at[k]),
                       _mm_or_si128(_mm_and_si128(bytes, inside[k]), outside[k]));
    }
  }
  blank(plane.below);
}

// The constants of one channel, in every lane.
struct Terms {
  __m256 scale, whole;        // x = v * scale, or v / whole
  __m256 mean, std, inverse;  // inverse = 1 / std
};

// Eight elements: the quotient x / d is the rounded x * (1/d), corrected by its exact remainder.
template <bool Divides, bool Normalises>
__attribute__((target("avx2,fma"), always_inline)) inline __m256 elements(__m128i eight_bytes, const Terms& terms) {
  const __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight_bytes));
  __m256 x = _mm256_mul_ps(v, terms.scale);
  asm("" : "+x"(x));  // the product is rounded: GCC would fuse it with the subtraction below
  if constexpr (Divides) x = _mm256_fmadd_ps(_mm256_fnmadd_ps(x, terms.whole, v), terms.scale, x);
  if constexpr (Normalises) {
    const __m256 centred = _mm256_sub_ps(x, terms.mean), quotient = _mm256_mul_ps(centred, terms.inverse);
    x = _mm256_fmadd_ps(_mm256_fnmadd_ps(quotient, terms.std, centred), terms.inverse, quotient);
  }
  return x;
}

// Eight pixels of three channels at once, to interleaved elements; a rest overlaps the pixels before it. Part k of their
// 24 elements are lanes of channels 8 k % 3 and so on.
template <bool Reversed, bool Divides, bool Normalises>
__attribute__((target("avx2,fma"))) void pixels_avx2(const std::uint8_t* src, int count, float scale,
                                                     const StandardTerms& given, float* dst) {
  constexpr int kPixels = Standard::kLeastPixels;
  // Where part k reads, and which of the 16 bytes from there on its elements are, the last pixel first.
  constexpr int kFrom[3] = {8, 6, 0};
  constexpr std::int8_t kOrder[3][8] = {
      {13, 14, 15, 10, 11, 12, 7, 8}, {11, 6, 7, 8, 3, 4, 5, 0}, {7, 8, 3, 4, 5, 0, 1, 2}};
  Terms terms[3];
  __m128i order[3];
  for (int k = 0; k < 3; ++k) {
    alignas(32) float mean[8], std[8], inverse[8];
    for (int lane = 0; lane < 8; ++lane) {
      const auto c = static_cast<std::size_t>((8 * k + lane) % 3);
      mean[lane] = given.mean[c];
      std[lane] = given.std[c];
      inverse[lane] = given.inverse[c];
    }
    terms[k] = {_mm256_set1_ps(scale), _mm256_set1_ps(255.0f), _mm256_load_ps(mean), _mm256_load_ps(std),
                _mm256_load_ps(inverse)};
    order[k] = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kOrder[k]));
  }
  for (int done = 0; done < count; done += kPixels) {
    const int at = std::min(done, count - kPixels);
    const std::uint8_t* const from = src + 3 * std::ptrdiff_t{Reversed ? count - kPixels - at : at};
    for (int k = 0; k < 3; ++k) {
      const __m128i bytes =
          Reversed ? _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + kFrom[k])), order[k])
                   : _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * k));
      _mm256_storeu_ps(dst + 3 * std::ptrdiff_t{at} + 8 * k, elements<Divides, Normalises>(bytes, terms[k]));
    }
  }
}

// One plane after the other: its constants and shuffles stay in registers.
template <int C, bool Reversed, bool Divides, bool Normalises>
__attribute__((target("avx2,fma"))) void standard_avx2(const std::uint8_t* src, int count, float scale,
                                                       const StandardTerms& of, const Planes<float>& dst) {
  for (int c = 0; c < C; ++c) {
    const auto k = static_cast<std::size_t>(c);
    const Terms terms{_mm256_set1_ps(scale), _mm256_set1_ps(255.0f), _mm256_set1_ps(of.mean[k]),
                      _mm256_set1_ps(of.std[k]), _mm256_set1_ps(of.inverse[k])};
    for (int i = 0;;) {
      const __m128i bytes = channel<C, Reversed>(src + std::ptrdiff_t{C} * i, c);
      float* const out = dst[k] + (Reversed ? count - 16 - i : i);
      _mm256_storeu_ps(out, elements<Divides, Normalises>(bytes, terms));
      _mm256_storeu_ps(out + 8, elements<Divides, Normalises>(_mm_srli_si128(bytes, 8), terms));
      if (i == count - 16) break;
      i = i + 32 <= count ? i + 16 : count - 16;
    }
  }
}

#endif

void split_scalar(const std::uint8_t* src, int count, int channels, bool reversed, const Planes<std::uint8_t>& dst) {
  for (int i = 0; i < count; ++i, src += channels) {
    const int at = reversed ? count - 1 - i : i;
    for (int c = 0; c < channels; ++c) dst[static_cast<std::size_t>(c)][at] = src[c];
  }
}

// `x` moved by `steps` representable numbers.
float moved(float x, int steps) {
  const float towards = steps < 0 ? -INFINITY : INFINITY;
  for (int i = 0; i < std::abs(steps); ++i) x = std::nextafter(x, towards);
  return x;
}

}  // namespace

void split_planes(const std::uint8_t* src, int count, int channels, bool reversed, const Planes<std::uint8_t>& dst) {
  if (channels == 1 && !reversed) {
    std::memcpy(dst[0], src, static_cast<std::size_t>(count));
    return;
  }
#if defined(__x86_64__)
  if (count >= 16 && kCpu.ssse3) {
    if (channels == 1) return split_ssse3<1, true>(src, count, dst);
    return reversed ? split_ssse3<3, true>(src, count, dst) : split_ssse3<3, false>(src, count, dst);
  }
#endif
  split_scalar(src, count, channels, reversed, dst);
}

bool copy_narrow(const NarrowPlane& plane, std::uint8_t* dst) {
#if defined(__x86_64__)
  if (kCpu.ssse3) {
    narrow_ssse3(plane, dst);
    return true;
  }
#endif
  static_cast<void>(plane);
  static_cast<void>(dst);
  return false;
}

Standard Standard::of_channel(int channel) const {
  Standard alone = *this;
  const auto c = static_cast<std::size_t>(channel);
  alone.terms_.mean[0] = terms_.mean[c];
  alone.terms_.std[0] = terms_.std[c];
  alone.terms_.inverse[0] = terms_.inverse[c];
  return alone;
}

#if defined(__x86_64__)

void Standard::planes(const std::uint8_t* src, int count, int channels, bool reversed, const Planes<float>& dst) const {
  const auto run = [&]<int C, bool Reversed>() {
    if (divides_) {
      if (normalises_) return standard_avx2<C, Reversed, true, true>(src, count, scale_, terms_, dst);
      return standard_avx2<C, Reversed, true, false>(src, count, scale_, terms_, dst);
    }
    if (normalises_) return standard_avx2<C, Reversed, false, true>(src, count, scale_, terms_, dst);
    return standard_avx2<C, Reversed, false, false>(src, count, scale_, terms_, dst);
  };
  if (channels == 1) {
    reversed ? run.template operator()<1, true>() : run.template operator()<1, false>();
  } else {
    reversed ? run.template operator()<3, true>() : run.template operator()<3, false>();
  }
}

void Standard::pixels(const std::uint8_t* src, int count, bool reversed, float* dst) const {
  const auto run = [&]<bool Reversed>() {
    if (divides_) {
      if (normalises_) return pixels_avx2<Reversed, true, true>(src, count, scale_, terms_, dst);
      return pixels_avx2<Reversed, true, false>(src, count, scale_, terms_, dst);
    }
    if (normalises_) return pixels_avx2<Reversed, false, true>(src, count, scale_, terms_, dst);
    return pixels_avx2<Reversed, false, false>(src, count, scale_, terms_, dst);
  };
  reversed ? run.template operator()<true>() : run.template operator()<false>();
}

bool Standard::fit(const std::vector<float>& table, int channels) {
  if (!kCpu.avx2_fma) return false;
  constexpr float kStep = 1.0f / 255.0f;
  return fit_scale(table, channels, kStep, true) || fit_scale(table, channels, kStep, false) ||
         fit_scale(table, channels, 1.0f, false);
}

bool Standard::fit_scale(const std::vector<float>& table, int channels, float scale, bool divides) {
  scale_ = scale;
  divides_ = divides;
  normalises_ = false;
  bool fits = true;
  for (int c = 0; c < channels && fits; ++c) fits = same(table.data() + 256 * c, 0);
  if (fits) return true;
  normalises_ = true;
  for (int c = 0; c < channels; ++c)
    if (!fit_channel(table.data() + 256 * c, c)) return false;
  return true;
}

// Looks for mean and std near those that the ends of the table give.
bool Standard::fit_channel(const float* table, int channel) {
  constexpr int kReach = 8;  // rounding moves them by less, unless mean is far outside the range of x
  const auto c = static_cast<std::size_t>(channel);
  const double span = static_cast<double>(table[255]) - table[0];
  const double last = divides_ || scale_ != 1.0f ? 1.0 : 255.0;
  const auto near_std = static_cast<float>(last / span);
  if (!std::isnormal(near_std)) return false;
  for (int i = -kReach; i <= kReach; ++i) {
    terms_.std[c] = moved(near_std, i);
    terms_.inverse[c] = 1.0f / terms_.std[c];
    const auto near_mean = static_cast<float>(-static_cast<double>(table[0]) * terms_.std[c]);
    for (int j = -kReach; j <= kReach; ++j) {
      terms_.mean[c] = moved(near_mean, j);
      if ((0.0f - terms_.mean[c]) / terms_.std[c] == table[0] && same(table, channel)) return true;
    }
  }
  return false;
}

// Whether the arithmetic with this channel's terms gives its 256 elements.
bool Standard::same(const float* table, int channel) const {
  std::array<std::uint8_t, 256> ramp;
  std::array<float, 256> got;
  for (std::size_t v = 0; v < 256; ++v) ramp[v] = static_cast<std::uint8_t>(v);
  of_channel(channel).planes(ramp.data(), 256, 1, false, {got.data()});
  return std::memcmp(got.data(), table, sizeof got) == 0;
}

#else

bool Standard::fit(const std::vector<float>&, int) { return false; }
void Standard::planes(const std::uint8_t*, int, int, bool, const Planes<float>&) const {}
void Standard::pixels(const std::uint8_t*, int, bool, float*) const {}

#endif

}  // namespace penstock
