#include "files/sample_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

#include "files/crc.h"
#include "files/read_at.h"

namespace penstock {
namespace {

constexpr auto kMaxOffset = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
// So many bytes are read at a time where they have a checksum: they are in the processor's cache still when it is computed.
constexpr std::uint64_t kHot = std::uint64_t{256} << 10;

std::uint64_t bytes_in(std::span<const iovec> rooms) noexcept {
  std::uint64_t bytes = 0;
  for (const iovec& room : rooms) bytes += room.iov_len;
  return bytes;
}

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

SampleFile SampleFile::checked(SampleFile part, std::uint32_t crc32c, std::uint32_t before) noexcept {
  part.checked_ = true;
  part.crc32c_ = crc32c;
  part.before_ = before;
  return part;
}

SampleFile SampleFile::memory(std::span<const std::uint8_t> bytes, std::shared_ptr<const void> keeper) noexcept {
  SampleFile file;
  file.keeper_ = std::move(keeper);
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

ssize_t SampleFile::readv(std::span<const iovec> rooms, std::uint64_t offset) noexcept {
  if (part_ && rooms.size() > kMaxRooms) {
    errno = EINVAL;
    return -1;
  }
  if (checked_) {
    if (offset == 0 && bytes_in(rooms) >= length_) {
      if (!read_checked(rooms)) return -1;
      bytes_read_ += length_;
      return static_cast<ssize_t>(length_);
    }
    if (!bring()) return -1;
  }
  if (memory_) return copy(rooms, offset);
  std::array<iovec, kMaxRooms> clipped;
  if (part_) {
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
  if (got > 0) bytes_read_ += static_cast<std::uint64_t>(got);
  return got;
}

// Reads all bytes of a part with a checksum into rooms that have space for them, and compares it.
bool SampleFile::read_checked(std::span<const iovec> rooms) const noexcept {
  std::array<iovec, kMaxRooms> left;  // of the rooms
  std::copy(rooms.begin(), rooms.end(), left.begin());
  const std::span<iovec> free(left.data(), rooms.size());
  std::uint32_t crc = before_;
  for (std::uint64_t at = 0; at < length_;) {
    std::array<iovec, kMaxRooms> piece;
    std::uint64_t most = std::min(length_ - at, kHot);
    for (std::size_t i = 0; i < free.size(); ++i) {
      piece[i] = {free[i].iov_base, static_cast<std::size_t>(std::min<std::uint64_t>(free[i].iov_len, most))};
      most -= piece[i].iov_len;
    }
    const ssize_t got = ::preadv(fd_, piece.data(), static_cast<int>(free.size()), static_cast<off_t>(offset_ + at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;  // the file ends before, or cannot be read
    at += static_cast<std::uint64_t>(got);
    auto read = static_cast<std::size_t>(got);
    for (iovec& room : free) {
      const std::size_t bytes = std::min(room.iov_len, read);
      auto* const data = static_cast<std::uint8_t*>(room.iov_base);
      crc = crc32c(crc, data, bytes);
      room = {data + bytes, room.iov_len - bytes};
      read -= bytes;
    }
  }
  errno = EBADMSG;
  return crc == crc32c_;
}

// Brings all bytes of a part with a checksum into memory.
bool SampleFile::bring() noexcept {
  std::unique_ptr<std::uint8_t[]> bytes(new (std::nothrow) std::uint8_t[length_]);
  const iovec room{bytes.get(), static_cast<std::size_t>(length_)};
  if (!bytes || !read_checked({&room, 1})) return false;
  const std::uint64_t read = bytes_read_ + length_;
  *this = memory(std::move(bytes), length_);
  bytes_read_ = read;
  return true;
}

Outcome SampleFile::failure() const noexcept {
  if (!checked_) return Outcome::io_error(errno, "pread");
  return Outcome::to_python("it cannot be read, or its CRC-32C is not that of the index");
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

bool SampleFile::read(std::uint8_t* to, std::uint64_t bytes, std::uint64_t offset, std::uint64_t& done) noexcept {
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
