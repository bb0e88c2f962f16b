// The arithmetic of CRC-32: residues of powers of x, and the portable loop over tables.
//
// Everything here is on the register, which is the complement of the CRC. Bits are reflected: the highest one
// is the coefficient of x^0.
// Threads: pure functions. Memory: 8 KiB of constant tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "files/little_endian.h"

namespace penstock::crc {

inline constexpr std::uint32_t kPolynomial = 0xEDB88320;

constexpr std::uint32_t times_x(std::uint32_t value) { return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0); }

// x^n modulo the polynomial.
constexpr std::uint32_t power_of_x(int n) {
  std::uint32_t value = std::uint32_t{1} << 31;
  for (; n > 0; --n) value = times_x(value);
  return value;
}

inline constexpr std::size_t kSlices = 8;

// kTables[s][b]: what a byte b does to the register when s bytes follow it.
inline constexpr auto kTables = [] {
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

// The register after these bytes.
inline std::uint32_t portable(std::uint32_t value, const std::uint8_t* data, std::size_t size) noexcept {
  for (; size >= kSlices; data += kSlices, size -= kSlices) {
    const std::uint32_t low = le32(data) ^ value, high = le32(data + 4);
    value = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
            kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^ kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (; size > 0; ++data, --size) value = (value >> 8) ^ kTables[0][(value ^ *data) & 0xff];
  return value;
}

#if defined(__x86_64__)

inline constexpr std::size_t kLeast128 = 16 * 4;  // bytes that clmul128 needs
inline constexpr std::size_t kLeast256 = 32 * 8;  // bytes that clmul256 needs

// The register after these bytes, at least kLeast128 or kLeast256 of them.
std::uint32_t clmul128(std::uint32_t value, const std::uint8_t* data, std::size_t size) noexcept;
std::uint32_t clmul256(std::uint32_t value, const std::uint8_t* data, std::size_t size) noexcept;

#endif

}  // namespace penstock::crc
