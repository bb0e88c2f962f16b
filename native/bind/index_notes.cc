// The indices of a batch, each noted where another process can read it before its sample is read.
//
// Threads: of one worker process, with Python's lock. Memory: the record belongs to the buffer that the iterator holds.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <ctime>
#include <utility>

#include "bind/bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

// Kind of the index (1: a number), stage, index, when its sample began (ns, CLOCK_MONOTONIC): _RECORD of progress.py.
using Record = nb::ndarray<std::int64_t, nb::shape<4>, nb::c_contig, nb::device::cpu>;

class NotedIndices {
 public:
  NotedIndices(Record record, const nb::object& indices, nb::callable describe)
      : record_(std::move(record)), indices_(nb::iter(indices)), describe_(std::move(describe)) {}

  // Returns a new reference; null at the end, or with Python's error set.
  PyObject* next() {
    PyObject* index = PyIter_Next(indices_.ptr());
    if (index == nullptr) return nullptr;
    int overflow = 1;
    const long long number = PyLong_CheckExact(index) ? PyLong_AsLongLongAndOverflow(index, &overflow) : 0;
    if (overflow == 0) {
      std::timespec now{};
      clock_gettime(CLOCK_MONOTONIC, &now);
      std::int64_t* words = record_.data();
      words[0] = 1;
      words[2] = number;
      words[3] = now.tv_sec * 1'000'000'000 + now.tv_nsec;
    } else if (!nb::steal(PyObject_CallFunctionObjArgs(describe_.ptr(), index, nullptr)).is_valid()) {
      Py_CLEAR(index);
    }
    return index;
  }

 private:
  Record record_;
  nb::object indices_;
  nb::callable describe_;
};

PyObject* itself(PyObject* self) { return Py_NewRef(self); }

PyObject* next_of(PyObject* self) { return nb::inst_ptr<NotedIndices>(self)->next(); }

PyType_Slot slots[] = {{Py_tp_iter, reinterpret_cast<void*>(itself)},
                       {Py_tp_iternext, reinterpret_cast<void*>(next_of)},
                       {0, nullptr}};

}  // namespace

void bind_index_notes(nb::module_& m) {
  nb::class_<NotedIndices>(m, "NotedIndices", nb::type_slots(slots))
      .def(nb::init<Record, const nb::object&, nb::callable>(), "record"_a, "indices"_a, "describe"_a);
}

}  // namespace penstock
