// Rows of equal length in a file, such as the elements of an .npy file: read one by one, never mapped, so that a file of
// any length takes no memory and one that is cut off meanwhile is an error, not a signal.
//
// Threads: any number of threads may call the const methods at once, also in a forked child. Memory: owns the
// descriptor; rows are written to the caller's memory.
#pragma once

#include <cstdint>

#include "files/outcome.h"
#include "files/unique_fd.h"

namespace penstock {

class RowFile {
 public:
  // Row i lies at start + i * row_bytes. Throws std::invalid_argument where the rows do not fit into 63 bits.
  RowFile(UniqueFd file, std::uint64_t start, std::uint64_t row_bytes, std::uint64_t count);

  [[nodiscard]] std::uint64_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t row_bytes() const noexcept { return row_bytes_; }

  // Reads `bytes` from byte `first` of row i on. A row past the end is io_error(ERANGE); a part that leaves the row
  // io_error(EINVAL); a file that ends before, io_error(ENODATA).
  [[nodiscard]] Outcome read(std::uint64_t i, std::uint64_t first, std::uint64_t bytes, std::uint8_t* to) const noexcept;

 private:
  UniqueFd file_;
  std::uint64_t start_, row_bytes_, count_;
};

}  // namespace penstock
