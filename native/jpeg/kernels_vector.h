// The kernels in vectors, for a class of lanes that names the instructions: included by one file an instruction set, which
// defines PENSTOCK_LANES as the attribute of functions that may use them.
//
// A vector holds one row (or column) of 8 values of 16 bits for each of several blocks, a block in each 128 bits of it:
// all shuffles stay within 128 bits. Of pixels it holds the even ones and the odd ones apart, in two vectors of 16 bits.
//
// Threads and memory: as kernels.h says.
#pragma once

#include "jpeg/kernels.h"

#define PENSTOCK_INLINE PENSTOCK_LANES inline __attribute__((always_inline))

namespace penstock::jpeg {
namespace {

// Two factors of 16 bits, for values that lie side by side.
constexpr int factors(int first, int second) {
  return static_cast<int>((static_cast<unsigned>(second) << 16) | (static_cast<unsigned>(first) & 0xFFFFU));
}

template <class L>
struct Transform {
  using V = typename L::Vector;

  template <bool kHigh>
  PENSTOCK_INLINE static V interleave(V a, V b) {
    if constexpr (kHigh) return L::high16(a, b);
    else return L::low16(a, b);
  }

  // A sample times 2^13, and half of what the shift takes off: 2^(kShift - 1) as a product of 16-bit factors.
  template <int kShift>
  struct Scale {
    static constexpr int kUnit = kShift > 16 ? 8 : 1;
    static constexpr int kFactors = factors(1 << kConstBits, (1 << (kShift - 1)) / kUnit);
  };

  template <int kShift>
  PENSTOCK_INLINE static void finish(V even, V odd, V& first, V& last) {
    first = L::template shift_right32<kShift>(L::add32(even, odd));
    last = L::template shift_right32<kShift>(L::sub32(even, odd));
  }

  // Four of the eight columns of a pass. The terms are those of jsimd_idct_islow.
  template <int kShift, bool kHigh>
  PENSTOCK_INLINE static void half_pass(const V (&in)[8], V sum, V difference, V z3, V z4, V (&out)[8]) {
    const V unit = L::set16(Scale<kShift>::kUnit), scale = L::set32(Scale<kShift>::kFactors);
    const V in26 = interleave<kHigh>(in[2], in[6]);
    V even0, even1, even2, even3;
    L::add_and_sub(L::madd(interleave<kHigh>(sum, unit), scale), in26, k0_541 + k0_765, k0_541, even0, even3);
    L::add_and_sub(L::madd(interleave<kHigh>(difference, unit), scale), in26, k0_541, k0_541 - k1_847, even1, even2);
    const V z34 = interleave<kHigh>(z3, z4);
    const V odd_z3 = L::madd(z34, L::set32(factors(k1_175 - k1_961, k1_175)));
    const V odd_z4 = L::madd(z34, L::set32(factors(k1_175, k1_175 - k0_390)));
    const V in71 = interleave<kHigh>(in[7], in[1]), in53 = interleave<kHigh>(in[5], in[3]);
    finish<kShift>(even0, L::madd_add(odd_z4, in71, L::set32(factors(-k0_899, k1_501 - k0_899))), out[0], out[7]);
    finish<kShift>(even1, L::madd_add(odd_z3, in53, L::set32(factors(-k2_562, k3_072 - k2_562))), out[1], out[6]);
    finish<kShift>(even2, L::madd_add(odd_z4, in53, L::set32(factors(k2_053 - k2_562, -k2_562))), out[2], out[5]);
    finish<kShift>(even3, L::madd_add(odd_z3, in71, L::set32(factors(k0_298 - k0_899, -k0_899))), out[3], out[4]);
  }

  template <int kShift>
  PENSTOCK_INLINE static void pass(V (&v)[8]) {
    const V sum = L::add16(v[0], v[4]), difference = L::sub16(v[0], v[4]);
    const V z3 = L::add16(v[3], v[7]), z4 = L::add16(v[1], v[5]);
    V low[8], high[8];
    half_pass<kShift, false>(v, sum, difference, z3, z4, low);
    half_pass<kShift, true>(v, sum, difference, z3, z4, high);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = L::pack32(low[i], high[i]);
  }

