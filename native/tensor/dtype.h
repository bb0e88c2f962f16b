// Element types and the shape of one sample.
//
// Threads: plain values. Memory: no allocation; a shape of more than kMaxDims dimensions is left to Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock {

// The names are torch's (`torch.float32` is f32); the order is that of kDTypes.
enum class DType : std::uint8_t {
  u8, i8, i16, i32, i64, f16, f32, f64, bf16, boolean, c32, c64, c128, u16, u32, u64,
  f8_e4m3fn, f8_e5m2, f8_e4m3fnuz, f8_e5m2fnuz, f8_e8m0fnu,
};

struct DTypeInfo {
  std::string_view torch_name;  // attribute of the torch module
  std::size_t size;             // bytes an element
};

inline constexpr std::array<DTypeInfo, 21> kDTypes{{
    {"uint8", 1}, {"int8", 1}, {"int16", 2}, {"int32", 4}, {"int64", 8}, {"float16", 2}, {"float32", 4},
    {"float64", 8}, {"bfloat16", 2}, {"bool", 1}, {"complex32", 4}, {"complex64", 8}, {"complex128", 16},
    {"uint16", 2}, {"uint32", 4}, {"uint64", 8}, {"float8_e4m3fn", 1}, {"float8_e5m2", 1},
    {"float8_e4m3fnuz", 1}, {"float8_e5m2fnuz", 1}, {"float8_e8m0fnu", 1},
}};

constexpr const DTypeInfo& info(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

inline constexpr int kMaxDims = 8;

// Shape and dtype of one sample (a row of a batch), in C order. Never holds a negative extent; the
// product of the extents and the element size fits in 63 bits (see checked_bytes).
struct TensorSpec {
  DType dtype = DType::u8;
  std::uint8_t ndim = 0;
  std::array<std::int64_t, kMaxDims> shape{};

  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    if (a.dtype != b.dtype || a.ndim != b.ndim) return false;
    for (int d = 0; d < a.ndim; ++d)
      if (a.shape[d] != b.shape[d]) return false;
    return true;
  }
};

// Bytes of a tensor of this spec; false when an extent is negative or the product does not fit in 63 bits.
[[nodiscard]] inline bool checked_bytes(const TensorSpec& spec, std::int64_t& bytes) {
  std::int64_t total = static_cast<std::int64_t>(info(spec.dtype).size);
  bool zero = false;
  for (int d = 0; d < spec.ndim; ++d) {
    if (spec.shape[d] < 0) return false;
    if (spec.shape[d] == 0) { zero = true; continue; }
    if (__builtin_mul_overflow(total, spec.shape[d], &total)) return false;
  }
  bytes = zero ? 0 : total;
  return true;
}

}  // namespace penstock
