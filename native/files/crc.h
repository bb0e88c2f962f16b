// CRC-32 as zip, gzip and PNG have it (polynomial 0xEDB88320, reflected), and CRC-32C (Castagnoli, 0x82F63B78, reflected) as
// iSCSI (RFC 3720, appendix B.4) and ext4 have it, by the fastest way that this processor has.
//
// Threads: pure functions. Memory: bytes are borrowed for the call; 16 KiB of constant tables.
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

// The fastest way that it can go.
[[nodiscard]] CrcWay best_crc_way() noexcept;

// The CRC of some bytes, where `crc` is that of the bytes before them (0: none), as zlib's crc32(). Needs can_crc(way).
[[nodiscard]] std::uint32_t crc32(std::uint32_t crc, const std::uint8_t* data, std::size_t size,
                                  CrcWay way = best_crc_way()) noexcept;
[[nodiscard]] std::uint32_t crc32c(std::uint32_t crc, const std::uint8_t* data, std::size_t size,
                                   CrcWay way = best_crc_way()) noexcept;

}  // namespace penstock
