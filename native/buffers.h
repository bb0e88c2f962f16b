// Batch memory: recycled blocks of pageable memory.
//
// A block is lent to a batch and comes back when its last user is gone (bind_buffers.cc ties that to the
// life of the array, and so to every tensor and view made of it); only then may it be lent again. Fresh
// memory costs a page fault for every 4 KiB, more than filling it: that is why blocks are kept.
//
// Threads: any thread may call any function. Memory: a BlockPool owns its free blocks; a lent block belongs
// to the borrower, who gives it back or frees it. Blocks outlive the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace penstock {

// A block of anonymous memory, page-aligned, in huge pages where the system gives them.
class Block {
 public:
  explicit Block(std::size_t bytes);  // throws std::bad_alloc
  ~Block();
  Block(Block&& other) noexcept : data_(other.data_), capacity_(other.capacity_) { other.data_ = nullptr; }
  Block& operator=(Block&&) = delete;
  Block(const Block&) = delete;

  [[nodiscard]] std::uint8_t* data() const { return static_cast<std::uint8_t*>(data_); }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

 private:
  void* data_;
  std::size_t capacity_;
};

struct BlockCounts {
  std::size_t lent;       // blocks with borrowers
  std::size_t free;       // blocks kept for the next batch
  std::size_t created;    // blocks ever made
};

class BlockPool {
 public:
  // keep: how many free blocks stay; more than that go back to the system.
  explicit BlockPool(std::size_t keep) : keep_(keep) {}

  Block lend(std::size_t bytes);
  void give_back(Block block);
  [[nodiscard]] BlockCounts counts() const;

 private:
  mutable std::mutex lock_;
  std::multimap<std::size_t, Block> free_;  // by capacity
  const std::size_t keep_;
  std::size_t lent_ = 0;
  std::size_t created_ = 0;
};

}  // namespace penstock