  // The same where values 4 to 7 are 0: the terms of values 1 and 3 are added up beforehand.
  template <int kShift, bool kHigh>
  PENSTOCK_INLINE static void small_half_pass(const V (&in)[8], V (&out)[8]) {
    const V unit = L::set16(Scale<kShift>::kUnit), scale = L::set32(Scale<kShift>::kFactors);
    const V first = L::madd(interleave<kHigh>(in[0], unit), scale), in2 = interleave<kHigh>(in[2], L::zero());
    V even0, even1, even2, even3;
    L::add_and_sub(first, in2, k0_541 + k0_765, 0, even0, even3);
    L::add_and_sub(first, in2, k0_541, 0, even1, even2);
    const V in31 = interleave<kHigh>(in[3], in[1]);
    finish<kShift>(even0, L::madd(in31, L::set32(factors(k1_175, k1_175 - k0_390 + k1_501 - k0_899))), out[0], out[7]);
    finish<kShift>(even1, L::madd(in31, L::set32(factors(k1_175 - k1_961 + k3_072 - k2_562, k1_175))), out[1], out[6]);
    finish<kShift>(even2, L::madd(in31, L::set32(factors(k1_175 - k2_562, k1_175 - k0_390))), out[2], out[5]);
    finish<kShift>(even3, L::madd(in31, L::set32(factors(k1_175 - k1_961, k1_175 - k0_899))), out[3], out[4]);
  }

  // Rows become columns.
  PENSTOCK_INLINE static void transpose(V (&v)[8]) {
    V a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = L::low16(v[2 * i], v[2 * i + 1]);
      a[2 * i + 1] = L::high16(v[2 * i], v[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      b[i] = L::low32(a[i], a[i + 2]);
      b[i + 1] = L::high32(a[i], a[i + 2]);
      b[i + 2] = L::low32(a[i + 1], a[i + 3]);
      b[i + 3] = L::high32(a[i + 1], a[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = L::low64(b[i], b[i + 4]);
      v[2 * i + 1] = L::high64(b[i], b[i + 4]);
    }
  }

  // Two passes where only the first four rows and columns hold values: the first has four columns to do.
  PENSTOCK_INLINE static void small_passes(V (&v)[8]) {
    V out[8], rows[4], mixed[4];
    small_half_pass<kConstBits - kPass1Bits, false>(v, out);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) rows[i] = L::pack32(out[2 * i], out[2 * i + 1]);
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
      const V even = L::low16(rows[i], rows[i + 1]), odd = L::high16(rows[i], rows[i + 1]);
      mixed[i] = L::low16(even, odd);
      mixed[i + 1] = L::high16(even, odd);
    }
    v[0] = L::low64(mixed[0], mixed[2]);
    v[1] = L::high64(mixed[0], mixed[2]);
    v[2] = L::low64(mixed[1], mixed[3]);
    v[3] = L::high64(mixed[1], mixed[3]);
    V low[8], high[8];
    small_half_pass<kConstBits + kPass1Bits + 3, false>(v, low);
    small_half_pass<kConstBits + kPass1Bits + 3, true>(v, high);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = L::pack32(low[i], high[i]);
  }

  // Columns of samples around 0 become rows of bytes around 128.
  PENSTOCK_INLINE static void store(const V (&v)[8], std::uint8_t* samples, std::ptrdiff_t stride) {
    const V c02 = L::pack16(v[0], v[2]), c13 = L::pack16(v[1], v[3]);
    const V c46 = L::pack16(v[4], v[6]), c57 = L::pack16(v[5], v[7]);
    const V c01 = L::low8(c02, c13), c23 = L::high8(c02, c13), c45 = L::low8(c46, c57), c67 = L::high8(c46, c57);
    const V left0 = L::low16(c01, c23), left4 = L::high16(c01, c23);
    const V right0 = L::low16(c45, c67), right4 = L::high16(c45, c67);
    L::store_rows(L::low32(left0, right0), samples, stride);
    L::store_rows(L::high32(left0, right0), samples + 2 * stride, stride);
    L::store_rows(L::low32(left4, right4), samples + 4 * stride, stride);
    L::store_rows(L::high32(left4, right4), samples + 6 * stride, stride);
  }

  PENSTOCK_LANES static void run(const std::int16_t* blocks, int count, const QuantisationTable& table,
                                 std::uint8_t* samples, std::ptrdiff_t stride) {
    for (int b = 0; b < count; b += L::kBlocks, blocks += 64 * L::kBlocks, samples += 8 * L::kBlocks) {
      V v[8];
      v[0] = L::mul16(L::load_row(blocks), L::load_factors(&table[0]));
      if (L::exceeds_14_bits(v[0])) [[unlikely]] {
        for (int i = 0; i < L::kBlocks; ++i) transform_block(blocks + 64 * i, table, samples + 8 * i, stride);
        continue;
      }
      const bool small = L::are_small(blocks);
#pragma GCC unroll 3
      for (std::size_t i = 1; i < 4; ++i) v[i] = L::mul16(L::load_row(blocks + 8 * i), L::load_factors(&table[8 * i]));
      if (small) {
        small_passes(v);
      } else {
#pragma GCC unroll 4
        for (std::size_t i = 4; i < 8; ++i)
          v[i] = L::mul16(L::load_row(blocks + 8 * i), L::load_factors(&table[8 * i]));
        pass<kConstBits - kPass1Bits>(v);
        transpose(v);
        pass<kConstBits + kPass1Bits + 3>(v);
      }
      store(v, samples, stride);
    }
  }
};

// The even and the odd pixels of some neighbours.
template <class L>
struct Pixels {
  typename L::Vector even, odd;
};

template <class L>
PENSTOCK_INLINE Pixels<L> split(const std::uint8_t* samples) {
  const auto bytes = L::load(samples);
  return {L::bit_and(bytes, L::set16(255)), L::template shift_right16<8>(bytes)};
}

template <class L>
PENSTOCK_INLINE typename L::Vector triple(typename L::Vector v) {
  return L::add16(v, L::add16(v, v));
}

// Of h2v2: three parts of the nearest row and one of the next, for some samples and one on each side.
template <class L>
struct ColumnSums {
  static constexpr int kPixels = 256, kMargin = 64;
  alignas(64) std::array<std::int16_t, kPixels / 2 + 2 * kMargin> sums;

