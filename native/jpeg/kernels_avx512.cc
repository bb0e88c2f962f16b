#if defined(__x86_64__)

#include <immintrin.h>

// g++ 11 and 12 take the undefined vectors of their header for mistakes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define PENSTOCK_LANES __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))

#include "jpeg/kernels_vector.h"

namespace penstock::jpeg {
namespace {

// Where the bytes of 64 stored pixels lie, 64 bytes at a time: red or green, of two vectors; and blue.
struct ByteOrder {
  alignas(64) std::array<std::array<std::uint8_t, 64>, 3> red_green{};
  alignas(64) std::array<std::array<std::uint8_t, 64>, 3> blue{};
  std::array<std::uint64_t, 3> is_blue{};
};

constexpr ByteOrder byte_order() {
  ByteOrder order;
  for (std::size_t part = 0; part < 3; ++part)
    for (std::size_t k = 0; k < 64; ++k) {
      const std::size_t byte = 64 * part + k, colour = byte % 3;
      const int at = packed_at(static_cast<int>(byte / 3));
      order.red_green[part][k] = static_cast<std::uint8_t>(colour == 1 ? 64 + at : at);
      order.blue[part][k] = static_cast<std::uint8_t>(at);
      if (colour == 2) order.is_blue[part] |= std::uint64_t{1} << k;
    }
  return order;
}

constexpr ByteOrder kOrder = byte_order();

struct Avx512 {
  using Vector = __m512i;
  static constexpr int kBlocks = 4, kPixels = 64;

