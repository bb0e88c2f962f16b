// The filler of a column of an Apache Arrow table (arrow.apache.org/docs/format/Columnar.html): chunks of rows, whose
// elements are converted to the type of the batch.
//
// Threads: as every Filler's (filler.h). Memory: borrows the buffers of all chunks, which may be those of a mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/filler.h"

namespace penstock {

// The offsets of a list array, from its first row on: list i holds the items offsets[i] to offsets[i + 1].
struct ListOffsets {
  const std::uint8_t* data;
  std::size_t count;
  bool wide;  // 64 bits each, else 32
};

// Rows that follow each other in a column.
struct ColumnChunk {
  std::size_t rows;
  std::vector<ListOffsets> lists;  // the outermost first; empty where all rows have the elements of the spec
  const std::uint8_t* values;
  std::int64_t first;     // the place of the first element: 0 to 7 in a bitmap, 0 in all else
  std::int64_t elements;  // from `first` on
};

// How elements of one type become those of another: `from` holds `count` of them, of a bitmap from bit `first` on.
using Convert = void (*)(const std::uint8_t* from, std::int64_t first, std::int64_t count, std::uint8_t* to);

class ColumnFiller final : public Filler {
 public:
  // Elements of `stored` become those of spec.dtype; bool is stored as a bitmap. Throws std::invalid_argument for types
  // that are not converted here: those where torch's result could be another one.
  ColumnFiller(std::vector<ColumnChunk> chunks, DType stored, TensorSpec spec);
  Outcome fill(const SampleKey&, const FileTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  void prefetch(std::size_t local) const noexcept override;
  [[nodiscard]] std::size_t memory_bytes() const noexcept override;

 private:
  struct Place {
    const ColumnChunk* chunk;  // null: there is no such row
    std::size_t row;
  };
  [[nodiscard]] Place find(std::size_t local) const noexcept;

  std::vector<ColumnChunk> chunks_;
  std::vector<std::size_t> ends_;  // of each chunk, in rows of the column
  std::size_t stored_bytes_;       // of an element; 0 for bits
  Convert convert_;                // null: the bytes are copied
  TensorSpec spec_;
  std::int64_t elements_;  // of a row
};

}  // namespace penstock
