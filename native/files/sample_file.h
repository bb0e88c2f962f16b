// The bytes of one sample, wherever they lie: an open file, a part of one, or memory that somebody has read them into.
//
// Threads: a SampleFile belongs to one thread at a time; several that borrow one descriptor may read at once, because
// the position of the descriptor is neither used nor moved.
// Memory: it owns or borrows its descriptor, and owns or borrows its memory; who lends either keeps it for longer. Only
// a part with a checksum allocates, where it is read piece by piece.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "files/outcome.h"
#include "files/unique_fd.h"

namespace penstock {

class SampleFile {
 public:
  // No bytes: every read fails with EBADF.
  SampleFile() noexcept = default;

  // All of a file that is open for reading.
  explicit SampleFile(UniqueFd file) noexcept : owned_(std::move(file)), fd_(owned_.get()) {}

  // The `length` bytes from `offset` on of a file that somebody else keeps open. A file that ends before is truncated
  // to whoever reads it.
  static SampleFile part(int fd, std::uint64_t offset, std::uint64_t length) noexcept;
  // The same of a file that it owns.
  static SampleFile part(UniqueFd file, std::uint64_t offset, std::uint64_t length) noexcept;

  // The same of bytes that have this CRC-32C, which continues that of others `before` them. None is given before all
  // were compared: a readv() with room for all compares them where it puts them; any other read first brings all of them
  // into memory. To every read they fail where the CRC-32C is another one, or the file ends before.
  static SampleFile checked(SampleFile part, std::uint32_t crc32c, std::uint32_t before = 0) noexcept;

  // Bytes in memory that somebody else keeps, for as long as `keeper` lives where there is one; or that it owns.
  static SampleFile memory(std::span<const std::uint8_t> bytes, std::shared_ptr<const void> keeper = {}) noexcept;
  static SampleFile memory(std::unique_ptr<std::uint8_t[]> bytes, std::size_t size) noexcept;

  SampleFile(SampleFile&&) noexcept = default;
  SampleFile& operator=(SampleFile&&) noexcept = default;

  // The number of its bytes. Fails as a read of a folder does; Code::python where it is not a regular file.
  [[nodiscard]] Outcome size(std::uint64_t& bytes) const noexcept;

  // As preadv(2), with offsets from the first byte of the sample: the number of bytes read, fewer than asked for only
  // where the sample or the file ends, or as preadv() may; -1 on an error, which errno then names. Goes on after EINTR.
  // At most kMaxRooms rooms.
  [[nodiscard]] ssize_t readv(std::span<const iovec> rooms, std::uint64_t offset) noexcept;
  static constexpr std::size_t kMaxRooms = 4;

  // Reads `bytes` from `offset` on unless the sample ends before; `done` of them. False on an error, which errno names.
  [[nodiscard]] bool read(std::uint8_t* to, std::uint64_t bytes, std::uint64_t offset, std::uint64_t& done) noexcept;

  // What a read that failed means, right after it: errno's error, or of a part with a checksum Code::python, because
  // Python reads it once more and says what is wrong with it.
  [[nodiscard]] Outcome failure() const noexcept;

  // The bytes that its reads brought from the file so far; those of memory bring none.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return bytes_read_; }

  // Whether it is a part of a file, whose size() takes no call of the system.
  [[nodiscard]] bool is_part() const noexcept { return part_; }

  // Whether all bytes lie in memory, and these bytes.
  [[nodiscard]] bool in_memory() const noexcept { return memory_; }
  [[nodiscard]] std::span<const std::uint8_t> bytes() const noexcept { return bytes_; }

 private:
  [[nodiscard]] ssize_t copy(std::span<const iovec> rooms, std::uint64_t offset) const noexcept;
  [[nodiscard]] bool read_checked(std::span<const iovec> rooms) const noexcept;
  [[nodiscard]] bool bring() noexcept;

  UniqueFd owned_;
  int fd_ = -1;
  bool memory_ = false;
  bool part_ = false;
  bool checked_ = false;      // a part with a checksum
  std::uint32_t crc32c_ = 0;  // of a part that has one
  std::uint32_t before_ = 0;  // the CRC-32C that it continues
  std::uint64_t offset_ = 0;  // of a part, in the file
  std::uint64_t length_ = 0;  // of a part
  std::uint64_t bytes_read_ = 0;
  std::unique_ptr<std::uint8_t[]> memory_owned_;
  std::shared_ptr<const void> keeper_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace penstock
