// Where the elements of one tensor lie in its file, and how to bring them into C order.
//
// Formats: .pt (zip_directory.h, pickled_objects.h) and .npy (npy_header.h), told apart by their first bytes.
// Threads: plain values and a pure function; a TensorParser belongs to one thread at a time. Memory: a TensorParser owns
// lists that it reuses from file to file.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/pickled_objects.h"
#include "tensor/zip_directory.h"

namespace penstock {

struct TensorLayout {
  TensorSpec spec;
  std::array<std::int64_t, kMaxDims> stride{};  // elements; never negative
  std::uint64_t offset = 0;  // in the file, of the first element
  std::uint64_t reach = 0;   // bytes from there to the end of the farthest element; 0: no elements
  bool contiguous = false;   // in C order: reach is then the tensor's size
  FileRange storage;         // the record that the elements are part of; it may hold more than them
  std::uint32_t crc = 0;     // the record's CRC-32 as the file has it; 0: it has none
};

class TensorParser {
 public:
  // nullptr when `layout` is set and [offset, offset + reach) lies inside `storage`, which lies inside the file;
  // kNotRead when a range is needed that file does not hold (file.missing()); else why the file is left to Python.
  // The CRC-32 of the pickle is checked; that of the elements is the caller's to check, who reads them.
  [[nodiscard]] const char* parse(SplitFile& file, TensorLayout& layout) noexcept;

 private:
  const char* parse_torch(SplitFile& file, TensorLayout& layout);

  StorageRecords records_;
  PickledObjects objects_;
};

// Copies a tensor whose first element is at `from` into C order. `from` holds layout.reach bytes, `to`
// checked_bytes(layout.spec); they do not overlap.
void copy_strided(const std::uint8_t* from, const TensorLayout& layout, std::uint8_t* to) noexcept;

}  // namespace penstock
