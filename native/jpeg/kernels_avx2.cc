#if defined(__x86_64__)

#include <immintrin.h>

#define PENSTOCK_LANES __attribute__((target("avx2")))

#include "jpeg/kernels_vector.h"

namespace penstock::jpeg {
namespace {

// Byte k of stored pixels, taken from the 16 samples of colour `colour`: three times 16 bytes begin with another colour
// each, so that one shuffle a colour puts its samples where all three need them.
constexpr std::array<std::array<std::int8_t, 32>, 3> spread_bytes() {
  std::array<std::array<std::int8_t, 32>, 3> spread{};
  for (int colour = 0; colour < 3; ++colour)
    for (int k = 0; k < 32; ++k) {
      const int third = (colour + 3 - k % 16 % 3) % 3;
      spread[static_cast<std::size_t>(colour)][static_cast<std::size_t>(k)] =
          static_cast<std::int8_t>(packed_at((16 * third + k % 16) / 3));
    }
  return spread;
}

constexpr std::array<std::array<std::int8_t, 32>, 3> byte_masks() {
  std::array<std::array<std::int8_t, 32>, 3> masks{};
  for (std::size_t k = 0; k < 32; ++k) masks[k % 16 % 3][k] = -1;
  return masks;
}

alignas(32) constexpr auto kSpread = spread_bytes();
alignas(32) constexpr auto kMask = byte_masks();

struct Avx2 {
  using Vector = __m256i;
  static constexpr int kBlocks = 2, kPixels = 32;

  PENSTOCK_INLINE static Vector load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  PENSTOCK_INLINE static void store(void* p, Vector v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  PENSTOCK_INLINE static __m128i load_part(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  PENSTOCK_INLINE static Vector widen(const std::uint8_t* p) { return _mm256_cvtepu8_epi16(load_part(p)); }
  PENSTOCK_INLINE static Vector zero() { return _mm256_setzero_si256(); }
  PENSTOCK_INLINE static Vector set16(int v) { return _mm256_set1_epi16(static_cast<short>(v)); }
  PENSTOCK_INLINE static Vector set32(int v) { return _mm256_set1_epi32(v); }

  PENSTOCK_INLINE static Vector load_row(const std::int16_t* row) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_part(row)), load_part(row + 64), 1);
  }
  PENSTOCK_INLINE static Vector load_factors(const std::uint16_t* row) {
    return _mm256_broadcastsi128_si256(load_part(row));
  }
  // Whether any value is outside of [-2^13, 2^13).
  PENSTOCK_INLINE static bool exceeds_14_bits(Vector v) {
    const Vector same = _mm256_cmpeq_epi16(_mm256_srai_epi16(_mm256_slli_epi16(v, 2), 2), v);
    return _mm256_movemask_epi8(same) != -1;
  }
  // Whether of both blocks only the first four values of the first four rows are not 0.
  PENSTOCK_INLINE static bool are_small(const std::int16_t* blocks) {
    const Vector upper = _mm256_or_si256(_mm256_or_si256(load(blocks), load(blocks + 16)),
                                         _mm256_or_si256(load(blocks + 64), load(blocks + 80)));
    const Vector lower = _mm256_or_si256(_mm256_or_si256(load(blocks + 32), load(blocks + 48)),
                                         _mm256_or_si256(load(blocks + 96), load(blocks + 112)));
    const Vector right = _mm256_unpackhi_epi64(upper, upper), rest = _mm256_or_si256(right, lower);
    return _mm256_testz_si256(rest, rest) != 0;
  }

