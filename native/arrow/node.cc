#include "arrow/node.h"

#include <charconv>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace penstock {
namespace {

struct Format {
  Layout layout;
  DType dtype = DType::u8;
  bool text = false;
  std::int64_t width = 0;
};

std::int64_t size_in(std::string_view digits) {
  std::int64_t size = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  if (error != std::errc{} || end != digits.data() + digits.size() || size < 0 ||
      size > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("a fixed size of Arrow's that is no number");
  return size;
}

Format format_of(std::string_view name) {
  if (name.size() == 1) {
    switch (name[0]) {
      case 'n': return {Layout::nothing};
      case 'b': return {Layout::bits};
      case 'c': return {Layout::numbers, DType::i8};
      case 'C': return {Layout::numbers, DType::u8};
      case 's': return {Layout::numbers, DType::i16};
      case 'S': return {Layout::numbers, DType::u16};
      case 'i': return {Layout::numbers, DType::i32};
      case 'I': return {Layout::numbers, DType::u32};
      case 'l': return {Layout::numbers, DType::i64};
      case 'L': return {Layout::numbers, DType::u64};
      case 'f': return {Layout::numbers, DType::f32};
      case 'g': return {Layout::numbers, DType::f64};
      case 'u': return {Layout::bytes, DType::u8, true};
      case 'z': return {Layout::bytes};
      case 'U': return {Layout::large_bytes, DType::u8, true};
      case 'Z': return {Layout::large_bytes};
      default: break;
    }
  }
  if (name == "vu") return {Layout::views, DType::u8, true};
  if (name == "vz") return {Layout::views};
  if (name == "+l") return {Layout::list};
  if (name == "+L") return {Layout::large_list};
  if (name == "+s") return {Layout::record};
  if (name.starts_with("w:")) return {Layout::fixed_bytes, DType::u8, false, size_in(name.substr(2))};
  if (name.starts_with("+w:")) return {Layout::fixed_list, DType::u8, false, size_in(name.substr(3))};
  throw std::invalid_argument("a type of Arrow's that is not read natively");
}

void check(bool holds) {
  if (!holds) throw std::invalid_argument("an Arrow array whose buffers are smaller than it says");
}

}  // namespace

Node::Node(const ArrowSchema& schema, const ArrowArray& array, const std::int64_t*& sizes,
           const std::int64_t* sizes_end)
    : length(array.length), offset_(array.offset) {
  const Format format = format_of(schema.format);
  layout = format.layout;
  dtype = format.dtype;
  text = format.text;
  width_ = layout == Layout::numbers ? info(dtype).size : static_cast<std::size_t>(format.width);
  constexpr std::int64_t kMost = std::int64_t{1} << 56;  // so that no product below overflows
  check(length >= 0 && offset_ >= 0 && length < kMost && offset_ < kMost && array.n_buffers >= 0);
  // The view types end with a buffer of the sizes of the others, which only this interface has.
  const std::int64_t buffers = array.n_buffers - (layout == Layout::views ? 1 : 0);
  check(buffers >= 0 && sizes_end - sizes >= buffers);
  const std::int64_t* const size = sizes;
  sizes += buffers;
  const std::int64_t end = offset_ + length;
  const auto buffer = [&](std::int64_t number, std::int64_t bytes) -> const std::uint8_t* {
    check(number < buffers);
    const auto* const found = static_cast<const std::uint8_t*>(array.buffers[number]);
    check(bytes == 0 || (found != nullptr && size[number] >= bytes));
    return found;
  };
  if (layout != Layout::nothing && buffers > 0 && array.buffers[0] != nullptr && array.null_count != 0)
    validity_ = buffer(0, (end + 7) / 8);
  const auto item = static_cast<std::int64_t>(width_);
  switch (layout) {
    case Layout::bits: values_ = buffer(1, (end + 7) / 8); break;
    case Layout::numbers: values_ = buffer(1, end * item); break;
    case Layout::fixed_bytes:
      check(item == 0 || end <= std::numeric_limits<std::int64_t>::max() / item);
      values_ = buffer(1, end * item);
      break;
    case Layout::list: values_ = buffer(1, length == 0 ? 0 : (end + 1) * 4); break;
    case Layout::large_list: values_ = buffer(1, length == 0 ? 0 : (end + 1) * 8); break;
    case Layout::bytes:
    case Layout::large_bytes:
      values_ = buffer(1, length == 0 ? 0 : (end + 1) * (layout == Layout::bytes ? 4 : 8));
      data_ = buffer(2, 0);
      data_size_ = data_ == nullptr ? 0 : size[2];
      break;
    case Layout::views:
      values_ = buffer(1, end * 16);
      for (std::int64_t number = 2; number < buffers; ++number)
        view_data_.emplace_back(static_cast<const std::uint8_t*>(array.buffers[number]), size[number]);
      break;
    default: break;
  }
  check(array.n_children == schema.n_children && array.n_children >= 0);
  const bool record = layout == Layout::record;
  check(record || array.n_children == (is_list() ? 1 : 0));
  children.reserve(static_cast<std::size_t>(array.n_children));
  for (std::int64_t i = 0; i < array.n_children; ++i) {
    children.emplace_back(*schema.children[i], *array.children[i], sizes, sizes_end);
    if (record) {
      names.emplace_back(schema.children[i]->name == nullptr ? "" : schema.children[i]->name);
      check(children.back().length >= end);
    }
  }
  if (layout == Layout::fixed_list)
    check(item == 0 || end <= children[0].length / item);
  if (schema.dictionary != nullptr) {  // this array holds indices of its values
    check(layout == Layout::numbers && array.dictionary != nullptr && dtype != DType::u64 && dtype != DType::f32 && dtype != DType::f64);
    layout = Layout::dictionary;
    children.emplace_back(*schema.dictionary, *array.dictionary, sizes, sizes_end);
  }
}

template <class Offset>
std::optional<Span> Node::between(std::int64_t i, std::int64_t limit) const noexcept {
  Offset found[2];
  std::memcpy(found, values_ + (offset_ + i) * static_cast<std::int64_t>(sizeof(Offset)), sizeof found);
  if (found[0] < 0 || found[1] < found[0] || found[1] > limit) return std::nullopt;
  return Span{found[0], found[1]};
}

std::optional<Span> Node::elements(std::int64_t i) const noexcept {
  switch (layout) {
    case Layout::list: return between<std::int32_t>(i, children[0].length);
    case Layout::large_list: return between<std::int64_t>(i, children[0].length);
    case Layout::fixed_list: {
      const auto size = static_cast<std::int64_t>(width_);
      return Span{(offset_ + i) * size, (offset_ + i + 1) * size};
    }
    default: return std::nullopt;
  }
}

std::optional<std::pair<const std::uint8_t*, std::size_t>> Node::bytes(std::int64_t i) const noexcept {
  if (layout == Layout::fixed_bytes) return std::pair{number(i), width_};
  if (layout == Layout::views) {
    const std::uint8_t* const view = values_ + (offset_ + i) * 16;
    std::int32_t words[4];
    std::memcpy(words, view, sizeof words);
    if (words[0] < 0) return std::nullopt;
    if (words[0] <= 12) return std::pair{view + 4, static_cast<std::size_t>(words[0])};
    if (words[2] < 0 || static_cast<std::size_t>(words[2]) >= view_data_.size() || words[3] < 0) return std::nullopt;
    const auto& [data, size] = view_data_[static_cast<std::size_t>(words[2])];
    if (data == nullptr || std::int64_t{words[3]} + words[0] > size) return std::nullopt;
    return std::pair{data + words[3], static_cast<std::size_t>(words[0])};
  }
  const auto span = layout == Layout::bytes ? between<std::int32_t>(i, data_size_) : between<std::int64_t>(i, data_size_);
  if (!span) return std::nullopt;
  return std::pair{data_ + span->begin, static_cast<std::size_t>(span->size())};
}

const void* Node::place(std::int64_t i) const noexcept {
  switch (layout) {
    case Layout::bits: return values_ + ((offset_ + i) >> 3);
    case Layout::bytes:
    case Layout::list: return values_ + (offset_ + i) * 4;
    case Layout::large_bytes:
    case Layout::large_list: return values_ + (offset_ + i) * 8;
    case Layout::views: return values_ + (offset_ + i) * 16;
    case Layout::numbers:
    case Layout::dictionary:
    case Layout::fixed_bytes: return number(i);
    case Layout::fixed_list: return children[0].place((offset_ + i) * static_cast<std::int64_t>(width_));
    default: return validity_;
  }
}

bool Node::has_nulls(std::int64_t begin, std::int64_t end) const noexcept {
  if (layout == Layout::nothing) return end > begin;
  for (std::int64_t i = begin; validity_ != nullptr && i < end; ++i)
    if (is_null(i)) return true;
  if (layout == Layout::record) {
    for (const Node& child : children)
      if (child.has_nulls(offset_ + begin, offset_ + end)) return true;
  } else if (is_list()) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto span = elements(i);
      if (!span || children[0].has_nulls(span->begin, span->end)) return true;
    }
  }
  return false;  // a dictionary's null values are its reader's
}

}  // namespace penstock
