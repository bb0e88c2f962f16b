// A torch.save file of any structure, read into memory: the objects that it holds and the bytes of their storages.
//
// Threads: a SavedFile belongs to one thread at a time. Memory: it owns its scratch, which it reuses from file to file
// (more than 4 MiB are given back), and each storage's bytes, until their Block is moved out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/file_block.h"
#include "tensor/pickled_objects.h"
#include "tensor/zip_directory.h"

namespace penstock {

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
