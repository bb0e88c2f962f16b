#include "tensor/element_types.h"

#include <cstring>
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

// Conversions that have one possible result: between whole numbers, modulo a power of two; and of numbers to floats that
// are no shorter, or between floats, to the nearest one.
template <class From, class To>
constexpr bool kDefinite =
    std::is_integral_v<To> ? std::is_integral_v<From> : std::is_floating_point_v<From> || sizeof(From) <= sizeof(To);

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

}  // namespace

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

}  // namespace penstock
