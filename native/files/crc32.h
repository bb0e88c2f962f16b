// CRC-32 as zip, gzip and PNG have it (polynomial 0xEDB88320, reflected), by the fastest way that this processor has.
//
// Threads: pure functions. Memory: bytes are borrowed for the call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

// How a CRC is computed; all ways give the same number.
enum class CrcWay : std::uint8_t {
  portable,  // tables: slicing by 8
  clmul128,  // carry-less multiplication (PCLMULQDQ), 16 bytes an instruction
  clmul256,  // the same on 32 bytes (VPCLMULQDQ with AVX2)
};

// Whether this processor can go that way.
[[nodiscard]] bool can_crc(CrcWay way) noexcept;

// The CRC-32 of some bytes, where `crc` is that of the bytes before them (0: none), as zlib's crc32().
[[nodiscard]] std::uint32_t crc32(std::uint32_t crc, const std::uint8_t* data, std::size_t size) noexcept;

// The same by a given way, for tests. Needs can_crc(way).
[[nodiscard]] std::uint32_t crc32(std::uint32_t crc, const std::uint8_t* data, std::size_t size, CrcWay way) noexcept;

}  // namespace penstock