  PENSTOCK_INLINE static Vector load(const void* p) { return _mm512_loadu_si512(p); }
  PENSTOCK_INLINE static void store(void* p, Vector v) { _mm512_storeu_si512(p, v); }
  PENSTOCK_INLINE static __m128i load_part(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  PENSTOCK_INLINE static Vector widen(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  PENSTOCK_INLINE static Vector zero() { return _mm512_setzero_si512(); }
  PENSTOCK_INLINE static Vector set16(int v) { return _mm512_set1_epi16(static_cast<short>(v)); }
  PENSTOCK_INLINE static Vector set32(int v) { return _mm512_set1_epi32(v); }

  PENSTOCK_INLINE static Vector load_row(const std::int16_t* row) {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load_part(row)), load_part(row + 64), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(load_part(row + 128)), load_part(row + 192), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  PENSTOCK_INLINE static Vector load_factors(const std::uint16_t* row) {
    return _mm512_broadcast_i32x4(load_part(row));
  }
  // Whether any value is outside of [-2^13, 2^13).
  PENSTOCK_INLINE static bool exceeds_14_bits(Vector v) {
    return _mm512_cmpneq_epi16_mask(_mm512_srai_epi16(_mm512_slli_epi16(v, 2), 2), v) != 0;
  }
  // Whether of all four blocks only the first four values of the first four rows are not 0.
  PENSTOCK_INLINE static bool are_small(const std::int16_t* blocks) {
    const Vector upper = _mm512_or_si512(_mm512_or_si512(load(blocks), load(blocks + 64)),
                                         _mm512_or_si512(load(blocks + 128), load(blocks + 192)));
    const Vector lower = _mm512_or_si512(_mm512_or_si512(load(blocks + 32), load(blocks + 96)),
                                         _mm512_or_si512(load(blocks + 160), load(blocks + 224)));
    return (_mm512_test_epi64_mask(upper, upper) & 0xAA) == 0 && _mm512_test_epi64_mask(lower, lower) == 0;
  }

  PENSTOCK_INLINE static Vector add16(Vector a, Vector b) { return _mm512_add_epi16(a, b); }
  PENSTOCK_INLINE static Vector sub16(Vector a, Vector b) { return _mm512_sub_epi16(a, b); }
  PENSTOCK_INLINE static Vector mul16(Vector a, Vector b) { return _mm512_mullo_epi16(a, b); }
  PENSTOCK_INLINE static Vector mul_round15(Vector a, Vector b) { return _mm512_mulhrs_epi16(a, b); }
  PENSTOCK_INLINE static Vector add32(Vector a, Vector b) { return _mm512_add_epi32(a, b); }
  PENSTOCK_INLINE static Vector sub32(Vector a, Vector b) { return _mm512_sub_epi32(a, b); }
  PENSTOCK_INLINE static Vector bit_and(Vector a, Vector b) { return _mm512_and_si512(a, b); }
  template <int kBits>
  PENSTOCK_INLINE static Vector shift_right16(Vector v) { return _mm512_srli_epi16(v, kBits); }
  template <int kBits>
  PENSTOCK_INLINE static Vector shift_right32(Vector v) { return _mm512_srai_epi32(v, kBits); }
  PENSTOCK_INLINE static Vector madd(Vector a, Vector b) { return _mm512_madd_epi16(a, b); }
  PENSTOCK_INLINE static Vector madd_add(Vector sum, Vector a, Vector b) { return _mm512_dpwssd_epi32(sum, a, b); }
  PENSTOCK_INLINE static void add_and_sub(Vector from, Vector pairs, int first, int second, Vector& sum, Vector& rest) {
    sum = madd_add(from, pairs, set32(factors(first, second)));
    rest = madd_add(from, pairs, set32(factors(-first, -second)));
  }
  PENSTOCK_INLINE static Vector pack32(Vector a, Vector b) { return _mm512_packs_epi32(a, b); }
  PENSTOCK_INLINE static Vector pack16(Vector a, Vector b) { return _mm512_packs_epi16(a, b); }
  PENSTOCK_INLINE static Vector pack_unsigned16(Vector a, Vector b) { return _mm512_packus_epi16(a, b); }
  PENSTOCK_INLINE static Vector low8(Vector a, Vector b) { return _mm512_unpacklo_epi8(a, b); }
  PENSTOCK_INLINE static Vector high8(Vector a, Vector b) { return _mm512_unpackhi_epi8(a, b); }
  PENSTOCK_INLINE static Vector low16(Vector a, Vector b) { return _mm512_unpacklo_epi16(a, b); }
  PENSTOCK_INLINE static Vector high16(Vector a, Vector b) { return _mm512_unpackhi_epi16(a, b); }
  PENSTOCK_INLINE static Vector low32(Vector a, Vector b) { return _mm512_unpacklo_epi32(a, b); }
  PENSTOCK_INLINE static Vector high32(Vector a, Vector b) { return _mm512_unpackhi_epi32(a, b); }
  PENSTOCK_INLINE static Vector low64(Vector a, Vector b) { return _mm512_unpacklo_epi64(a, b); }
  PENSTOCK_INLINE static Vector high64(Vector a, Vector b) { return _mm512_unpackhi_epi64(a, b); }

  // Two rows of each block, 8 samples each, around 0.
  PENSTOCK_INLINE static void store_rows(Vector rows, std::uint8_t* samples, std::ptrdiff_t stride) {
    const Vector order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const Vector bytes = _mm512_xor_si512(_mm512_permutexvar_epi64(order, rows), _mm512_set1_epi8(-128));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(samples), _mm512_castsi512_si256(bytes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(samples + stride), _mm512_extracti64x4_epi64(bytes, 1));
  }

  // 64 pixels of which each 128 bits of the colours hold 8 even and 8 odd ones.
  PENSTOCK_INLINE static void store_rgb(Vector red, Vector green, Vector blue, std::uint8_t* out) {
#pragma GCC unroll 3
    for (std::size_t part = 0; part < 3; ++part) {
      const Vector two = _mm512_permutex2var_epi8(red, load(kOrder.red_green[part].data()), green);
      _mm512_storeu_si512(out + 64 * part, _mm512_mask_permutexvar_epi8(two, kOrder.is_blue[part],
                                                                         load(kOrder.blue[part].data()), blue));
    }
  }
};

}  // namespace

constinit const Kernels kAvx512Kernels{Transform<Avx512>::run, converters<Avx512, true>(), converters<Avx512, false>(),
                                       grey<Avx512>};

}  // namespace penstock::jpeg

#endif
