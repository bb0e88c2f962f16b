// Reading a part of a file, whatever its position is.
//
// Threads: a pure function. Memory: the bytes read belong to the caller.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace penstock {

inline constexpr std::uint64_t kMaxRead = 1u << 30;  // Linux reads at most 2 GiB - 4 KiB a call

// Reads `bytes` unless the file ends before. False on an error, which errno then names.
inline bool read_at(int fd, std::uint8_t* to, std::uint64_t bytes, std::uint64_t offset, std::uint64_t& done) {
  done = 0;
  while (done < bytes) {
    const ssize_t n = ::pread(fd, to + done, std::min(bytes - done, kMaxRead), static_cast<off_t>(offset + done));
    if (n < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (n == 0) break;
    done += static_cast<std::uint64_t>(n);
  }
  return true;
}

}  // namespace penstock
