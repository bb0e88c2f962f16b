// Arguments of calls from Python: bytes that are borrowed, descriptors that are duplicated, arrays of indices.
//
// Threads: with Python's lock held; the view of a Bytes may be read without it. Memory: a Bytes holds the buffer of its
// object; all else that is returned is the caller's.
#pragma once

#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "files/unique_fd.h"

namespace penstock {

using IndexArray = nanobind::ndarray<nanobind::numpy, const std::int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Sources = nanobind::ndarray<nanobind::numpy, const std::int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// The bytes of an object with the buffer protocol, held for as long as this lives.
class Bytes {
 public:
  explicit Bytes(nanobind::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nanobind::python_error();
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { PyBuffer_Release(&buffer_); }

  [[nodiscard]] std::string_view view() const {
    return {static_cast<const char*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

// Where an array's elements are written, by who made it and has not given it to anybody yet.
inline std::uint8_t* memory_of(nanobind::handle array) {
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_WRITABLE) != 0) throw nanobind::python_error();
  auto* const bytes = static_cast<std::uint8_t*>(view.buf);
  PyBuffer_Release(&view);
  return bytes;
}

// Throws IndexError for a negative index, or a source that is not below `count`.
inline void check_samples(const IndexArray& local, const Sources* source, std::size_t count) {
  for (std::size_t i = 0; i < local.shape(0); ++i)
    if (local.data()[i] < 0) throw nanobind::index_error("a negative sample index");
  for (std::size_t i = 0; source != nullptr && i < source->shape(0); ++i)
    if (source->data()[i] < 0 || static_cast<std::size_t>(source->data()[i]) >= count)
      throw nanobind::index_error("no such source");
}

// A path as the system has it, held for as long as this lives.
class FilePath {
 public:
  explicit FilePath(nanobind::handle path) : encoded_(nanobind::steal(PyUnicode_EncodeFSDefault(path.ptr()))) {
    if (encoded_.is_valid() && PyBytes_AsStringAndSize(encoded_.ptr(), &name_, nullptr) == 0) return;
    PyErr_Clear();
    name_ = nullptr;
  }
  // nullptr: no file can have it.
  [[nodiscard]] const char* name() const { return name_; }
  static constexpr const char* kNone = "a path that no file can have";

 private:
  nanobind::object encoded_;
  char* name_ = nullptr;
};

inline std::string text_of(const nanobind::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

[[noreturn]] inline void raise_errno(int error) {
  errno = error;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nanobind::python_error();
}

inline UniqueFd duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) raise_errno(errno);
  return copy;
}

}  // namespace penstock
