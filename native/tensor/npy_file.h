// The array of a .npy file, read into memory of the caller's where that has the right size, else into the reader's own.
//
// Format: npy_header.h. Threads: an NpyFile belongs to one thread at a time. Memory: it owns its scratch and reuses it
// from file to file; more than 4 MiB are given back by trim().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/file_block.h"
#include "tensor/npy_header.h"

namespace penstock {

class NpyFile {
 public:
  // What the last file held: what the next one probably holds.
  struct Guess {
    DType dtype = DType::u8;
    std::size_t bytes = 0;
    std::size_t offset = 0;  // of the elements in the file; 0: there was no file
  };

  // nullptr, or why the file is left to numpy.load (a string with static storage duration). `room` holds guess().bytes.
  // The descriptor's position is neither used nor moved.
  [[nodiscard]] const char* read(const char* path, std::uint8_t* room) noexcept;
  [[nodiscard]] const char* read(int fd, std::uint64_t start, std::uint8_t* room) noexcept;
  [[nodiscard]] const char* read(std::span<const std::uint8_t> bytes) noexcept;

  [[nodiscard]] const Guess& guess() const { return guess_; }
  [[nodiscard]] const NpyHeader& header() const { return header_; }
  // Of the elements, in the order of the file.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  // Where they are; nullptr: in the room.
  [[nodiscard]] const std::uint8_t* elements() const { return elements_; }
  void trim() noexcept;

 private:
  bool read_guessed(int fd, std::uint64_t start, std::uint8_t* room) noexcept;
  const char* parse(std::span<const std::uint8_t> head, std::size_t size) noexcept;

  Guess guess_;
  NpyHeader header_;
  std::size_t bytes_ = 0;
  const std::uint8_t* elements_ = nullptr;
  Block scratch_;
  std::array<std::uint8_t, 256> head_;
};

}  // namespace penstock
