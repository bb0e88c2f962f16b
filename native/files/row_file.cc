#include "files/row_file.h"

#include <cerrno>
#include <stdexcept>
#include <utility>

#include "files/read_at.h"

namespace penstock {

RowFile::RowFile(UniqueFd file, std::uint64_t start, std::uint64_t row_bytes, std::uint64_t count)
    : file_(std::move(file)), start_(start), row_bytes_(row_bytes), count_(count) {
  constexpr std::uint64_t kMost = INT64_MAX;
  std::uint64_t end = 0;
  if (__builtin_mul_overflow(row_bytes, count, &end) || __builtin_add_overflow(end, start, &end) || end > kMost)
    throw std::invalid_argument("rows that no file can hold");
}

Outcome RowFile::read(std::uint64_t i, std::uint64_t first, std::uint64_t bytes, std::uint8_t* to) const noexcept {
  if (i >= count_) return Outcome::io_error(ERANGE, "index");
  if (first > row_bytes_ || bytes > row_bytes_ - first) return Outcome::io_error(EINVAL, "index");
  std::uint64_t done = 0;
  if (!read_at(file_.get(), to, bytes, start_ + i * row_bytes_ + first, done)) return Outcome::io_error(errno, "pread");
  return done == bytes ? Outcome::success() : Outcome::io_error(ENODATA, "pread");
}

}  // namespace penstock
