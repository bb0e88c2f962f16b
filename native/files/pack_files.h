// Files appended to a shard: each between bytes that somebody else has prepared (the header of a tar member before it,
// its padding and other members after it), with the CRC-32C of each and of all.
//
// Threads: pure functions; one thread a descriptor. Memory: owns a buffer of kBuffer bytes while it runs, and of one
// file where that is larger; bytes of arguments are borrowed for the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "files/outcome.h"
#include "files/path_table.h"

namespace penstock {

struct FileToPack {
  std::size_t index;       // in the table
  std::uint64_t bytes;     // that the file must have
  std::int64_t time_ns;    // at which it must have been changed last
  std::string_view before, after;
  // Written by pack_files():
  std::uint32_t crc32c = 0;              // of its bytes
  std::uint16_t width = 0, height = 0;  // in the frame header of a JPEG (ITU-T T.81, B.2.2); 0 for all else
};

struct PackedFiles {
  Outcome outcome;          // of the file `failed`: io, escapes, or python for one that is not what it was
  bool writing = false;     // the failure is that of writing
  std::size_t failed = 0;   // number of the file in `files`
  std::uint32_t crc32c = 0;  // of all bytes written, after `crc32c`
};

// Appends files to `out`; `crc32c` is that of the bytes before. Throws std::bad_alloc.
[[nodiscard]] PackedFiles pack_files(int out, const PathTable& table, std::span<FileToPack> files, std::uint32_t crc32c);

}  // namespace penstock
