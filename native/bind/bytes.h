// The bytes of an argument, borrowed for a call.
//
// Threads: made and ended with Python's lock held; view() may be read without it. Memory: holds the buffer of the object.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string_view>

namespace penstock {

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

}  // namespace penstock
