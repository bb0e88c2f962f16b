// The samples of packed shards: sample i is a part of a tar archive, which a row of the index names.
//
// Threads: any number of threads may call every method at once, also in a forked child: there is no lock.
// Memory: shares the index; owns one descriptor a shard, opened at the first read of it and closed with the table, as
// long as they are no more than max_open; beyond that a shard is opened for each read. What open() gives owns its
// descriptor, or borrows one of the table's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/file_table.h"
#include "files/row_file.h"
#include "files/sample_file.h"

namespace penstock {

class ShardTable final : public FileTable {
 public:
  // A shard as dataset.json has it.
  struct Shard {
    std::string path;
    std::uint64_t bytes;
  };
  // Where the columns of a row begin. A member is offset (8 bytes), length (8), CRC-32C (4) and suffix (4).
  struct Columns {
    std::uint64_t shard, id_length, member;
  };

  // verify: the CRC-32C of each sample is compared as it is read. Throws std::invalid_argument for columns that leave
  // the rows or lie further apart than kMaxSpan.
  ShardTable(std::shared_ptr<const RowFile> rows, std::vector<Shard> shards, Columns columns, bool verify,
             std::size_t max_open);
  ~ShardTable() override;

  [[nodiscard]] std::size_t size() const noexcept override { return rows_->size(); }

  // The names are in a separate file, which only messages need: this is empty.
  [[nodiscard]] std::string_view name(std::size_t) const noexcept override { return {}; }
  [[nodiscard]] std::size_t layout_hint(std::size_t i) const noexcept override;

  // Whatever is wrong with an index, a shard or a checksum is Code::python, here or where the bytes are read
  // (SampleFile::checked, failure): Python reads the sample again and says it.
  [[nodiscard]] Outcome open(std::size_t i, SampleFile& out) const noexcept override;

  // The path of the shard; empty where the index cannot be read.
  [[nodiscard]] std::string path(std::size_t i) const override;

  // How many shards are open.
  [[nodiscard]] std::size_t open_shards() const noexcept { return open_.load(std::memory_order_relaxed); }

 private:
  struct Member {
    std::uint64_t offset, length;
    std::uint32_t crc32c, suffix, shard;
  };
  static constexpr std::uint64_t kMemberBytes = 24;
  static constexpr std::uint64_t kMaxSpan = 256;  // from the shard's number to the end of the member, in a row

  [[nodiscard]] Outcome find(std::size_t i, Member& found) const noexcept;
  // The descriptor of a shard, which `own` owns where the table does not.
  [[nodiscard]] Outcome open_shard(std::size_t shard, int& fd, UniqueFd& own) const noexcept;

  std::shared_ptr<const RowFile> rows_;
  std::vector<Shard> shards_;
  Columns columns_;
  bool verify_;
  std::size_t max_open_;
  std::unique_ptr<std::atomic<int>[]> fds_;  // -1: not open
  mutable std::atomic<std::size_t> open_{0};
};

}  // namespace penstock
