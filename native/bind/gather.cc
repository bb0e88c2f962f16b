// Rows of an array in memory, copied one behind another: a batch of a dataset that only indexes what it holds.
//
// Threads: any; Python's lock is released while many bytes are copied. Memory: the caller says before each call that the
// array lies where it did, and holds the numbers and the rows for the length of the call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "bind/bind.h"
#include "bind/gil_released.h"
#include "bind/spec.h"
#include "tensor/element_types.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

constexpr std::size_t kAtOnce = 64 * 1024;  // bytes that are copied without letting Python's lock go
constexpr std::size_t kAhead = 8;           // rows that the processor is told of before they are copied

template <class T>
T* pointer(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Rows of a size that the compiler knows; 0: of any size.
template <std::size_t kBytes>
void copy_rows(const std::byte* base, std::ptrdiff_t stride, std::size_t row_bytes, const std::int64_t* numbers,
               std::size_t count, std::int64_t from_end, std::byte* out) {
  const auto place = [&](std::size_t i) {
    return base + (numbers[i] < 0 ? numbers[i] + from_end : numbers[i]) * stride;
  };
  const std::size_t bytes = kBytes == 0 ? row_bytes : kBytes;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(place(i + kAhead));
    std::memcpy(out + i * bytes, place(i), bytes);
  }
}

// False, and nothing is written: there is no such row. Negative numbers count from the end, but for windows.
bool gather_rows(std::uintptr_t array, std::int64_t rows, std::ptrdiff_t stride, std::size_t row_bytes,
                 std::uintptr_t numbers_at, std::size_t count, std::uintptr_t out_at, bool windows) {
  const auto* const base = pointer<const std::byte>(array);
  const auto* const numbers = pointer<const std::int64_t>(numbers_at);
  auto* const out = pointer<std::byte>(out_at);
  const std::int64_t least = windows ? 0 : -rows;
  for (std::size_t i = 0; i < count; ++i)
    if (numbers[i] < least || numbers[i] >= rows) return false;
  if (row_bytes == 0) return true;
  const auto copy = [&] {
    switch (row_bytes) {
      case 1: return copy_rows<1>(base, stride, row_bytes, numbers, count, rows, out);
      case 4: return copy_rows<4>(base, stride, row_bytes, numbers, count, rows, out);
      case 8: return copy_rows<8>(base, stride, row_bytes, numbers, count, rows, out);
      default: return copy_rows<0>(base, stride, row_bytes, numbers, count, rows, out);
    }
  };
  if (count * row_bytes <= kAtOnce) {
    copy();
  } else {
    const GilReleased released;
    copy();
  }
  return true;
}

// Columns of one length whose elements are gathered row by row, as elements of one type.
class ColumnRows {
 public:
  ColumnRows(std::int64_t rows, const std::string& dtype) : rows_(rows), to_(dtype_named(dtype)), size_(info(to_).size) {}

  // False: elements of this type are not converted here.
  bool add(std::uintptr_t address, std::ptrdiff_t stride, const std::string& dtype) {
    const DType from = dtype_named(dtype);
    const Convert convert = from == to_ ? nullptr : converter_of(from, to_);
    if (from != to_ && convert == nullptr) return false;
    columns_.push_back({pointer<const std::uint8_t>(address), stride, convert});
    return true;
  }

  // False, and nothing is written: there is no such row. Negative numbers count from the end.
  bool gather(std::uintptr_t numbers_at, std::size_t count, std::uintptr_t out_at) const {
    const auto* const numbers = pointer<const std::int64_t>(numbers_at);
    for (std::size_t i = 0; i < count; ++i)
      if (numbers[i] < -rows_ || numbers[i] >= rows_) return false;
    const std::size_t row_bytes = columns_.size() * size_;
    auto* out = pointer<std::uint8_t>(out_at);
    for (const Column& column : columns_) {
      const auto place = [&](std::size_t i) {
        return column.base + (numbers[i] < 0 ? numbers[i] + rows_ : numbers[i]) * column.stride;
      };
      for (std::size_t i = 0; i < count; ++i) {
        if (i + kAhead < count) __builtin_prefetch(place(i + kAhead));
        const std::uint8_t* const from = place(i);
        if (column.convert == nullptr)
          std::memcpy(out + i * row_bytes, from, size_);
        else
          column.convert(from, 1, out + i * row_bytes);
      }
      out += size_;
    }
    return true;
  }

 private:
  struct Column {
    const std::uint8_t* base;
    std::ptrdiff_t stride;
    Convert convert;  // null: the bytes are copied
  };
  std::vector<Column> columns_;
  std::int64_t rows_;
  DType to_;
  std::size_t size_;
};

// False: one of the values is not an int of Python's type that fits. `out` has room for all of them.
bool write_integers(const nb::list& values, std::uintptr_t out_at) {
  auto* const out = pointer<std::int64_t>(out_at);
  const std::size_t count = values.size();
  for (std::size_t i = 0; i < count; ++i) {
    PyObject* const value = PyList_GetItem(values.ptr(), static_cast<Py_ssize_t>(i));
    if (!PyLong_CheckExact(value)) return false;
    int overflow = 0;
    out[i] = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
  }
  return true;
}

}  // namespace

void bind_gather(nb::module_& m) {
  m.def("gather_rows", &gather_rows, "array"_a, "rows"_a, "stride"_a, "row_bytes"_a, "numbers"_a, "count"_a, "out"_a,
        "windows"_a);
  nb::class_<ColumnRows>(m, "ColumnRows")
      .def(nb::init<std::int64_t, const std::string&>(), "rows"_a, "dtype"_a)
      .def("add", &ColumnRows::add, "address"_a, "stride"_a, "dtype"_a)
      .def("gather", &ColumnRows::gather, "numbers"_a, "count"_a, "out"_a);
  m.def("write_integers", &write_integers, "values"_a, "out"_a);
}

}  // namespace penstock
