#include "files/crc32.h"

#include "files/crc32_tables.h"

namespace penstock {
namespace {

CrcWay best_way() noexcept {
  static const CrcWay best = can_crc(CrcWay::clmul256)   ? CrcWay::clmul256
                             : can_crc(CrcWay::clmul128) ? CrcWay::clmul128
                                                         : CrcWay::portable;
  return best;
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

std::uint32_t crc32(std::uint32_t crc, const std::uint8_t* data, std::size_t size) noexcept {
  return crc32(crc, data, size, best_way());
}

std::uint32_t crc32(std::uint32_t crc, const std::uint8_t* data, std::size_t size, CrcWay way) noexcept {
#if defined(__x86_64__)
  if (way == CrcWay::clmul256 && size >= crc::kLeast256) return ~crc::clmul256(~crc, data, size);
  if (way != CrcWay::portable && size >= crc::kLeast128) return ~crc::clmul128(~crc, data, size);
#endif
  static_cast<void>(way);
  return ~crc::portable(~crc, data, size);
}

}  // namespace penstock
