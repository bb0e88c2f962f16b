// Samples that are tensors, copied into their rows of a batch without a call of torch's a sample; labels likewise.
//
// Threads: any; Python's lock is released while elements are copied. Memory: tensors are borrowed, the caller holds them
// for the length of the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bind/bind.h"
#include "bind/exchange_api.h"
#include "bind/gil_released.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

constexpr std::size_t kAtOnce = 64 * 1024;  // bytes that are copied without letting Python's lock go

bool contiguous(const nb::dlpack::dltensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t step = 1;
  for (std::int32_t d = tensor.ndim; d-- > 0;) {
    if (tensor.shape[d] != 1 && tensor.strides[d] != step) return false;
    step *= std::max<std::int64_t>(tensor.shape[d], 1);
  }
  return true;
}

bool same_type(const nb::dlpack::dtype& a, const nb::dlpack::dtype& b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

const std::byte* first(const nb::dlpack::dltensor& tensor) {
  return static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
}

class Stacker {
 public:
  Stacker(nb::handle kind, const nb::capsule& api)
      : kind_(nb::borrow(kind)), api_(exchange_api(api)) {
    if (api_->view == nullptr) throw nb::value_error("a DLPack without views");
  }

  // False, and nothing is written: a value is not a plain tensor like the rows.
  bool stack(nb::handle out, std::int64_t begin, const nb::list& values) const {
    nb::dlpack::dltensor rows{};
    if (!view(out, rows)) return false;
    const std::size_t count = values.size();
    if (rows.dtype.bits % 8 != 0) return false;
    if (!contiguous(rows) || rows.ndim < 1 || begin < 0 || rows.shape[0] < begin ||
        static_cast<std::size_t>(rows.shape[0] - begin) < count)
      throw nb::value_error("these rows cannot be written");
    std::size_t row_bytes = rows.dtype.bits / 8u * rows.dtype.lanes;
    for (std::int32_t d = 1; d < rows.ndim; ++d) row_bytes *= static_cast<std::size_t>(rows.shape[d]);
    std::vector<const std::byte*> sources(count);
    for (std::size_t i = 0; i < count; ++i) {
      nb::dlpack::dltensor value{};
      const nb::handle object = values[i];
      if (Py_TYPE(object.ptr()) != reinterpret_cast<PyTypeObject*>(kind_.ptr()) || !view(object, value)) return false;
      if (value.device.device_type != nb::device::cpu::value || !same_type(value.dtype, rows.dtype) ||
          value.ndim != rows.ndim - 1 || !contiguous(value))
        return false;
      for (std::int32_t d = 0; d < value.ndim; ++d)
        if (value.shape[d] != rows.shape[d + 1]) return false;
      if (value.data == nullptr && row_bytes > 0) return false;
      sources[i] = first(value);
    }
    if (row_bytes == 0) return true;
    std::byte* row = const_cast<std::byte*>(first(rows)) + static_cast<std::size_t>(begin) * row_bytes;
    const auto copy = [&] {
      for (const std::byte* const source : sources) {
        std::memcpy(row, source, row_bytes);
        row += row_bytes;
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

 private:
  bool view(nb::handle object, nb::dlpack::dltensor& out) const {
    if (api_->view(object.ptr(), &out) == 0) return true;
    PyErr_Clear();
    return false;
  }

  nb::object kind_;
  const ExchangeApi* api_;  // torch's, for the life of the process
};

// False: one of the values is not an int of Python's type that fits, or the list lacks a position.
bool take_integers(const nb::list& values, const nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& positions,
                   const nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& out) {
  const std::size_t count = positions.shape(0);
  if (out.shape(0) != count) throw nb::value_error("not as many rows as positions");
  const auto size = static_cast<std::int64_t>(values.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t position = positions.data()[i];
    if (position < 0 || position >= size) return false;
    PyObject* const value = PyList_GetItem(values.ptr(), position);
    if (!PyLong_CheckExact(value)) return false;
    int overflow = 0;
    out.data()[i] = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
  }
  return true;
}

}  // namespace

void bind_collate(nb::module_& m) {
  m.def("take_integers", &take_integers, "values"_a, "positions"_a, "out"_a.noconvert());
  nb::class_<Stacker>(m, "Stacker")
      .def(nb::init<nb::handle, const nb::capsule&>(), "kind"_a, "api"_a)
      .def("stack", &Stacker::stack, "out"_a, "begin"_a, "values"_a);
}

}  // namespace penstock
