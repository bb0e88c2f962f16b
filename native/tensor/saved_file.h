// A torch.save file of any structure, read into memory: the objects that it holds and the bytes of their storages.
//
// Threads: a SavedFile belongs to one thread at a time. Memory: it owns its scratch, which it reuses from file to file
// (more than 16 MiB are given back), and each storage's bytes, until their Block is moved out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "tensor/pickled_objects.h"
#include "tensor/zip_directory.h"

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

// The bytes of one storage: block.bytes() + offset.
struct SavedStorage {
  Block block;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

class SavedFile {
 public:
  // Reads the file named `path`, or that of a descriptor from `start` on (its position is neither used nor moved), or
  // one that lies in memory. nullptr, or why it is left to torch.load (a string with static storage duration;
  // objects().detail() may say more). The CRC-32 of storages is not looked at, as torch.load does not.
  [[nodiscard]] const char* read(const char* path) noexcept;
  [[nodiscard]] const char* read(int fd, std::uint64_t start) noexcept;
  [[nodiscard]] const char* read(std::span<const std::uint8_t> bytes) noexcept;

  [[nodiscard]] const PickledObjects& objects() const { return objects_; }
  // As objects().storages(); those that the result does not hold have no block.
  [[nodiscard]] std::vector<SavedStorage>& storages() { return storages_; }
  // Where torch.load leaves the position of a file object: after the record that it reads last.
  [[nodiscard]] std::uint64_t end() const { return end_; }
  // Gives memory back where much is held.
  void trim() noexcept;

  static constexpr std::uint64_t kMaxBytes = 64u << 20;  // torch.load is as fast with larger ones

 private:
  const char* parse(std::span<const std::uint8_t> bytes, Block* own);
  const char* place_storages(std::span<const std::uint8_t> bytes, Block* own);

  PickledObjects objects_;
  StorageRecords records_;
  std::vector<SavedStorage> storages_;
  Block scratch_;
  std::uint64_t end_ = 0;
};

}  // namespace penstock
