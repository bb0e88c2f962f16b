// By carry-less multiplication after Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Intel 2009: a message's front is multiplied by the residue of the power of x that it stands before its back
// by, and added to the back, until 16 bytes are left that have the message's CRC.
#include "files/crc.h"

#include <array>

#include "files/little_endian.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define PENSTOCK_CLMUL __attribute__((target("pclmul")))
#define PENSTOCK_VPCLMUL __attribute__((target("avx2,pclmul,vpclmulqdq")))
#endif

namespace penstock {
namespace {

// Everything here is on the register, which is the complement of the CRC. Bits are reflected: the highest one is the
// coefficient of x^0.
constexpr std::uint32_t kZip = 0xEDB88320, kCastagnoli = 0x82F63B78;

template <std::uint32_t kPolynomial>
constexpr std::uint32_t times_x(std::uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

constexpr std::size_t kSlices = 8;

// kTables[s][b]: what a byte b does to the register when s bytes follow it.
template <std::uint32_t kPolynomial>
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, kSlices> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = times_x<kPolynomial>(value);
    tables[0][byte] = value;
  }
  for (std::size_t s = 1; s < kSlices; ++s)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[s][byte] = (tables[s - 1][byte] >> 8) ^ tables[0][tables[s - 1][byte] & 0xff];
  return tables;
}();

template <std::uint32_t kPolynomial>
std::uint32_t portable(std::uint32_t value, const std::uint8_t* data, std::size_t size) noexcept {
  constexpr auto& tables = kTables<kPolynomial>;
  for (; size >= kSlices; data += kSlices, size -= kSlices) {
    const std::uint32_t low = le32(data) ^ value, high = le32(data + 4);
    value = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^
            tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^ tables[1][high >> 16 & 0xff] ^ tables[0][high >> 24];
  }
  for (; size > 0; ++data, --size) value = (value >> 8) ^ tables[0][(value ^ *data) & 0xff];
  return value;
}

#if defined(__x86_64__)

constexpr std::size_t kLeast128 = 16 * 4, kLeast256 = 32 * 8;  // bytes that the two ways need

// The factors that move 16 bytes on by so many bits: of their first and of their second 8 bytes. A product of reflected
// numbers is one bit too low: they are doubled.
struct Fold {
  std::uint64_t first, second;
};
template <std::uint32_t kPolynomial>
constexpr Fold fold_by(int bits) {
  const auto factor = [](int n) {  // x^n modulo the polynomial, doubled
    std::uint32_t value = std::uint32_t{1} << 31;
    for (; n > 0; --n) value = times_x<kPolynomial>(value);
    return std::uint64_t{value} << 1;
  };
  return {factor(bits + 32), factor(bits - 32)};
}
static_assert(fold_by<kZip>(512).first == 0x154442bd4 && fold_by<kZip>(512).second == 0x1c6e41596);  // as in the paper
static_assert(fold_by<kZip>(128).first == 0x1751997d0 && fold_by<kZip>(128).second == 0x0ccaa009e);

template <std::uint32_t kPolynomial, int kBits>
PENSTOCK_CLMUL inline __m128i factors() {
  constexpr Fold fold = fold_by<kPolynomial>(kBits);
  return _mm_set_epi64x(static_cast<long long>(fold.second), static_cast<long long>(fold.first));
}

PENSTOCK_CLMUL inline __m128i load(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
PENSTOCK_CLMUL inline __m128i moved(__m128i x, __m128i by) {
  return _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11));
}
PENSTOCK_VPCLMUL inline __m256i load_wide(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
PENSTOCK_VPCLMUL inline __m256i moved_wide(__m256i x, __m256i by) {
  return _mm256_xor_si256(_mm256_clmulepi64_epi128(x, by, 0x00), _mm256_clmulepi64_epi128(x, by, 0x11));
}

// The register after 16 bytes that replace all before, and after the bytes that follow.
template <std::uint32_t kPolynomial>
PENSTOCK_CLMUL inline std::uint32_t finish(__m128i x, const std::uint8_t* data, std::size_t size) {
  const __m128i by_16_bytes = factors<kPolynomial, 128>();
  for (; size >= 16; data += 16, size -= 16) x = _mm_xor_si128(moved(x, by_16_bytes), load(data));
  std::array<std::uint8_t, 16> rest;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), x);
  return portable<kPolynomial>(portable<kPolynomial>(0, rest.data(), rest.size()), data, size);
}