  PENSTOCK_INLINE void add_up(const std::uint8_t* nearest, const std::uint8_t* next, int pixels) {
    std::int16_t* const out = sums.data() + kMargin;
    for (int i = -1; i <= pixels / 2; i += L::kPixels / 2)
      L::store(out + i, L::add16(triple<L>(L::widen(nearest + i)), L::widen(next + i)));
  }
  PENSTOCK_INLINE Pixels<L> upsample(int i) const {
    const std::int16_t* const at = sums.data() + kMargin + i / 2;
    const auto here = triple<L>(L::load(at));
    return {L::template shift_right16<4>(L::add16(L::add16(here, L::load(at - 1)), L::set16(8))),
            L::template shift_right16<4>(L::add16(L::add16(here, L::load(at + 1)), L::set16(7)))};
  }
};

// The samples of a component that belong to pixels i, i + 1, ... of a row.
template <class L, Sampling kSampling>
PENSTOCK_INLINE Pixels<L> upsample(const std::uint8_t* nearest, const std::uint8_t* next, int bias, int i) {
  using V = typename L::Vector;
  if constexpr (kSampling == Sampling::full) return split<L>(nearest + i);
  if constexpr (kSampling == Sampling::h1v2) {
    const Pixels<L> near = split<L>(nearest + i), far = split<L>(next + i);
    const V round = L::set16(bias);
    return {L::template shift_right16<2>(L::add16(L::add16(triple<L>(near.even), far.even), round)),
            L::template shift_right16<2>(L::add16(L::add16(triple<L>(near.odd), far.odd), round))};
  }
  if constexpr (kSampling == Sampling::h2v1) {
    const std::uint8_t* const at = nearest + i / 2;
    const V here = triple<L>(L::widen(at));
    return {L::template shift_right16<2>(L::add16(L::add16(here, L::widen(at - 1)), L::set16(1))),
            L::template shift_right16<2>(L::add16(L::add16(here, L::widen(at + 1)), L::set16(2)))};
  }
}

template <class L>
struct Rgb {
  typename L::Vector red, green, blue;
};

// The factors of jdcolor.c: what is over a whole is added apart. Rounding products to 15 bits gives the same for all 256
// values, and so it does not for green, which sums two of them.
template <class L>
PENSTOCK_INLINE Rgb<L> from_ycc(typename L::Vector y, typename L::Vector cb, typename L::Vector cr) {
  using V = typename L::Vector;
  const V centre = L::set16(128);
  cb = L::sub16(cb, centre);
  cr = L::sub16(cr, centre);
  const V red = L::add16(L::mul_round15(cr, L::set16(13175)), cr);
  const V blue = L::add16(L::mul_round15(cb, L::set16(-7471)), L::add16(cb, cb));
  const V green_factors = L::set32(factors(-22554, 65536 - 46802)), half = L::set32(1 << 15);
  const V low = L::madd_add(half, L::low16(cb, cr), green_factors);
  const V high = L::madd_add(half, L::high16(cb, cr), green_factors);
  const V green = L::sub16(L::pack32(L::template shift_right32<16>(low), L::template shift_right32<16>(high)), cr);
  return {L::add16(y, red), L::add16(y, green), L::add16(y, blue)};
}

template <class L, bool kYcc>
PENSTOCK_INLINE void store_pixels(const Pixels<L>& a, const Pixels<L>& b, const Pixels<L>& c, std::uint8_t* rgb) {
  Rgb<L> even{a.even, b.even, c.even}, odd{a.odd, b.odd, c.odd};
  if constexpr (kYcc) {
    even = from_ycc<L>(a.even, b.even, c.even);
    odd = from_ycc<L>(a.odd, b.odd, c.odd);
  }
  L::store_rgb(L::pack_unsigned16(even.red, odd.red), L::pack_unsigned16(even.green, odd.green),
               L::pack_unsigned16(even.blue, odd.blue), rgb);
}

template <class L, Sampling kSampling, bool kYcc>
PENSTOCK_LANES void convert(const SampleRow& row, int pixels, std::uint8_t* rgb) {
  const std::uint8_t* const nearest[2] = {row.nearest[0], row.nearest[1]};  // bytes stored may alias the row itself
  const std::uint8_t* const next[2] = {row.next[0], row.next[1]};
  const std::uint8_t* const first = row.first;
  const int bias = row.bias;
  for (int i = 0; i < pixels; i += L::kPixels)
    store_pixels<L, kYcc>(split<L>(first + i), upsample<L, kSampling>(nearest[0], next[0], bias, i),
                          upsample<L, kSampling>(nearest[1], next[1], bias, i), rgb + 3 * i);
}

template <class L, bool kYcc>
PENSTOCK_LANES void convert_h2v2(const SampleRow& row, int pixels, std::uint8_t* rgb) {
  ColumnSums<L> b, c;
  const SampleRow from = row;  // bytes stored may alias the row itself
  for (int start = 0; start < pixels; start += b.kPixels) {
    const int count = pixels - start < b.kPixels ? pixels - start : b.kPixels;
    b.add_up(from.nearest[0] + start / 2, from.next[0] + start / 2, count);
    c.add_up(from.nearest[1] + start / 2, from.next[1] + start / 2, count);
    for (int i = 0; i < count; i += L::kPixels)
      store_pixels<L, kYcc>(split<L>(from.first + start + i), b.upsample(i), c.upsample(i), rgb + 3 * (start + i));
  }
}

template <class L>
PENSTOCK_LANES void grey(const SampleRow& row, int pixels, std::uint8_t* rgb) {
  const std::uint8_t* const first = row.first;
  for (int i = 0; i < pixels; i += L::kPixels) {
    const Pixels<L> a = split<L>(first + i);
    const typename L::Vector bytes = L::pack_unsigned16(a.even, a.odd);
    L::store_rgb(bytes, bytes, bytes, rgb + 3 * i);
  }
}

// Images of so few columns that samples are doubled are not worth a vector.
template <class L, bool kYcc>
constexpr std::array<Kernels::Convert, 5> converters() {
  return {convert<L, Sampling::full, kYcc>, convert<L, Sampling::h2v1, kYcc>, convert<L, Sampling::h1v2, kYcc>,
          convert_h2v2<L, kYcc>, nullptr};
}

// Where byte `k` of pixels that are stored as red, green, blue, ... lies among 16 packed even and odd samples.
constexpr int packed_at(int pixel) { return pixel / 16 * 16 + (pixel % 2 != 0 ? 8 : 0) + pixel % 16 / 2; }

}  // namespace
}  // namespace penstock::jpeg
