#include "tensor/column_filler.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace penstock {
namespace {

void unpack(const std::uint8_t* from, std::int64_t first, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = (from[(first + i) / 8] >> ((first + i) % 8)) & 1;
}

template <class From, class To>
void convert(const std::uint8_t* from, std::int64_t, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof value), sizeof value);
    const To converted = static_cast<To>(value);
    std::memcpy(to + i * static_cast<std::int64_t>(sizeof converted), &converted, sizeof converted);
  }
}

// Conversions that have one possible result: between whole numbers, modulo a power of two; of whole numbers to floats
// that hold each of them; and between floats, to the nearest one.
template <class From, class To>
constexpr bool kDefinite =
    std::is_integral_v<To> ? std::is_integral_v<From> : std::is_floating_point_v<From> || sizeof(From) < sizeof(To);

template <class From, class To>
Convert converter() {
  if constexpr (kDefinite<From, To>) {
    return &convert<From, To>;
  } else {
    return nullptr;
  }
}

template <class From>
Convert converter_to(DType dtype) {
  switch (dtype) {
    case DType::u8: return converter<From, std::uint8_t>();
    case DType::i8: return converter<From, std::int8_t>();
    case DType::i16: return converter<From, std::int16_t>();
    case DType::i32: return converter<From, std::int32_t>();
    case DType::i64: return converter<From, std::int64_t>();
    case DType::f32: return converter<From, float>();
    case DType::f64: return converter<From, double>();
    default: return nullptr;
  }
}

Convert converter_of(DType from, DType to) {
  switch (from) {
    case DType::boolean: return to == DType::boolean ? &unpack : nullptr;
    case DType::u8: return converter_to<std::uint8_t>(to);
    case DType::i8: return converter_to<std::int8_t>(to);
    case DType::u16: return converter_to<std::uint16_t>(to);
    case DType::i16: return converter_to<std::int16_t>(to);
    case DType::u32: return converter_to<std::uint32_t>(to);
    case DType::i32: return converter_to<std::int32_t>(to);
    case DType::i64: return converter_to<std::int64_t>(to);
    case DType::u64: return converter_to<std::uint64_t>(to);
    case DType::f32: return converter_to<float>(to);
    case DType::f64: return converter_to<double>(to);
    default: return nullptr;
  }
}

// The items of list `row` begin and end here; false where there is no such list.
bool bounds_of(const ListOffsets& lists, std::int64_t begin, std::int64_t end, std::int64_t& from, std::int64_t& to) {
  if (begin < 0 || end < begin || static_cast<std::uint64_t>(end) >= lists.count) return false;
  const auto read = [&](std::int64_t index) -> std::int64_t {
    if (lists.wide) {
      std::int64_t offset = 0;
      std::memcpy(&offset, lists.data + index * 8, sizeof offset);
      return offset;
    }
    std::int32_t offset = 0;
    std::memcpy(&offset, lists.data + index * 4, sizeof offset);
    return offset;
  };
  from = read(begin);
  to = read(end);
  return true;
}

}  // namespace

ColumnFiller::ColumnFiller(std::vector<ColumnChunk> chunks, DType stored, TensorSpec spec)
    : chunks_(std::move(chunks)),
      stored_bytes_(stored == DType::boolean ? 0 : info(stored).size),
      convert_(nullptr),
      spec_(spec),
      elements_(0) {
  std::int64_t bytes = 0;
  if (!checked_bytes(spec, bytes)) throw std::invalid_argument("a shape too large");
  elements_ = bytes / static_cast<std::int64_t>(info(spec.dtype).size);
  if (stored != spec.dtype || stored == DType::boolean) {
    convert_ = converter_of(stored, spec.dtype);
    if (convert_ == nullptr) throw std::invalid_argument("elements that the native core does not convert");
  }
  std::size_t end = 0;
  for (const ColumnChunk& chunk : chunks_) {
    std::int64_t needed = 0;
    if (chunk.lists.empty() &&
        (__builtin_mul_overflow(chunk.rows, elements_, &needed) || needed > chunk.elements))
      throw std::invalid_argument("a buffer too small for the rows of its chunk");
    ends_.push_back(end += chunk.rows);
  }
}

ColumnFiller::Place ColumnFiller::find(std::size_t local) const noexcept {
  const auto found = std::upper_bound(ends_.begin(), ends_.end(), local);
  if (found == ends_.end()) return {nullptr, 0};
  const auto number = static_cast<std::size_t>(found - ends_.begin());
  return {&chunks_[number], local - (number == 0 ? 0 : ends_[number - 1])};
}

Outcome ColumnFiller::fill(const SampleKey& key, const FileTable*, const TensorSpec& want, std::uint8_t* row,
                           TensorSpec& got, Scratch& scratch) const noexcept {
  const Place place = find(key.local);
  if (place.chunk == nullptr) return Outcome::io_error(ERANGE, "index");
  const ColumnChunk& chunk = *place.chunk;
  auto begin = static_cast<std::int64_t>(place.row), end = begin + 1;
  for (const ListOffsets& lists : chunk.lists)
    if (!bounds_of(lists, begin, end, begin, end)) return Outcome::moved("its offsets are damaged");
  if (chunk.lists.empty()) {
    begin *= elements_;
    end = begin + elements_;
  }
  if (begin < 0 || end < begin || end > chunk.elements) return Outcome::moved("its offsets are damaged");
  got = spec_;
  if (end - begin != elements_) {
    got.ndim = 1;
    got.shape[0] = end - begin;
  }
  if (!(want == got)) return Outcome::mismatch("shape or dtype");
  const std::int64_t count = end - begin;
  if (convert_ == nullptr) {
    const std::size_t bytes = static_cast<std::size_t>(count) * stored_bytes_;
    if (bytes > 0) std::memcpy(row, chunk.values + begin * static_cast<std::int64_t>(stored_bytes_), bytes);
  } else {
    const std::int64_t at = chunk.first + begin;
    convert_(chunk.values + (stored_bytes_ == 0 ? at / 8 : at * static_cast<std::int64_t>(stored_bytes_)), at % 8, count,
             row);
  }
  scratch.clock.defer(Stage::gather);
  return Outcome::success();
}

void ColumnFiller::prefetch(std::size_t local) const noexcept {
  const Place place = find(local);
  if (place.chunk == nullptr || !place.chunk->lists.empty()) return;
  const std::size_t bytes = static_cast<std::size_t>(elements_) * stored_bytes_;
  prefetch_bytes(place.chunk->values + place.row * bytes, bytes);
}

std::size_t ColumnFiller::memory_bytes() const noexcept {
  return std::max<std::size_t>(1, static_cast<std::size_t>(elements_) * info(spec_.dtype).size);
}

}  // namespace penstock
