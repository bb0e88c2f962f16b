// The structures of the Arrow C data interface (arrow.apache.org/docs/format/CDataInterface.html), and their owner.
//
// Threads: an OwnedArray is read by any; it is made and ended where the producer's release may be called: with Python's
// lock held. Memory: the producer's, until the owner ends.
#pragma once

#include <cstdint>
#include <utility>

namespace penstock {

struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  std::int64_t flags;
  std::int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  std::int64_t length;
  std::int64_t null_count;
  std::int64_t offset;
  std::int64_t n_buffers;
  std::int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};

// An array that was moved here from who exported it.
class OwnedArray {
 public:
  explicit OwnedArray(ArrowArray& exported) noexcept : array_(std::exchange(exported, ArrowArray{})) {}
  OwnedArray(OwnedArray&& other) noexcept : array_(std::exchange(other.array_, ArrowArray{})) {}
  OwnedArray(const OwnedArray&) = delete;
  OwnedArray& operator=(const OwnedArray&) = delete;
  OwnedArray& operator=(OwnedArray&&) = delete;
  ~OwnedArray() {
    if (array_.release != nullptr) array_.release(&array_);
  }

  [[nodiscard]] const ArrowArray& get() const noexcept { return array_; }

 private:
  ArrowArray array_;
};

}  // namespace penstock
