// One array of Arrow's columnar format (arrow.apache.org/docs/format/Columnar.html), a column's or a child's of one, with
// what a reader of its values asks for at each value looked up once.
//
// Threads: a plain value, read by any. Memory: borrows the buffers of an array that its owner holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrow/interface.h"
#include "tensor/dtype.h"

namespace penstock {

enum class Layout : std::uint8_t { nothing, bits, numbers, bytes, large_bytes, fixed_bytes, views, list, large_list, fixed_list, record, dictionary };

// A part of a child's values, or of bytes.
struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const noexcept { return end - begin; }
};

class Node {
 public:
  // Takes the sizes of an array's buffers, in bytes, and of its children's behind them: depth first. Throws
  // std::invalid_argument for a type that is not read here, and for buffers that are too small for their array.
  Node(const ArrowSchema& schema, const ArrowArray& array, const std::int64_t*& sizes, const std::int64_t* sizes_end);

  Layout layout = Layout::nothing;
  DType dtype = DType::u8;  // of numbers
  bool text = false;        // bytes are UTF-8
  std::vector<Node> children;  // the dictionary's values of a dictionary, behind its indices
  std::vector<std::string> names;  // of a record's children
  std::int64_t length = 0;

  [[nodiscard]] bool is_list() const noexcept {
    return layout == Layout::list || layout == Layout::large_list || layout == Layout::fixed_list;
  }
  [[nodiscard]] bool may_be_null() const noexcept { return validity_ != nullptr || layout == Layout::nothing; }
  // Of a value below `length`.
  [[nodiscard]] bool is_null(std::int64_t i) const noexcept {
    if (layout == Layout::nothing) return true;
    if (validity_ == nullptr) return false;
    const std::int64_t at = offset_ + i;
    return ((validity_[at >> 3] >> (at & 7)) & 1) == 0;
  }
  [[nodiscard]] bool bit(std::int64_t i) const noexcept {
    const std::int64_t at = offset_ + i;
    return ((values_[at >> 3] >> (at & 7)) & 1) != 0;
  }
  // The place of what belongs to the i-th record, in its children.
  [[nodiscard]] std::int64_t child_row(std::int64_t i) const noexcept { return offset_ + i; }
  // Where truth values lie, and the number of the i-th one's bit there.
  [[nodiscard]] const std::uint8_t* bit_bytes() const noexcept { return values_; }
  [[nodiscard]] std::int64_t first_bit(std::int64_t i) const noexcept { return offset_ + i; }
  // Where the i-th number lies.
  [[nodiscard]] const std::uint8_t* number(std::int64_t i) const noexcept {
    return values_ + (offset_ + i) * static_cast<std::int64_t>(width_);
  }
  // The elements of the i-th list, in the child's values; nothing: the file lies.
  [[nodiscard]] std::optional<Span> elements(std::int64_t i) const noexcept;
  // The i-th text or bytes; nothing: the file lies.
  [[nodiscard]] std::optional<std::pair<const std::uint8_t*, std::size_t>> bytes(std::int64_t i) const noexcept;
  // Where the i-th value is found: to tell the processor of it before it is read.
  [[nodiscard]] const void* place(std::int64_t i) const noexcept;
  // Whether a value of these, or one below it, is null.
  [[nodiscard]] bool has_nulls(std::int64_t begin, std::int64_t end) const noexcept;

 private:
  template <class Offset>
  [[nodiscard]] std::optional<Span> between(std::int64_t i, std::int64_t limit) const noexcept;

  const std::uint8_t* validity_ = nullptr;  // null: no value is null
  const std::uint8_t* values_ = nullptr;    // or offsets, or views
  const std::uint8_t* data_ = nullptr;      // of bytes
  std::int64_t data_size_ = 0;
  std::vector<std::pair<const std::uint8_t*, std::int64_t>> view_data_;
  std::int64_t offset_ = 0;
  std::size_t width_ = 0;  // bytes of a number; elements of a list of a fixed size
};

}  // namespace penstock
