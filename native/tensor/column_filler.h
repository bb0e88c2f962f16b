// The filler of a column of an Apache Arrow table (arrow.apache.org/docs/format/Columnar.html): chunks of rows, whose
// elements are converted to the type of the batch.
//
// Threads: as every Filler's (filler.h). Memory: borrows the buffers of all chunks, which may be those of a mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/element_types.h"
#include "tensor/filler.h"

namespace penstock {

// Rows that follow each other in a column.
struct ColumnChunk {
  const std::uint8_t* values;
  std::size_t rows;
};

class ColumnFiller final : public Filler {
 public:
  // Each chunk holds rows of `elements` elements of `stored`, which become those of spec.dtype. Throws
  // std::invalid_argument for types that are not converted here: those where torch's result could be another one.
  ColumnFiller(std::vector<ColumnChunk> chunks, std::size_t elements, DType stored, TensorSpec spec);
  Outcome fill(const SampleKey&, const FileTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  void prefetch(std::size_t local) const noexcept override;
  [[nodiscard]] std::size_t memory_bytes() const noexcept override;

 private:
  [[nodiscard]] const std::uint8_t* find(std::size_t local) const noexcept;  // null: there is no such row

  std::vector<ColumnChunk> chunks_;
  std::vector<std::size_t> ends_;  // of each chunk, in rows of the column
  std::size_t elements_;           // of a row
  std::size_t row_bytes_;          // as they are stored
  Convert convert_ = nullptr;      // null: the bytes are copied
  TensorSpec spec_;
};

}  // namespace penstock
