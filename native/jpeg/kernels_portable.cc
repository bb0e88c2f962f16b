#include <algorithm>
#include <cstring>

#include "jpeg/kernels.h"

namespace penstock::jpeg {
namespace {

[[nodiscard]] std::int16_t wrap16(std::int32_t value) { return static_cast<std::int16_t>(value); }

[[nodiscard]] std::int16_t saturate16(std::int32_t value) {
  return static_cast<std::int16_t>(std::clamp(value, -32768, 32767));
}

// The factors are constants of 16 bits. Sums wrap at 32 bits.
[[nodiscard]] std::uint32_t times(std::int32_t sample, std::int32_t factor) {
  return static_cast<std::uint32_t>(sample) * static_cast<std::uint32_t>(factor);
}

[[nodiscard]] std::int32_t descale(std::uint32_t sum, int bits) { return static_cast<std::int32_t>(sum) >> bits; }

// One column or row of 8 values, `step` apart, in place.
template <int kShift>
void transform_line(std::int16_t* v, std::size_t step) {
  const std::int32_t in0 = v[0], in1 = v[step], in2 = v[2 * step], in3 = v[3 * step], in4 = v[4 * step],
                     in5 = v[5 * step], in6 = v[6 * step], in7 = v[7 * step];
  constexpr std::uint32_t half = std::uint32_t{1} << (kShift - 1);
  const std::uint32_t sum = times(wrap16(in0 + in4), 1 << kConstBits) + half;
  const std::uint32_t difference = times(wrap16(in0 - in4), 1 << kConstBits) + half;
  const std::uint32_t even2 = times(in2, k0_541) + times(in6, k0_541 - k1_847);
  const std::uint32_t even3 = times(in2, k0_541 + k0_765) + times(in6, k0_541);
  const std::int32_t z3 = wrap16(in3 + in7), z4 = wrap16(in1 + in5);
  const std::uint32_t odd_z3 = times(z3, k1_175 - k1_961) + times(z4, k1_175);
  const std::uint32_t odd_z4 = times(z3, k1_175) + times(z4, k1_175 - k0_390);
  const std::uint32_t odd0 = odd_z3 + times(in7, k0_298 - k0_899) + times(in1, -k0_899);
  const std::uint32_t odd1 = odd_z4 + times(in5, k2_053 - k2_562) + times(in3, -k2_562);
  const std::uint32_t odd2 = odd_z3 + times(in5, -k2_562) + times(in3, k3_072 - k2_562);
  const std::uint32_t odd3 = odd_z4 + times(in7, -k0_899) + times(in1, k1_501 - k0_899);
  v[0] = saturate16(descale(sum + even3 + odd3, kShift));
  v[7 * step] = saturate16(descale(sum + even3 - odd3, kShift));
  v[step] = saturate16(descale(difference + even2 + odd2, kShift));
  v[6 * step] = saturate16(descale(difference + even2 - odd2, kShift));
  v[2 * step] = saturate16(descale(difference - even2 + odd1, kShift));
  v[5 * step] = saturate16(descale(difference - even2 - odd1, kShift));
  v[3 * step] = saturate16(descale(sum - even3 + odd0, kShift));
  v[4 * step] = saturate16(descale(sum - even3 - odd0, kShift));
}

void transform(const std::int16_t* blocks, int count, const QuantisationTable& table, std::uint8_t* samples,
               std::ptrdiff_t stride) {
  for (int b = 0; b < count; ++b) transform_block(blocks + 64 * b, table, samples + 8 * b, stride);
}

// The samples of a pair of pixels, from those of one component.
struct Pair {
  int even, odd;
};

template <Sampling kSampling>
[[nodiscard]] Pair pair_at(const std::uint8_t* nearest, const std::uint8_t* next, int bias, int i) {
  if constexpr (kSampling == Sampling::full) return {nearest[2 * i], nearest[2 * i + 1]};
  if constexpr (kSampling == Sampling::doubled) return {nearest[i], nearest[i]};
  if constexpr (kSampling == Sampling::h1v2)
    return {(3 * nearest[2 * i] + next[2 * i] + bias) >> 2, (3 * nearest[2 * i + 1] + next[2 * i + 1] + bias) >> 2};
  if constexpr (kSampling == Sampling::h2v1)
    return {(3 * nearest[i] + nearest[i - 1] + 1) >> 2, (3 * nearest[i] + nearest[i + 1] + 2) >> 2};
  if constexpr (kSampling == Sampling::h2v2) {
    const int before = 3 * nearest[i - 1] + next[i - 1], here = 3 * nearest[i] + next[i],
              after = 3 * nearest[i + 1] + next[i + 1];
    return {(3 * here + before + 8) >> 4, (3 * here + after + 7) >> 4};
  }
}

[[nodiscard]] std::uint8_t clip8(int value) { return static_cast<std::uint8_t>(std::clamp(value, 0, 255)); }

// jdcolor.c: 2^16 times the factors of JFIF, rounded.
void put_ycc(int y, int blue, int red, std::uint8_t* out) {
  blue -= 128;
  red -= 128;
  constexpr int half = 1 << 15;
  out[0] = clip8(y + ((91881 * red + half) >> 16));
  out[1] = clip8(y + ((-22554 * blue - 46802 * red + half) >> 16));
  out[2] = clip8(y + ((116130 * blue + half) >> 16));
}

template <Sampling kSampling, bool kYcc>
void convert(const SampleRow& row, int pixels, std::uint8_t* rgb) {
  for (int i = 0; 2 * i < pixels; ++i) {
    const Pair second = pair_at<kSampling>(row.nearest[0], row.next[0], row.bias, i);
    const Pair third = pair_at<kSampling>(row.nearest[1], row.next[1], row.bias, i);
    std::uint8_t* const out = rgb + 6 * i;
    if constexpr (kYcc) {
      put_ycc(row.first[2 * i], second.even, third.even, out);
      put_ycc(row.first[2 * i + 1], second.odd, third.odd, out + 3);
    } else {
      out[0] = row.first[2 * i];
      out[1] = static_cast<std::uint8_t>(second.even);
      out[2] = static_cast<std::uint8_t>(third.even);
      out[3] = row.first[2 * i + 1];
      out[4] = static_cast<std::uint8_t>(second.odd);
      out[5] = static_cast<std::uint8_t>(third.odd);
    }
  }
}

void grey(const SampleRow& row, int pixels, std::uint8_t* rgb) {
  for (int i = 0; i < pixels; ++i) std::memset(rgb + 3 * i, row.first[i], 3);
}

template <bool kYcc>
constexpr std::array<Kernels::Convert, 5> kConvert{convert<Sampling::full, kYcc>, convert<Sampling::h2v1, kYcc>,
                                                   convert<Sampling::h1v2, kYcc>, convert<Sampling::h2v2, kYcc>,
                                                   convert<Sampling::doubled, kYcc>};

}  // namespace

void transform_block(const std::int16_t* block, const QuantisationTable& table, std::uint8_t* samples,
                     std::ptrdiff_t stride) noexcept {
  std::array<std::int16_t, 64> v;
  int rest = 0;
  for (std::size_t i = 8; i < 64; ++i) rest |= block[i];
  for (std::size_t i = 0; i < 64; ++i) v[i] = wrap16(block[i] * wrap16(table[i]));
  // Where the first row is all, libjpeg shifts it, which wraps where the general way saturates.
  for (std::size_t x = 0; x < 8; ++x) {
    if (rest != 0)
      transform_line<kConstBits - kPass1Bits>(&v[x], 8);
    else
      for (std::size_t y = 8; y-- > 0;) v[8 * y + x] = wrap16(v[x] * (1 << kPass1Bits));
  }
  for (std::size_t y = 0; y < 8; ++y) {
    transform_line<kConstBits + kPass1Bits + 3>(&v[8 * y], 1);
    std::uint8_t* const out = samples + static_cast<std::ptrdiff_t>(y) * stride;
    for (std::size_t x = 0; x < 8; ++x) out[x] = clip8(v[8 * y + x] + 128);
  }
}

constinit const Kernels kPortableKernels{transform, kConvert<true>, kConvert<false>, grey};

const Kernels* kernels(Instructions instructions) noexcept {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  const bool avx512 = __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                      __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
  switch (instructions) {
    case Instructions::portable: return &kPortableKernels;
    case Instructions::avx2: return avx2 ? &kAvx2Kernels : nullptr;
    case Instructions::avx512: return avx512 ? &kAvx512Kernels : nullptr;
    case Instructions::best: break;
  }
  return avx512 ? &kAvx512Kernels : avx2 ? &kAvx2Kernels : &kPortableKernels;
#else
  return instructions == Instructions::portable || instructions == Instructions::best ? &kPortableKernels : nullptr;
#endif
}

}  // namespace penstock::jpeg
