#include "files/pack_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "files/crc.h"
#include "files/read_at.h"
#include "files/unique_fd.h"

namespace penstock {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;

// Collects bytes and writes them in large pieces; `crc32c` is that of all it was given.
class Appender {
 public:
  Appender(int out, std::uint32_t crc) : crc32c(crc), out_(out) { buffer_.resize(kBuffer); }

  // Room for so many bytes at the end of what is collected; null where writing failed.
  std::uint8_t* room(std::size_t bytes) {
    if (buffer_.size() - held_ < bytes) {
      if (!flush()) return nullptr;
      if (buffer_.size() < bytes) buffer_.resize(bytes);
    }
    return buffer_.data() + held_;
  }
  void added(std::size_t bytes) {
    crc32c = penstock::crc32c(crc32c, buffer_.data() + held_, bytes);
    held_ += bytes;
  }
  bool add(std::string_view bytes) {
    std::uint8_t* const to = room(bytes.size());
    if (to == nullptr) return false;
    std::memcpy(to, bytes.data(), bytes.size());
    added(bytes.size());
    return true;
  }
  bool flush() {
    for (std::size_t done = 0; done < held_;) {
      const ssize_t n = ::write(out_, buffer_.data() + done, std::min<std::size_t>(held_ - done, kMaxRead));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      done += static_cast<std::size_t>(n);
    }
    held_ = 0;
    return true;
  }

  std::uint32_t crc32c;

 private:
  int out_;
  std::vector<std::uint8_t> buffer_;
  std::size_t held_ = 0;
};

std::int64_t changed_ns(const struct stat& status) {
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

void measure_jpeg(std::span<const std::uint8_t> bytes, FileToPack& file) {
  if (bytes.size() < 4 || bytes[0] != 0xff || bytes[1] != 0xd8) return;
  for (std::size_t at = 2; at + 9 <= bytes.size() && bytes[at] == 0xff;) {
    const std::uint8_t marker = bytes[at + 1];
    if (marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc) {
      file.height = static_cast<std::uint16_t>(bytes[at + 5] << 8 | bytes[at + 6]);
      file.width = static_cast<std::uint16_t>(bytes[at + 7] << 8 | bytes[at + 8]);
      return;
    }
    at += marker == 0xff ? 1 : 2 + static_cast<std::size_t>(bytes[at + 2] << 8 | bytes[at + 3]);
  }
}

bool same(int fd, const FileToPack& file) {
  struct stat status;
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && static_cast<std::uint64_t>(status.st_size) == file.bytes &&
         changed_ns(status) == file.time_ns;
}

}  // namespace

PackedFiles pack_files(int out, const PathTable& table, std::span<FileToPack> files, std::uint32_t crc32c) {
  Appender appender(out, crc32c);
  PackedFiles packed;
  const auto not_written = [&] {
    packed.outcome = Outcome::io_error(errno, "write");
    packed.writing = true;
    return packed;
  };
  for (; packed.failed < files.size(); ++packed.failed) {
    FileToPack& file = files[packed.failed];
    UniqueFd fd;
    packed.outcome = table.open(file.index, fd);
    if (!packed.outcome.ok()) return packed;
    packed.outcome = Outcome::to_python("the file is not what it was");
    if (!same(fd.get(), file)) return packed;
    if (!appender.add(file.before)) return not_written();
    std::uint8_t* const to = appender.room(file.bytes);
    if (to == nullptr) return not_written();
    std::uint64_t done = 0;
    if (!read_at(fd.get(), to, file.bytes, 0, done)) {
      packed.outcome = Outcome::io_error(errno, "pread");
      return packed;
    }
    if (done != file.bytes || !same(fd.get(), file)) return packed;
    file.crc32c = penstock::crc32c(0, to, file.bytes);
    measure_jpeg({to, file.bytes}, file);
    appender.added(file.bytes);
    if (!appender.add(file.after)) return not_written();
  }
  if (!appender.flush()) return not_written();
#if defined(__linux__)
  // The disk begins to write what will be synced at the end of the shard; whether it does is of no consequence here.
  static_cast<void>(::sync_file_range(out, 0, 0, SYNC_FILE_RANGE_WRITE));
#endif
  packed.outcome = Outcome::success();
  packed.crc32c = appender.crc32c;
  return packed;
}

}  // namespace penstock
