// Memory that whole files are read into, and that may then belong to a storage of torch's.
//
// Threads: a Block has one owner at a time; the functions may be called by any thread. Memory: a Block owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "files/unique_fd.h"

namespace penstock {

// Memory whose bytes begin at a multiple of 64, with room in front of them for a note of its owner's.
class Block {
 public:
  static constexpr std::size_t kFront = 384, kAlignment = 64;

  Block() = default;
  Block(Block&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)), room_(std::exchange(other.room_, 0)) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(room_, other.room_);
    return *this;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { std::free(raw_); }

  // Room for that many bytes, their content undefined; what was there is given back. False: there is no memory.
  [[nodiscard]] bool allocate(std::size_t bytes) noexcept;

  [[nodiscard]] std::size_t room() const { return room_; }
  [[nodiscard]] std::uint8_t* front() const { return aligned(); }
  [[nodiscard]] std::uint8_t* bytes() const { return aligned() + kFront; }
  // The memory is the caller's, to be given to std::free().
  [[nodiscard]] void* release() { return std::exchange(raw_, nullptr); }

 private:
  [[nodiscard]] std::uint8_t* aligned() const {
    const auto address = reinterpret_cast<std::uintptr_t>(raw_);
    return static_cast<std::uint8_t*>(raw_) + (kAlignment - address % kAlignment) % kAlignment;
  }

  void* raw_ = nullptr;
  std::size_t room_ = 0;
};

inline constexpr std::size_t kMaxWhole = 64u << 20;  // torch.load and numpy.load are as fast with larger files
extern const char* const kTooLarge;
extern const char* const kNoMemory;

// Opens a file for reading; none where that fails.
[[nodiscard]] UniqueFd open_for_loading(const char* path) noexcept;

// Reads a regular file from `start` to its end (its position is neither used nor moved). nullptr when `block` holds the
// `size` bytes, else why not.
[[nodiscard]] const char* read_whole(int fd, std::uint64_t start, Block& block, std::size_t& size) noexcept;

}  // namespace penstock
