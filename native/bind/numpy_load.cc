// numpy.load: the array of an .npy file, in memory of numpy's own.
//
// Threads: any number at once, each with an NpyFile of its own; Python's lock is let go while a file is read and parsed.
// Memory: arrays are numpy's; they are written before anybody else has them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "bind/bind.h"
#include "bind/gil_released.h"
#include "bind/own.h"
#include "tensor/npy_file.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

constexpr std::size_t kAtOnce = 64 * 1024;  // bytes that are copied without letting Python's lock go

class NumpyLoader {
 public:
  NumpyLoader(nb::object empty, std::vector<nb::object> dtypes, nb::object refused)
      : empty_(std::move(empty)), dtypes_(std::move(dtypes)), refused_(std::move(refused)) {
    if (dtypes_.size() != kDTypes.size()) throw nb::value_error("one dtype for each element type");
  }

  nb::object path(nb::handle path) const {
    const nb::object encoded = nb::steal(PyUnicode_EncodeFSDefault(path.ptr()));
    char* name = nullptr;
    if (!encoded.is_valid() || PyBytes_AsStringAndSize(encoded.ptr(), &name, nullptr) != 0) {
      PyErr_Clear();
      return refused_("a path that no file can have");
    }
    return make([&](NpyFile& file, std::uint8_t* room) { return file.read(name, room); }, true);
  }
  nb::object descriptor(int fd, std::uint64_t start) const {
    return make([&](NpyFile& file, std::uint8_t* room) { return file.read(fd, start, room); }, true);
  }
  nb::object bytes(const nb::bytes& bytes, std::uint64_t start) const {
    const std::span<const std::uint8_t> all(static_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    const auto rest = all.subspan(std::min<std::uint64_t>(start, all.size()));
    return make([&](NpyFile& file, std::uint8_t*) { return file.read(rest); }, false);
  }

 private:
  // The memory of an array that nobody else has yet.
  static std::uint8_t* memory(nb::handle array) {
    Py_buffer view;
    if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_WRITABLE) != 0) throw nb::python_error();
    auto* const bytes = static_cast<std::uint8_t*>(view.buf);
    PyBuffer_Release(&view);
    return bytes;
  }
  nb::object allocate(DType dtype, std::size_t bytes) const {
    return empty_(bytes / info(dtype).size, dtypes_[static_cast<std::size_t>(dtype)]);
  }

  // A refusal, or (the elements in one dimension, shape, whether they are in Fortran's order, bytes in the file).
  template <class Read>
  nb::object make(const Read& read, bool guessing) const {
    const Own<NpyFile> own;
    NpyFile& file = *own;
    nb::object array;
    std::uint8_t* room = nullptr;
    if (guessing && file.guess().offset != 0) {
      array = allocate(file.guess().dtype, file.guess().bytes);
      room = memory(array);
    }
    const char* reason = nullptr;
    {
      const GilReleased released;
      reason = read(file, room);
    }
    if (reason != nullptr) return refused_(reason);
    const NpyHeader& header = file.header();
    if (file.elements() != nullptr) {
      array = allocate(header.spec.dtype, file.bytes());
      copy(memory(array), file.elements(), file.bytes());
    }
    nb::object shape = nb::steal(PyTuple_New(header.spec.ndim));
    for (int d = 0; d < header.spec.ndim; ++d)
      PyTuple_SetItem(shape.ptr(), d, PyLong_FromLongLong(header.spec.shape[d]));
    return nb::make_tuple(array, shape, header.fortran_order, header.data_offset + file.bytes());
  }

  static void copy(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
    if (bytes == 0) return;
    if (bytes <= kAtOnce) {
      std::memcpy(to, from, bytes);
      return;
    }
    const GilReleased released;
    std::memcpy(to, from, bytes);
  }

  nb::object empty_;
  std::vector<nb::object> dtypes_;
  nb::object refused_;
};

}  // namespace

void bind_numpy_load(nb::module_& m) {
  nb::class_<NumpyLoader>(m, "NumpyLoader")
      .def(nb::init<nb::object, std::vector<nb::object>, nb::object>(), "empty"_a, "dtypes"_a, "refused"_a)
      .def("path", &NumpyLoader::path, "path"_a)
      .def("descriptor", &NumpyLoader::descriptor, "fd"_a, "start"_a)
      .def("bytes", &NumpyLoader::bytes, "bytes"_a, "start"_a);
}

}  // namespace penstock
