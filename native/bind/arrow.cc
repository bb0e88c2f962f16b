// Columns of Arrow tables: their rows as Python's objects, and their numbers written into memory of the caller's.
//
// Threads: any; Python's lock is released while many numbers are written. Memory: a column holds the arrays that it was
// given; the caller holds what is written into for the length of a call.
#include "arrow/column.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "arrow/interface.h"
#include "arrow/node.h"
#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "bind/spec.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

constexpr std::size_t kAtOnce = 64 * 1024;  // elements that are written without letting Python's lock go
constexpr std::size_t kAhead = 8;           // rows that the processor is told of before they are made
constexpr int kDeepest = 64;                // levels of lists and records

template <class T>
T& pointed(const nb::object& capsule, const char* name) {
  void* const found = PyCapsule_GetPointer(capsule.ptr(), name);
  if (found == nullptr) throw nb::python_error();
  return *static_cast<T*>(found);
}

// A new reference, as a C function returned it.
nb::object made(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

[[noreturn]] void raise_damaged() {
  throw nb::value_error("the offsets of an Arrow column lead out of its data: the file is damaged");
}

void check_rows(const ArrowColumn& column, const IndexArray& rows) {
  for (std::size_t i = 0; i < rows.shape(0); ++i)
    if (rows.data()[i] < 0 || rows.data()[i] >= column.rows()) throw nb::index_error("no such row");
}

template <class T>
T loaded(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

nb::object number_object(const Node& node, const std::uint8_t* at) {
  switch (node.dtype) {
    case DType::i8: return made(PyLong_FromLong(loaded<std::int8_t>(at)));
    case DType::u8: return made(PyLong_FromLong(loaded<std::uint8_t>(at)));
    case DType::i16: return made(PyLong_FromLong(loaded<std::int16_t>(at)));
    case DType::u16: return made(PyLong_FromLong(loaded<std::uint16_t>(at)));
    case DType::i32: return made(PyLong_FromLong(loaded<std::int32_t>(at)));
    case DType::u32: return made(PyLong_FromUnsignedLong(loaded<std::uint32_t>(at)));
    case DType::i64: return made(PyLong_FromLongLong(loaded<std::int64_t>(at)));
    case DType::u64: return made(PyLong_FromUnsignedLongLong(loaded<std::uint64_t>(at)));
    case DType::f32: return made(PyFloat_FromDouble(static_cast<double>(loaded<float>(at))));
    default: return made(PyFloat_FromDouble(loaded<double>(at)));
  }
}

std::int64_t number_value(const Node& node, const std::uint8_t* at) {
  switch (node.dtype) {
    case DType::i8: return loaded<std::int8_t>(at);
    case DType::u8: return loaded<std::uint8_t>(at);
    case DType::i16: return loaded<std::int16_t>(at);
    case DType::u16: return loaded<std::uint16_t>(at);
    case DType::i32: return loaded<std::int32_t>(at);
    case DType::u32: return loaded<std::uint32_t>(at);
    case DType::i64: return loaded<std::int64_t>(at);
    default: return -1;
  }
}

nb::object object_of(const Node& node, std::int64_t i, int depth);

nb::object list_of(const Node& node, Span span, int depth) {
  nb::object list = made(PyList_New(static_cast<Py_ssize_t>(span.size())));
  for (std::int64_t i = span.begin; i < span.end; ++i)
    PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i - span.begin), object_of(node, i, depth).release().ptr());
  return list;
}

// What pyarrow's to_pylist() gives for a value.
nb::object object_of(const Node& node, std::int64_t i, int depth) {
  if (depth > kDeepest) throw nb::value_error("lists of too many levels");
  if (node.is_null(i)) return nb::none();
  switch (node.layout) {
    case Layout::nothing: return nb::none();
    case Layout::bits: return nb::bool_(node.bit(i));
    case Layout::numbers: return number_object(node, node.number(i));
    case Layout::bytes:
    case Layout::large_bytes:
    case Layout::fixed_bytes:
    case Layout::views: {
      const auto found = node.bytes(i);
      if (!found) raise_damaged();
      const auto* const text = reinterpret_cast<const char*>(found->first);
      const auto size = static_cast<Py_ssize_t>(found->second);
      const char* const bytes = text == nullptr ? "" : text;
      return made(node.text ? PyUnicode_FromStringAndSize(bytes, size) : PyBytes_FromStringAndSize(bytes, size));
    }
    case Layout::list:
    case Layout::large_list:
    case Layout::fixed_list: {
      const auto span = node.elements(i);
      if (!span) raise_damaged();
      return list_of(node.children[0], *span, depth + 1);
    }
    case Layout::record: {
      nb::dict record;
      for (std::size_t field = 0; field < node.children.size(); ++field)
        record[nb::str(node.names[field].data(), node.names[field].size())] =
            object_of(node.children[field], node.child_row(i), depth + 1);
      return record;
    }
    case Layout::dictionary: {
      const std::int64_t value = number_value(node, node.number(i));
      if (value < 0 || value >= node.children[0].length) raise_damaged();
      return object_of(node.children[0], value, depth + 1);
    }
  }
  return nb::none();
}

