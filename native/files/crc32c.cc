#include "files/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#include "files/little_endian.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace penstock {
namespace {

// All of this is on the register, which is the complement of the CRC. Bits are reflected: the highest one is the
// coefficient of x^0.
constexpr std::uint32_t kPolynomial = 0x82F63B78;
constexpr std::size_t kSlices = 8;

constexpr std::uint32_t times_x(std::uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

// The product of two polynomials modulo the polynomial.
constexpr std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  for (std::uint32_t bit = std::uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) sum ^= b;
    b = times_x(b);
  }
  return sum;
}

// kTables[s][b]: what a byte b does to the register when s bytes follow it.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, kSlices> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    tables[0][byte] = value;
  }
  for (std::size_t s = 1; s < kSlices; ++s)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[s][byte] = (tables[s - 1][byte] >> 8) ^ tables[0][tables[s - 1][byte] & 0xff];
  return tables;
}();

std::uint32_t by_tables(std::uint32_t value, const std::uint8_t* data, std::size_t size) noexcept {
  for (; size >= kSlices; data += kSlices, size -= kSlices) {
    const std::uint32_t low = le32(data) ^ value, high = le32(data + 4);
    value = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
            kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^ kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (; size > 0; ++data, --size) value = (value >> 8) ^ kTables[0][(value ^ *data) & 0xff];
  return value;
}

#if defined(__x86_64__)

// Moves a register on by as many zero bytes as it was made for: one table a byte of the register.
using Shift = std::array<std::array<std::uint32_t, 256>, 4>;

constexpr Shift shift_by(std::size_t bytes) {
  std::uint32_t power = std::uint32_t{1} << 31;  // x^0
  for (std::size_t bit = 0; bit < 8; ++bit) power = times_x(power);
  for (std::size_t n = bytes; n > 1; n /= 2) power = product(power, power);  // x^(8 * bytes), of a power of two
  Shift shift{};
  for (std::uint32_t place = 0; place < 4; ++place)
    for (std::uint32_t byte = 0; byte < 256; ++byte) shift[place][byte] = product(byte << (8 * place), power);
  return shift;
}

// Bytes of each of the three streams: the instruction takes three cycles and one may begin in each.
constexpr std::size_t kLong = 4096, kShort = 256;
static_assert(std::has_single_bit(kLong) && std::has_single_bit(kShort));

const Shift& long_shift() noexcept {
  static const Shift shift = shift_by(kLong);
  return shift;
}
const Shift& short_shift() noexcept {
  static const Shift shift = shift_by(kShort);
  return shift;
}

std::uint32_t moved(const Shift& shift, std::uint32_t value) noexcept {
  return shift[0][value & 0xff] ^ shift[1][value >> 8 & 0xff] ^ shift[2][value >> 16 & 0xff] ^ shift[3][value >> 24];
}

std::uint64_t load(const std::uint8_t* data) noexcept {
  std::uint64_t value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// The registers of three neighbouring streams of `length` bytes, joined.
__attribute__((target("sse4.2"))) std::uint32_t three(std::uint32_t value, const std::uint8_t* data, std::size_t length,
                                                      const Shift& shift) noexcept {
  std::uint64_t a = value, b = 0, c = 0;
  for (const std::uint8_t* const end = data + length; data < end; data += 8) {
    a = _mm_crc32_u64(a, load(data));
    b = _mm_crc32_u64(b, load(data + length));
    c = _mm_crc32_u64(c, load(data + 2 * length));
  }
  const std::uint32_t joined = moved(shift, static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
  return moved(shift, joined) ^ static_cast<std::uint32_t>(c);
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::uint32_t value, const std::uint8_t* data,
                                                               std::size_t size) noexcept {
  for (; size >= 3 * kLong; data += 3 * kLong, size -= 3 * kLong) value = three(value, data, kLong, long_shift());
  for (; size >= 3 * kShort; data += 3 * kShort, size -= 3 * kShort) value = three(value, data, kShort, short_shift());
  std::uint64_t wide = value;
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, load(data));
  value = static_cast<std::uint32_t>(wide);
  for (; size > 0; ++data, --size) value = _mm_crc32_u8(value, *data);
  return value;
}

bool has_instruction() noexcept { return __builtin_cpu_supports("sse4.2") != 0; }

#elif defined(__aarch64__) && defined(__linux__)

__attribute__((target("+crc"))) std::uint32_t by_instruction(std::uint32_t value, const std::uint8_t* data,
                                                             std::size_t size) noexcept {
  for (; size >= 8; data += 8, size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, data, sizeof word);
    value = __builtin_aarch64_crc32cx(value, word);
  }
  for (; size > 0; ++data, --size) value = __builtin_aarch64_crc32cb(value, *data);
  return value;
}

bool has_instruction() noexcept { return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

#else

std::uint32_t by_instruction(std::uint32_t value, const std::uint8_t* data, std::size_t size) noexcept {
  return by_tables(value, data, size);
}

bool has_instruction() noexcept { return false; }

#endif

}  // namespace

bool can_crc32c(Crc32cWay way) noexcept { return way == Crc32cWay::portable || has_instruction(); }

std::uint32_t crc32c(std::uint32_t crc, const std::uint8_t* data, std::size_t size) noexcept {
  static const Crc32cWay best = has_instruction() ? Crc32cWay::instruction : Crc32cWay::portable;
  return crc32c(crc, data, size, best);
}

std::uint32_t crc32c(std::uint32_t crc, const std::uint8_t* data, std::size_t size, Crc32cWay way) noexcept {
  return ~(way == Crc32cWay::instruction ? by_instruction(~crc, data, size) : by_tables(~crc, data, size));
}

}  // namespace penstock
