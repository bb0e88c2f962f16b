// A column of an Arrow table: chunks of rows, and lists of numbers among them that are gathered and padded.
//
// Threads: any number read one at a time and at once; it never changes. Memory: holds the arrays of its chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arrow/interface.h"
#include "arrow/node.h"
#include "tensor/dtype.h"

namespace penstock {

struct ColumnPlace {
  const Node* chunk;
  std::int64_t row;  // of the chunk
};

class ArrowColumn {
 public:
  ArrowColumn() = default;
  ArrowColumn(const ArrowColumn&) = delete;
  ArrowColumn& operator=(const ArrowColumn&) = delete;

  // The next rows. Throws std::invalid_argument as a Node does, and for rows of another type.
  void add(const ArrowSchema& schema, OwnedArray array, const std::vector<std::int64_t>& sizes);

  [[nodiscard]] std::int64_t rows() const noexcept { return ends_.empty() ? 0 : ends_.back(); }
  // The first chunk's; null: there is none.
  [[nodiscard]] const Node* first() const noexcept { return chunks_.empty() ? nullptr : &chunks_.front(); }
  // Of a row that is not below 0 nor beyond the last.
  [[nodiscard]] ColumnPlace place(std::int64_t row) const noexcept;
  // Tells the processor of the rows that are read next.
  void prefetch(std::int64_t row) const noexcept;

 private:
  std::vector<OwnedArray> arrays_;
  std::vector<Node> chunks_;
  std::vector<std::int64_t> ends_;  // of each chunk, in rows of the column
};

// The numbers of one row: `count` of them, of the type that the column stores.
struct NumberSpan {
  const std::uint8_t* values = nullptr;
  std::int64_t first_bit = 0;  // of truth values
  std::int64_t count = 0;
};

enum class Side : std::uint8_t { left, right };

// Finds the numbers of rows: those of a list of numbers, or the one of a number. False: a row, or a number, is null, is
// not there or is not a number.
[[nodiscard]] bool find_numbers(const ArrowColumn& column, const std::int64_t* rows, std::size_t count,
                                NumberSpan* found) noexcept;

// Writes numbers that were found in a column as elements of another type.
class NumberWriter {
 public:
  // Throws std::invalid_argument for types that are not converted: those where the result could be another one.
  NumberWriter(const ArrowColumn& column, DType to);
  // One row behind another.
  void flat(const NumberSpan* rows, std::size_t count, std::uint8_t* out) const noexcept;
  // Rows of `width` elements, whose shorter ones are filled with an element.
  void padded(const NumberSpan* rows, std::size_t count, std::int64_t width, const std::uint8_t* fill, Side side,
              std::uint8_t* out) const noexcept;

 private:
  void write(const NumberSpan& row, std::int64_t count, std::uint8_t* out) const noexcept;

  bool bits_ = false;
  void (*convert_)(const std::uint8_t*, std::size_t, std::uint8_t*) = nullptr;  // null: the bytes are copied
  std::size_t from_ = 0, to_ = 0;  // bytes of an element
};

}  // namespace penstock
