#include "tensor/column_filler.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace penstock {
namespace {

template <class From, class To>
void convert(const std::uint8_t* from, std::size_t count, std::uint8_t* to) {
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    const To converted = static_cast<To>(value);
    std::memcpy(to + i * sizeof converted, &converted, sizeof converted);
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

}  // namespace

ColumnFiller::ColumnFiller(std::vector<ColumnChunk> chunks, std::size_t elements, DType stored, TensorSpec spec)
    : chunks_(std::move(chunks)), elements_(elements), row_bytes_(elements * info(stored).size), spec_(spec) {
  if (stored != spec.dtype) {
    convert_ = converter_of(stored, spec.dtype);
    if (convert_ == nullptr) throw std::invalid_argument("elements that the native core does not convert");
  }
  std::size_t end = 0;
  for (const ColumnChunk& chunk : chunks_) ends_.push_back(end += chunk.rows);
}

const std::uint8_t* ColumnFiller::find(std::size_t local) const noexcept {
  const auto found = std::upper_bound(ends_.begin(), ends_.end(), local);
  if (found == ends_.end()) return nullptr;
  const auto number = static_cast<std::size_t>(found - ends_.begin());
  return chunks_[number].values + (local - (number == 0 ? 0 : ends_[number - 1])) * row_bytes_;
}

Outcome ColumnFiller::fill(const SampleKey& key, const FileTable*, const TensorSpec& want, std::uint8_t* row,
                           TensorSpec& got, Scratch& scratch) const noexcept {
  const std::uint8_t* const values = find(key.local);
  if (values == nullptr) return Outcome::io_error(ERANGE, "index");
  got = spec_;
  if (!(want == got)) return Outcome::mismatch("shape or dtype");
  if (convert_ != nullptr)
    convert_(values, elements_, row);
  else if (row_bytes_ > 0)
    std::memcpy(row, values, row_bytes_);
  scratch.clock.defer(Stage::gather);
  return Outcome::success();
}

void ColumnFiller::prefetch(std::size_t local) const noexcept {
  if (const std::uint8_t* const values = find(local)) prefetch_bytes(values, row_bytes_);
}

std::size_t ColumnFiller::memory_bytes() const noexcept { return std::max<std::size_t>(1, elements_ * info(spec_.dtype).size); }

}  // namespace penstock