nb::object objects(const ArrowColumn& column, const IndexArray& rows) {
  check_rows(column, rows);
  const std::size_t count = rows.shape(0);
  nb::object list = made(PyList_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) column.prefetch(rows.data()[i + kAhead]);
    const auto [chunk, row] = column.place(rows.data()[i]);
    PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), object_of(*chunk, row, 0).release().ptr());
  }
  return list;
}

// False: a row is null, or the column holds no lists.
bool write_lengths(const ArrowColumn& column, const IndexArray& rows, std::uintptr_t out_at) {
  check_rows(column, rows);
  auto* const out = reinterpret_cast<std::int64_t*>(out_at);
  for (std::size_t i = 0; i < rows.shape(0); ++i) {
    if (i + kAhead < rows.shape(0)) column.prefetch(rows.data()[i + kAhead]);
    const auto [chunk, row] = column.place(rows.data()[i]);
    if (!chunk->is_list() || chunk->is_null(row)) return false;
    const auto span = chunk->elements(row);
    if (!span) raise_damaged();
    out[i] = span->size();
  }
  return true;
}

bool has_nulls(const ArrowColumn& column, const IndexArray& rows) {
  check_rows(column, rows);
  for (std::size_t i = 0; i < rows.shape(0); ++i) {
    const auto [chunk, row] = column.place(rows.data()[i]);
    if (chunk->has_nulls(row, row + 1)) return true;
  }
  return false;
}

template <class Write>
void write_all(std::size_t elements, Write write) {
  if (elements <= kAtOnce) {
    write();
  } else {
    const GilReleased released;
    write();
  }
}

// Writes at most `room` elements. False: a number is missing, or there are other than `room`.
bool write_flat(const ArrowColumn& column, const IndexArray& rows, std::uintptr_t out_at, std::int64_t room,
                const std::string& dtype) {
  check_rows(column, rows);
  std::vector<NumberSpan> found(rows.shape(0));
  if (!find_numbers(column, rows.data(), found.size(), found.data())) return false;
  std::int64_t elements = 0;
  for (const NumberSpan& row : found) elements += row.count;
  if (elements != room) return false;
  const NumberWriter writer(column, dtype_named(dtype));
  write_all(static_cast<std::size_t>(elements),
            [&] { writer.flat(found.data(), found.size(), reinterpret_cast<std::uint8_t*>(out_at)); });
  return true;
}

// Writes rows of `width` elements; `fill` is one element, as the output has them. False: a number is missing.
bool write_padded(const ArrowColumn& column, const IndexArray& rows, std::uintptr_t out_at, std::int64_t width,
                  const std::string& dtype, const nb::bytes& fill, bool left) {
  check_rows(column, rows);
  const DType to = dtype_named(dtype);
  if (width < 0 || fill.size() != info(to).size) throw nb::value_error("a width, or a fill, of another size");
  std::vector<NumberSpan> found(rows.shape(0));
  if (!find_numbers(column, rows.data(), found.size(), found.data())) return false;
  const NumberWriter writer(column, to);
  const auto* const element = reinterpret_cast<const std::uint8_t*>(fill.c_str());
  write_all(found.size() * static_cast<std::size_t>(width), [&] {
    writer.padded(found.data(), found.size(), width, element, left ? Side::left : Side::right,
                  reinterpret_cast<std::uint8_t*>(out_at));
  });
  return true;
}

void add_chunk(ArrowColumn& column, const nb::object& schema, const nb::object& array,
               const std::vector<std::int64_t>& sizes) {
  column.add(pointed<ArrowSchema>(schema, "arrow_schema"), OwnedArray(pointed<ArrowArray>(array, "arrow_array")),
             sizes);
}

}  // namespace

void bind_arrow(nb::module_& m) {
  nb::class_<ArrowColumn>(m, "ArrowColumn")
      .def(nb::init<>())
      .def("add", &add_chunk, "schema"_a, "array"_a, "sizes"_a)
      .def_prop_ro("rows", &ArrowColumn::rows)
      .def("objects", &objects, "rows"_a)
      .def("has_nulls", &has_nulls, "rows"_a)
      .def("write_lengths", &write_lengths, "rows"_a, "out"_a)
      .def("write_flat", &write_flat, "rows"_a, "out"_a, "room"_a, "dtype"_a)
      .def("write_padded", &write_padded, "rows"_a, "out"_a, "width"_a, "dtype"_a, "fill"_a, "left"_a);
}

}  // namespace penstock
