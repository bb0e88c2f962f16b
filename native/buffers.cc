#include "buffers.h"

#include <sys/mman.h>

#include <iterator>
#include <limits>
#include <new>

namespace penstock {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes) {
  // Small blocks in powers of two and large ones in huge pages, so that the last, shorter batch of an
  // epoch and batches of about the same size share blocks.
  if (bytes > std::numeric_limits<std::size_t>::max() - kHugePage) throw std::bad_alloc();
  if (bytes >= kHugePage) return (bytes + kHugePage - 1) / kHugePage * kHugePage;
  std::size_t capacity = kPage;
  while (capacity < bytes) capacity *= 2;
  return capacity;
}

}  // namespace

Block::Block(std::size_t bytes) : data_(nullptr), capacity_(round_up(bytes)) {
  data_ = mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data_ == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (capacity_ >= kHugePage) madvise(data_, capacity_, MADV_HUGEPAGE);  // advice: a refusal changes nothing
#endif
}

Block::~Block() {
  if (data_ != nullptr) munmap(data_, capacity_);
}

Block BlockPool::lend(std::size_t bytes) {
  {
    const std::lock_guard hold(lock_);
    ++lent_;
    const auto found = free_.lower_bound(bytes);
    // A block more than twice as large as needed is left for the batches that it was made for.
    if (found != free_.end() && found->first / 2 <= round_up(bytes)) {
      // Of equal ones the last that came back: the caches may hold it still.
      return std::move(free_.extract(std::prev(free_.upper_bound(found->first))).mapped());
    }
    ++created_;
  }
  try {
    return Block(bytes);
  } catch (...) {
    const std::lock_guard hold(lock_);
    --lent_;
    --created_;
    throw;
  }
}

void BlockPool::give_back(Block block) {
  std::optional<Block> surplus;  // freed after the lock is let go
  const std::lock_guard hold(lock_);
  --lent_;
  if (free_.size() >= keep_) {
    surplus.emplace(std::move(block));
    return;
  }
  const auto capacity = block.capacity();
  free_.emplace(capacity, std::move(block));
}

BlockCounts BlockPool::counts() const {
  const std::lock_guard hold(lock_);
  return {lent_, free_.size(), created_};
}

}  // namespace penstock
