// Python's view of order/: permutations and keyed draws.
//
// Threads: with Python's lock held. Memory: indices are written to arrays of the caller's.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "bind/bind.h"
#include "order/order.h"

namespace nb = nanobind;

namespace penstock {

void bind_order(nb::module_& m) {
  using Indices = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def(
      "count_from_start",
      [](const nb::ndarray<nb::numpy, const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& indices,
         std::int64_t size) {
        bool negative = false;
        for (std::size_t i = 0; i < indices.shape(0); ++i) {
          const std::int64_t index = indices.data()[i];
          if (index >= size || index < -size)
            throw nb::index_error(("index " + std::to_string(index) + " is out of range for a dataset of " +
                                   std::to_string(size) + " samples")
                                      .c_str());
          negative = negative || index < 0;
        }
        return negative;
      },
      nb::arg("indices"), nb::arg("size"));
  nb::class_<KeyedPermutation>(m, "KeyedPermutation")
      .def(nb::init<std::uint64_t, std::uint64_t, std::uint64_t>(), nb::arg("size"), nb::arg("seed"), nb::arg("epoch"))
      .def("take",
           [](const KeyedPermutation& self, std::uint64_t begin, const Indices& out) {
             if (begin > self.size() || out.shape(0) > self.size() - begin) throw nb::index_error("past the end");
             self.take(begin, out.shape(0), out.data());
           },
           nb::arg("begin"), nb::arg("out"));
  nb::class_<KeyedDraws>(m, "KeyedDraws")
      .def("__init__",
           [](KeyedDraws* self, std::uint64_t bound, std::uint64_t seed, std::uint64_t epoch) {
             if (bound == 0 || bound > std::uint64_t{1} << 63) throw nb::value_error("bound is not in 1 .. 2**63");
             new (self) KeyedDraws(bound, seed, epoch);
           },
           nb::arg("bound"), nb::arg("seed"), nb::arg("epoch"))
      .def(
          "take",
          [](const KeyedDraws& self, std::uint64_t begin, const Indices& out) {
            self.take(begin, out.shape(0), out.data());
          },
          nb::arg("begin"), nb::arg("out"));
}

}  // namespace penstock
