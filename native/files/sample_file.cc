#include "files/sample_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "files/read_at.h"

namespace penstock {
namespace {

constexpr auto kMaxOffset = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());

}  // namespace

SampleFile SampleFile::part(int fd, std::uint64_t offset, std::uint64_t length) noexcept {
  SampleFile file;
  file.fd_ = fd;
  file.part_ = true;
  file.offset_ = std::min(offset, kMaxOffset);
  file.length_ = std::min(length, kMaxOffset - file.offset_);
  return file;
}

SampleFile SampleFile::part(UniqueFd owned, std::uint64_t offset, std::uint64_t length) noexcept {
  SampleFile file = part(owned.get(), offset, length);
  file.owned_ = std::move(owned);
  return file;
}

SampleFile SampleFile::memory(std::span<const std::uint8_t> bytes) noexcept {
  SampleFile file;
  file.memory_ = true;
  file.bytes_ = bytes;
  return file;
}

SampleFile SampleFile::memory(std::unique_ptr<std::uint8_t[]> bytes, std::size_t size) noexcept {
  SampleFile file = memory({bytes.get(), size});
  file.memory_owned_ = std::move(bytes);
  return file;
}

Outcome SampleFile::size(std::uint64_t& bytes) const noexcept {
  bytes = memory_ ? bytes_.size() : length_;
  if (memory_ || part_) return Outcome::success();
  struct stat status {};
  if (::fstat(fd_, &status) != 0) return Outcome::io_error(errno, "fstat");
  if (S_ISDIR(status.st_mode)) return Outcome::io_error(EISDIR, "pread");
  if (!S_ISREG(status.st_mode)) return Outcome::to_python("not a regular file");
  bytes = static_cast<std::uint64_t>(status.st_size);
  return Outcome::success();
}

ssize_t SampleFile::readv(std::span<const iovec> rooms, std::uint64_t offset) const noexcept {
  if (memory_) return copy(rooms, offset);
  std::array<iovec, kMaxRooms> clipped;
  if (part_) {
    if (rooms.size() > clipped.size()) {
      errno = EINVAL;
      return -1;
    }
    std::uint64_t left = length_ - std::min(offset, length_);
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      clipped[i] = {rooms[i].iov_base, static_cast<std::size_t>(std::min<std::uint64_t>(rooms[i].iov_len, left))};
      left -= clipped[i].iov_len;
    }
    rooms = {clipped.data(), rooms.size()};
    offset = std::min(offset, length_) + offset_;
  }
  ssize_t got = 0;
  do {
    got = ::preadv(fd_, rooms.data(), static_cast<int>(rooms.size()), static_cast<off_t>(offset));
  } while (got < 0 && errno == EINTR);
  return got;
}

ssize_t SampleFile::copy(std::span<const iovec> rooms, std::uint64_t offset) const noexcept {
  std::uint64_t at = std::min<std::uint64_t>(offset, bytes_.size());
  for (const iovec& room : rooms) {
    const std::uint64_t bytes = std::min<std::uint64_t>(room.iov_len, bytes_.size() - at);
    if (bytes > 0) std::memcpy(room.iov_base, bytes_.data() + at, bytes);
    at += bytes;
  }
  return static_cast<ssize_t>(at - std::min<std::uint64_t>(offset, bytes_.size()));
}

bool SampleFile::read(std::uint8_t* to, std::uint64_t bytes, std::uint64_t offset, std::uint64_t& done) const noexcept {
  done = 0;
  while (done < bytes) {
    const iovec room{to + done, static_cast<std::size_t>(std::min(bytes - done, kMaxRead))};
    const ssize_t got = readv({&room, 1}, offset + done);
    if (got < 0) return false;
    if (got == 0) break;
    done += static_cast<std::uint64_t>(got);
  }
  return true;
}

}  // namespace penstock
