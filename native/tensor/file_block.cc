#include "tensor/file_block.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "files/read_at.h"

namespace penstock {

const char* const kTooLarge = "a file over 64 MiB";
const char* const kNoMemory = "not enough memory";

bool Block::allocate(std::size_t bytes) noexcept {
  std::free(raw_);
  raw_ = std::malloc(bytes + kFront + kAlignment);
  room_ = raw_ != nullptr ? bytes : 0;
  return raw_ != nullptr;
}

UniqueFd open_for_loading(const char* path) noexcept {
  // O_NONBLOCK: a named pipe without a writer is not waited for. Regular files know nothing of it.
  return UniqueFd(::open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
}

const char* read_whole(int fd, std::uint64_t start, Block& block, std::size_t& size) noexcept {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return "not a regular file";
  const std::uint64_t whole = static_cast<std::uint64_t>(status.st_size);
  if (start >= whole) return "empty file";
  if (whole - start > kMaxWhole) return kTooLarge;
  size = static_cast<std::size_t>(whole - start);
  // Much larger memory than the file's is not given to a storage that stays in it.
  if ((block.room() < size || block.room() / 2 > size) && !block.allocate(size)) return kNoMemory;
  std::uint64_t done = 0;
  return read_at(fd, block.bytes(), size, start, done) && done == size ? nullptr : "the file cannot be read";
}

}  // namespace penstock
