#include "files/shard_table.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include "files/little_endian.h"

namespace penstock {
namespace {

bool leaves(std::uint64_t first, std::uint64_t bytes, std::uint64_t row) { return first > row || bytes > row - first; }

}  // namespace

ShardTable::ShardTable(std::shared_ptr<const RowFile> rows, std::vector<Shard> shards, Columns columns, bool verify,
                       std::size_t max_open)
    : rows_(std::move(rows)),
      shards_(std::move(shards)),
      columns_(columns),
      verify_(verify),
      max_open_(max_open),
      fds_(std::make_unique<std::atomic<int>[]>(shards_.size())) {
  const std::uint64_t row = rows_->row_bytes();
  if (leaves(columns_.shard, 4, row) || leaves(columns_.id_length, 4, row) || leaves(columns_.member, kMemberBytes, row))
    throw std::invalid_argument("a column that leaves the rows");
  if (std::max(columns_.shard + 4, columns_.member + kMemberBytes) - std::min(columns_.shard, columns_.member) > kMaxSpan)
    throw std::invalid_argument("columns that lie too far apart");
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) fds_[shard].store(-1, std::memory_order_relaxed);
}

ShardTable::~ShardTable() {
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) UniqueFd(fds_[shard].load()).reset();
}

Outcome ShardTable::find(std::size_t i, Member& found) const noexcept {
  std::array<std::uint8_t, kMaxSpan> row;
  const std::uint64_t first = std::min(columns_.shard, columns_.member);
  const std::uint64_t end = std::max(columns_.shard + 4, columns_.member + kMemberBytes);
  const Outcome outcome = rows_->read(i, first, end - first, row.data());
  if (!outcome.ok()) return outcome.error == ERANGE ? outcome : Outcome::to_python("the index cannot be read");
  const std::uint8_t* const member = row.data() + (columns_.member - first);
  found = {le64(member), le64(member + 8), le32(member + 16), le32(member + 20), le32(row.data() + (columns_.shard - first))};
  if (found.shard >= shards_.size()) return Outcome::to_python("the index names a shard that there is not");
  const std::uint64_t bytes = shards_[found.shard].bytes;
  if (leaves(found.offset, found.length, bytes)) return Outcome::to_python("the index names bytes beyond the shard");
  return Outcome::success();
}

std::size_t ShardTable::layout_hint(std::size_t i) const noexcept {
  std::array<std::uint8_t, 4> length;
  return rows_->read(i, columns_.id_length, length.size(), length.data()).ok() ? le32(length.data()) : 0;
}

Outcome ShardTable::open_shard(std::size_t shard, int& fd, UniqueFd& own) const noexcept {
  fd = fds_[shard].load(std::memory_order_acquire);
  if (fd >= 0) return Outcome::success();
  do fd = ::open(shards_[shard].path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return Outcome::to_python("the shard cannot be opened");
  own.reset(fd);
  struct stat status;
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return Outcome::to_python("the shard is no regular file");
  if (static_cast<std::uint64_t>(status.st_size) != shards_[shard].bytes)
    return Outcome::to_python("the shard has another length than dataset.json says");
  if (open_.fetch_add(1, std::memory_order_relaxed) >= max_open_) {
    open_.fetch_sub(1, std::memory_order_relaxed);
    return Outcome::success();
  }
  int nobodys = -1;
  if (fds_[shard].compare_exchange_strong(nobodys, fd, std::memory_order_acq_rel)) {
    static_cast<void>(own.release());
  } else {  // another thread was first
    open_.fetch_sub(1, std::memory_order_relaxed);
    own.reset();
    fd = nobodys;
  }
  return Outcome::success();
}

Outcome ShardTable::open(std::size_t i, SampleFile& out) const noexcept {
  Member member;
  if (const Outcome found = find(i, member); !found.ok()) return found;
  int fd = -1;
  UniqueFd own;
  if (const Outcome opened = open_shard(member.shard, fd, own); !opened.ok()) return opened;
  out = own ? SampleFile::part(std::move(own), member.offset, member.length)
            : SampleFile::part(fd, member.offset, member.length);
  if (verify_) out = SampleFile::checked(std::move(out), member.crc32c);
  return Outcome::success();
}

std::string ShardTable::path(std::size_t i) const {
  Member member;
  return find(i, member).ok() ? shards_[member.shard].path : std::string();
}

}  // namespace penstock
