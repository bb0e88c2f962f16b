// The indices of a batch, each noted where another process can read it before the dataset is called for its sample.
//
// Threads: of one worker process, with the GIL. Memory: the record belongs to the buffer that the iterator holds.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <ctime>

#include "bind/bind.h"

namespace nb = nanobind;

namespace penstock {
namespace {

using Record = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Goes through the indices of a batch.
class NotedIndices {
 public:
  // record: its words `at_index` and `at_index + 1` are the index and when its sample began (ns, CLOCK_MONOTONIC).
  // describe: called with the first index, and with each that is not an int of 64 bits: it writes the whole record.
  NotedIndices(Record record, std::size_t at_index, nb::callable describe, nb::handle indices)
      : record_(std::move(record)), at_(at_index), describe_(std::move(describe)) {
    if (at_ + 2 > record_.shape(0)) {
      throw nb::index_error("the record has no such words");
    }
    iterator_ = nb::steal(PyObject_GetIter(indices.ptr()));
    if (!iterator_.is_valid()) {
      nb::raise_python_error();
    }
  }

  // Returns a new reference; null at the end, or with Python's error set.
  PyObject* next() {
    nb::object index = nb::steal(PyIter_Next(iterator_.ptr()));
    if (!index.is_valid()) {
      return nullptr;
    }
    int overflow = 1;
    long long number = 0;
    if (PyLong_CheckExact(index.ptr())) {
      number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    }
    if (numbers_ && overflow == 0) {
      std::timespec now{};
      clock_gettime(CLOCK_MONOTONIC, &now);
      record_.data()[at_] = number;
      record_.data()[at_ + 1] = now.tv_sec * 1'000'000'000LL + now.tv_nsec;
    } else {
      nb::object done = nb::steal(PyObject_CallFunctionObjArgs(describe_.ptr(), index.ptr(), nullptr));
      if (!done.is_valid()) {
        return nullptr;
      }
      numbers_ = overflow == 0;
    }
    return index.release().ptr();
  }

 private:
  Record record_;
  std::size_t at_;
  nb::callable describe_;
  nb::object iterator_;
  bool numbers_ = false;  // the record holds a number, which the next one replaces
};

PyObject* itself(PyObject* self) {
  Py_INCREF(self);
  return self;
}

PyObject* next_of(PyObject* self) { return nb::inst_ptr<NotedIndices>(self)->next(); }

PyType_Slot slots[] = {{Py_tp_iter, reinterpret_cast<void*>(itself)},
                       {Py_tp_iternext, reinterpret_cast<void*>(next_of)},
                       {0, nullptr}};

}  // namespace

void bind_index_notes(nb::module_& m) {
  nb::class_<NotedIndices>(m, "NotedIndices", nb::type_slots(slots))
      .def(nb::init<Record, std::size_t, nb::callable, nb::handle>(), nb::arg("record"), nb::arg("at_index"),
           nb::arg("describe"), nb::arg("indices"));
}

}  // namespace penstock