  PENSTOCK_INLINE static Vector add16(Vector a, Vector b) { return _mm256_add_epi16(a, b); }
  PENSTOCK_INLINE static Vector sub16(Vector a, Vector b) { return _mm256_sub_epi16(a, b); }
  PENSTOCK_INLINE static Vector mul16(Vector a, Vector b) { return _mm256_mullo_epi16(a, b); }
  PENSTOCK_INLINE static Vector mul_round15(Vector a, Vector b) { return _mm256_mulhrs_epi16(a, b); }
  PENSTOCK_INLINE static Vector add32(Vector a, Vector b) { return _mm256_add_epi32(a, b); }
  PENSTOCK_INLINE static Vector sub32(Vector a, Vector b) { return _mm256_sub_epi32(a, b); }
  PENSTOCK_INLINE static Vector bit_and(Vector a, Vector b) { return _mm256_and_si256(a, b); }
  template <int kBits>
  PENSTOCK_INLINE static Vector shift_right16(Vector v) { return _mm256_srli_epi16(v, kBits); }
  template <int kBits>
  PENSTOCK_INLINE static Vector shift_right32(Vector v) { return _mm256_srai_epi32(v, kBits); }
  PENSTOCK_INLINE static Vector madd(Vector a, Vector b) { return _mm256_madd_epi16(a, b); }
  PENSTOCK_INLINE static Vector madd_add(Vector sum, Vector a, Vector b) { return add32(sum, madd(a, b)); }
  PENSTOCK_INLINE static void add_and_sub(Vector from, Vector pairs, int first, int second, Vector& sum, Vector& rest) {
    const Vector product = madd(pairs, set32(factors(first, second)));
    sum = add32(from, product);
    rest = sub32(from, product);
  }
  PENSTOCK_INLINE static Vector pack32(Vector a, Vector b) { return _mm256_packs_epi32(a, b); }
  PENSTOCK_INLINE static Vector pack16(Vector a, Vector b) { return _mm256_packs_epi16(a, b); }
  PENSTOCK_INLINE static Vector pack_unsigned16(Vector a, Vector b) { return _mm256_packus_epi16(a, b); }
  PENSTOCK_INLINE static Vector low8(Vector a, Vector b) { return _mm256_unpacklo_epi8(a, b); }
  PENSTOCK_INLINE static Vector high8(Vector a, Vector b) { return _mm256_unpackhi_epi8(a, b); }
  PENSTOCK_INLINE static Vector low16(Vector a, Vector b) { return _mm256_unpacklo_epi16(a, b); }
  PENSTOCK_INLINE static Vector high16(Vector a, Vector b) { return _mm256_unpackhi_epi16(a, b); }
  PENSTOCK_INLINE static Vector low32(Vector a, Vector b) { return _mm256_unpacklo_epi32(a, b); }
  PENSTOCK_INLINE static Vector high32(Vector a, Vector b) { return _mm256_unpackhi_epi32(a, b); }
  PENSTOCK_INLINE static Vector low64(Vector a, Vector b) { return _mm256_unpacklo_epi64(a, b); }
  PENSTOCK_INLINE static Vector high64(Vector a, Vector b) { return _mm256_unpackhi_epi64(a, b); }

  // Two rows of each block, 8 samples each, around 0.
  PENSTOCK_INLINE static void store_rows(Vector rows, std::uint8_t* samples, std::ptrdiff_t stride) {
    const Vector bytes = _mm256_xor_si256(_mm256_permute4x64_epi64(rows, 0xD8), _mm256_set1_epi8(-128));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(samples), _mm256_castsi256_si128(bytes));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(samples + stride), _mm256_extracti128_si256(bytes, 1));
  }

  PENSTOCK_INLINE static Vector blend(Vector a, Vector b, Vector c, Vector second, Vector third) {
    return _mm256_blendv_epi8(_mm256_blendv_epi8(a, b, second), c, third);
  }
  // 32 pixels of which each 128 bits of the colours hold 8 even and 8 odd ones.
  PENSTOCK_INLINE static void store_rgb(Vector red, Vector green, Vector blue, std::uint8_t* out) {
    const Vector second = load(kMask[1].data()), third = load(kMask[2].data());
    const Vector r = _mm256_shuffle_epi8(red, load(kSpread[0].data()));
    const Vector g = _mm256_shuffle_epi8(green, load(kSpread[1].data()));
    const Vector b = _mm256_shuffle_epi8(blue, load(kSpread[2].data()));
    const Vector v0 = blend(r, g, b, second, third), v1 = blend(g, b, r, second, third), v2 = blend(b, r, g, second, third);
    __m256i* const to = reinterpret_cast<__m256i*>(out);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(v0, v1, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(v2, v0, 0x30));
    _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(v1, v2, 0x31));
  }
};

}  // namespace

constinit const Kernels kAvx2Kernels{Transform<Avx2>::run, converters<Avx2, true>(), converters<Avx2, false>(),
                                     grey<Avx2>};

}  // namespace penstock::jpeg

#endif
