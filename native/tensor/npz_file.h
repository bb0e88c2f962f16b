// The arrays of an .npz archive (numpy.savez), read one by one: neither compressed nor pickled.
//
// Format: zip_directory.h, npy_header.h. Every length of the file is checked. Threads: pure functions; several threads may
// read one descriptor at once, because its position is neither used nor moved. Memory: the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/npy_header.h"
#include "tensor/zip_directory.h"

namespace penstock {

// Where the elements of an array lie.
struct NpzArray {
  NpyHeader header;
  std::uint64_t offset = 0;        // of the elements in the file
  std::size_t bytes = 0;           // of the elements
  std::uint32_t crc_before = 0;    // CRC-32 of the bytes of the record before them
  std::uint32_t crc = 0;           // of the whole record
};

// Each function returns nullptr, or why numpy reads the archive or array (a string with static storage duration).
[[nodiscard]] const char* list_npz(int fd, std::vector<ZipRecord>& records) noexcept;
[[nodiscard]] const char* find_npz_array(int fd, const ZipRecord& record, NpzArray& array) noexcept;
// Reads the elements into memory of array.bytes bytes, and compares the record's CRC-32, as zipfile does.
[[nodiscard]] const char* read_npz_array(int fd, const NpzArray& array, std::uint8_t* elements) noexcept;

}  // namespace penstock
