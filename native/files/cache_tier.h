// Tiers of a cache: the bytes of samples, kept nearer than their files: in memory, or in a folder of a faster disk.
//
// A tier keeps what comes first until it is full, and evicts nothing: every epoch reads each sample once, so that a fixed
// share of them is the best that can be kept. It consists of two files: an index with one entry a sample, and the bytes of
// one sample behind those of another, added to the end of their file by one call of the system.
//
// An entry is a claim: each read compares the CRC-32C of the sample's name and of the bytes at its place. So nothing that
// is older or newer than something else, as a power failure leaves it, nor another machine's write gives other bytes.
// Neither file is mapped: one that is cut off, or a disk that is full, is a call that fails, not a signal.
//
// Threads: any number of threads, of any number of processes, may call find() and keep() of tiers over the same files at
// once. Memory: a CacheTier owns its descriptors; a SampleCache shares its tiers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "files/file_table.h"
#include "files/outcome.h"
#include "files/sample_file.h"
#include "files/unique_fd.h"

namespace penstock {

class CacheTier {
 public:
  // `index`: a file of index_bytes(samples) bytes, or an empty one, which gets that size; `data`: the file of the bytes,
  // of which at most `limit` are used. Both are open for reading and writing; where the index cannot be written, the tier
  // keeps nothing. Throws std::invalid_argument where the index is not that of so many samples, or a file cannot hold so
  // many, and std::system_error.
  CacheTier(UniqueFd index, UniqueFd data, std::uint64_t samples, std::uint64_t limit);
  ~CacheTier();
  CacheTier(const CacheTier&) = delete;
  CacheTier& operator=(const CacheTier&) = delete;

  // A tier in memory that no file system names; `error`: errno of what it keeps nothing for, 0 where it does. Throws
  // std::system_error.
  [[nodiscard]] static std::shared_ptr<CacheTier> in_memory(std::uint64_t samples, std::uint64_t limit, int error = 0);

  // Reads a sample's bytes into `buffer`, which only grows, and compares the CRC-32C of its name and of them; `bytes` is
  // the part that they fill. False where the tier does not have them. Bytes that are damaged, or of a file of another
  // name, are counted and forgotten. Throws std::bad_alloc.
  [[nodiscard]] bool find(std::uint64_t sample, std::string_view name, std::vector<std::uint8_t>& buffer,
                          std::span<const std::uint8_t>& bytes);

  // The same as a file whose reads compare, and fail where the bytes are others: find() then forgets them. It borrows the
  // tier.
  [[nodiscard]] bool open(std::uint64_t sample, std::string_view name, SampleFile& file) const noexcept;

  // Whether the tier has a sample, damaged or not.
  [[nodiscard]] bool has(std::uint64_t sample) const noexcept;

  // Keeps a sample's bytes. False where there is no space for them.
  bool keep(std::uint64_t sample, std::string_view name, std::span<const std::uint8_t> bytes) noexcept;

  // Whether so many bytes more have space, as far as is known.
  [[nodiscard]] bool has_space(std::uint64_t bytes) const noexcept;

  struct Counts {
    std::uint64_t samples, bytes, limit;  // kept by all processes; the limit of this one
    std::uint64_t hits, dropped;          // of this process and those forked off from it
    int error;                            // why these write no more: errno, 0 where they do
  };
  [[nodiscard]] Counts counts() const noexcept;

 private:
  struct Header;
  struct Entry;
  struct Noted;

  [[nodiscard]] int prepare();
  [[nodiscard]] Entry entry(std::uint64_t sample) const noexcept;
  [[nodiscard]] bool set_entry(std::uint64_t sample, const Entry& entry) noexcept;
  void stop_writing(int error) noexcept;
  [[nodiscard]] std::uint64_t count() const noexcept;

  const UniqueFd index_, data_;
  const std::uint64_t samples_, limit_;
  Noted* noted_ = nullptr;  // shared with forked processes
};

// Several tiers, the nearest first.
class SampleCache {
 public:
  explicit SampleCache(std::vector<std::shared_ptr<CacheTier>> tiers) : tiers_(std::move(tiers)) {}

  // The bytes of file `index` of a table, which is sample `sample` of the cache: those of a tier, else those of the
  // file, kept where a tier has space. `file` borrows the tier, or `buffer` until it is used for another sample.
  [[nodiscard]] Outcome open(std::uint64_t sample, const FileTable& table, std::size_t index,
                             std::vector<std::uint8_t>& buffer, SampleFile& file) const;

  // Whether a tier has space for so many bytes more, as far as is known.
  [[nodiscard]] bool has_space(std::uint64_t bytes) const noexcept;

  // Whether a tier has a sample: open() then reads no file, as a rule.
  [[nodiscard]] bool has(std::uint64_t sample) const noexcept;

  // Keeps bytes that somebody has read, in the first tier with space.
  void keep(std::uint64_t sample, std::string_view name, std::span<const std::uint8_t> bytes) const noexcept;

  // The bytes that a tier has. Throws std::bad_alloc.
  [[nodiscard]] bool find(std::uint64_t sample, std::string_view name, std::vector<std::uint8_t>& buffer,
                          std::span<const std::uint8_t>& bytes) const;

 private:
  const std::vector<std::shared_ptr<CacheTier>> tiers_;
};

}  // namespace penstock
