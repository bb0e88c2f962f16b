#include "arrow/column.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "tensor/element_types.h"

namespace penstock {
namespace {

constexpr std::size_t kAhead = 8;  // rows that the processor is told of before they are read

bool same_type(const Node& a, const Node& b) {
  return a.layout == b.layout && a.dtype == b.dtype && a.text == b.text && a.names == b.names &&
         std::equal(a.children.begin(), a.children.end(), b.children.begin(), b.children.end(), same_type);
}

// The node of a column's numbers: its own, or that of its lists' elements; null: there are none.
const Node* numbers_of(const Node& node) {
  const Node& found = node.is_list() ? node.children[0] : node;
  return found.layout == Layout::numbers || found.layout == Layout::bits ? &found : nullptr;
}

template <std::size_t kSize>
void repeat(const std::uint8_t* element, std::size_t count, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) std::memcpy(out + i * kSize, element, kSize);
}

void fill_with(const std::uint8_t* element, std::size_t size, std::size_t count, std::uint8_t* out) {
  switch (size) {
    case 1: return repeat<1>(element, count, out);
    case 2: return repeat<2>(element, count, out);
    case 4: return repeat<4>(element, count, out);
    default: return repeat<8>(element, count, out);
  }
}

}  // namespace

void ArrowColumn::add(const ArrowSchema& schema, OwnedArray array, const std::vector<std::int64_t>& sizes) {
  const std::int64_t* at = sizes.data();
  Node node(schema, array.get(), at, at + sizes.size());
  if (!chunks_.empty() && !same_type(chunks_.front(), node)) throw std::invalid_argument("chunks of different types");
  arrays_.push_back(std::move(array));
  ends_.push_back(rows() + node.length);
  chunks_.push_back(std::move(node));
}

ColumnPlace ArrowColumn::place(std::int64_t row) const noexcept {
  const auto begin_of = [&](std::size_t number) { return number == 0 ? 0 : ends_[number - 1]; };
  // Writers make chunks of one length, but for the last.
  auto number = ends_[0] == 0 ? 0 : std::min(static_cast<std::size_t>(row / ends_[0]), ends_.size() - 1);
  if (row < begin_of(number) || row >= ends_[number])
    number = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin());
  return {&chunks_[number], row - begin_of(number)};
}

void ArrowColumn::prefetch(std::int64_t row) const noexcept {
  const auto [chunk, i] = place(row);
  __builtin_prefetch(chunk->place(i));
}

bool find_numbers(const ArrowColumn& column, const std::int64_t* rows, std::size_t count, NumberSpan* found) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    if (rows[i] < 0 || rows[i] >= column.rows()) return false;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) column.prefetch(rows[i + kAhead]);
    const auto [chunk, row] = column.place(rows[i]);
    const Node* const numbers = numbers_of(*chunk);
    if (numbers == nullptr || chunk->is_null(row)) return false;
    Span span{row, row + 1};
    if (chunk->is_list()) {
      const auto elements = chunk->elements(row);
      if (!elements) return false;
      span = *elements;
    }
    if (numbers->may_be_null() && numbers->has_nulls(span.begin, span.end)) return false;
    const bool bits = numbers->layout == Layout::bits;
    found[i] = {bits ? numbers->bit_bytes() : numbers->number(span.begin), bits ? numbers->first_bit(span.begin) : 0,
                span.size()};
  }
  return true;
}

NumberWriter::NumberWriter(const ArrowColumn& column, DType to) : to_(info(to).size) {
  if (to_ > 8) throw std::invalid_argument("elements that the native core does not convert");
  const Node* const numbers = column.first() == nullptr ? nullptr : numbers_of(*column.first());
  if (numbers == nullptr) throw std::invalid_argument("a column that holds no numbers");
  bits_ = numbers->layout == Layout::bits;
  const DType from = bits_ ? DType::u8 : numbers->dtype;
  from_ = bits_ ? 1 : info(from).size;
  if (from == to || (bits_ && to == DType::boolean)) return;
  convert_ = converter_of(from, to);
  if (convert_ == nullptr) throw std::invalid_argument("numbers that the native core does not convert");
}

void NumberWriter::write(const NumberSpan& row, std::int64_t count, std::uint8_t* out) const noexcept {
  const auto elements = static_cast<std::size_t>(count);
  if (bits_) {
    for (std::size_t i = 0; i < elements; ++i) {
      const std::int64_t at = row.first_bit + static_cast<std::int64_t>(i);
      const auto bit = static_cast<std::uint8_t>((row.values[at >> 3] >> (at & 7)) & 1);
      if (convert_ == nullptr)
        out[i] = bit;
      else
        convert_(&bit, 1, out + i * to_);
    }
  } else if (convert_ != nullptr) {
    convert_(row.values, elements, out);
  } else if (elements > 0) {
    std::memcpy(out, row.values, elements * to_);
  }
}

void NumberWriter::flat(const NumberSpan* rows, std::size_t count, std::uint8_t* out) const noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(rows[i + kAhead].values);
    write(rows[i], rows[i].count, out);
    out += static_cast<std::size_t>(rows[i].count) * to_;
  }
}

void NumberWriter::padded(const NumberSpan* rows, std::size_t count, std::int64_t width, const std::uint8_t* fill,
                          Side side, std::uint8_t* out) const noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(rows[i + kAhead].values);
    const std::int64_t given = std::min(rows[i].count, width);
    const auto missing = static_cast<std::size_t>(width - given);
    std::uint8_t* const behind = out + (side == Side::left ? missing * to_ : 0);
    fill_with(fill, to_, missing, side == Side::left ? out : out + static_cast<std::size_t>(given) * to_);
    write(rows[i], given, behind);
    out += static_cast<std::size_t>(width) * to_;
  }
}

}  // namespace penstock