template <std::uint32_t kPolynomial>
PENSTOCK_CLMUL std::uint32_t clmul128(std::uint32_t value, const std::uint8_t* data, std::size_t size) noexcept {
  constexpr std::size_t kLanes = kLeast128 / 16;
  __m128i x[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) x[i] = load(data + 16 * i);
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128(static_cast<int>(value)));
  data += kLeast128;
  size -= kLeast128;
  const __m128i by_all_lanes = factors<kPolynomial, static_cast<int>(kLeast128) * 8>();
  for (; size >= kLeast128; data += kLeast128, size -= kLeast128)
    for (std::size_t i = 0; i < kLanes; ++i) x[i] = _mm_xor_si128(moved(x[i], by_all_lanes), load(data + 16 * i));
  const __m128i by_lane = factors<kPolynomial, 128>();
  for (std::size_t i = 1; i < kLanes; ++i) x[i] = _mm_xor_si128(moved(x[i - 1], by_lane), x[i]);
  return finish<kPolynomial>(x[kLanes - 1], data, size);
}

template <std::uint32_t kPolynomial>
PENSTOCK_VPCLMUL std::uint32_t clmul256(std::uint32_t value, const std::uint8_t* data, std::size_t size) noexcept {
  constexpr std::size_t kLanes = kLeast256 / 32;
  __m256i x[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) x[i] = load_wide(data + 32 * i);
  x[0] = _mm256_xor_si256(x[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(value))));
  data += kLeast256;
  size -= kLeast256;
  const __m256i by_all_lanes = _mm256_broadcastsi128_si256(factors<kPolynomial, static_cast<int>(kLeast256) * 8>());
  for (; size >= kLeast256; data += kLeast256, size -= kLeast256)
    for (std::size_t i = 0; i < kLanes; ++i)
      x[i] = _mm256_xor_si256(moved_wide(x[i], by_all_lanes), load_wide(data + 32 * i));
  const __m256i by_lane = _mm256_broadcastsi128_si256(factors<kPolynomial, 256>());
  for (std::size_t i = 1; i < kLanes; ++i) x[i] = _mm256_xor_si256(moved_wide(x[i - 1], by_lane), x[i]);
  __m256i last = x[kLanes - 1];
  for (; size >= 32; data += 32, size -= 32) last = _mm256_xor_si256(moved_wide(last, by_lane), load_wide(data));
  const __m128i low = _mm256_castsi256_si128(last), high = _mm256_extracti128_si256(last, 1);
  return finish<kPolynomial>(_mm_xor_si128(moved(low, factors<kPolynomial, 128>()), high), data, size);
}

#endif

template <std::uint32_t kPolynomial>
std::uint32_t computed(std::uint32_t crc, const std::uint8_t* data, std::size_t size, CrcWay way) noexcept {
#if defined(__x86_64__)
  if (way == CrcWay::clmul256 && size >= kLeast256) return ~clmul256<kPolynomial>(~crc, data, size);
  if (way != CrcWay::portable && size >= kLeast128) return ~clmul128<kPolynomial>(~crc, data, size);
#endif
  static_cast<void>(way);
  return ~portable<kPolynomial>(~crc, data, size);
}

}  // namespace

bool can_crc(CrcWay way) noexcept {
#if defined(__x86_64__)
  const bool narrow = __builtin_cpu_supports("pclmul") != 0;
  if (way == CrcWay::clmul128) return narrow;
  if (way == CrcWay::clmul256)
    return narrow && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
#endif
  return way == CrcWay::portable;
}

CrcWay best_crc_way() noexcept {
  static const CrcWay best = can_crc(CrcWay::clmul256)   ? CrcWay::clmul256
                             : can_crc(CrcWay::clmul128) ? CrcWay::clmul128
                                                         : CrcWay::portable;
  return best;
}

std::uint32_t crc32(std::uint32_t crc, const std::uint8_t* data, std::size_t size, CrcWay way) noexcept {
  return computed<kZip>(crc, data, size, way);
}

std::uint32_t crc32c(std::uint32_t crc, const std::uint8_t* data, std::size_t size, CrcWay way) noexcept {
  return computed<kCastagnoli>(crc, data, size, way);
}

}  // namespace penstock
