// CRC-32C (Castagnoli, polynomial 0x82F63B78, reflected), as iSCSI (RFC 3720, appendix B.4) and ext4 have it, by the
// fastest way that this processor has.
//
// Threads: pure functions. Memory: bytes are borrowed for the call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

// How a CRC-32C is computed; all ways give the same number.
enum class Crc32cWay : std::uint8_t {
  portable,     // tables: slicing by 8
  instruction,  // SSE4.2's crc32 on three streams at once, or ARMv8's crc32c
};

// Whether this processor can go that way.
[[nodiscard]] bool can_crc32c(Crc32cWay way) noexcept;

// The CRC-32C of some bytes, where `crc` is that of the bytes before them (0: none).
[[nodiscard]] std::uint32_t crc32c(std::uint32_t crc, const std::uint8_t* data, std::size_t size) noexcept;

// The same by a given way, for tests. Needs can_crc32c(way).
[[nodiscard]] std::uint32_t crc32c(std::uint32_t crc, const std::uint8_t* data, std::size_t size,
                                   Crc32cWay way) noexcept;

}  // namespace penstock
