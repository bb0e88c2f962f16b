// Python's view of the tiers of a cache.
//
// Threads: any; Python's lock is released while files are read or written. Memory: a tier owns duplicates of the
// descriptors that it is given.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "files/cache_tier.h"
#include "tensor/filler.h"

namespace nb = nanobind;

namespace penstock {
namespace {

nb::object find(const SampleCache& cache, std::uint64_t sample, const nb::bytes& name) {
  std::vector<std::uint8_t> buffer;
  std::span<const std::uint8_t> bytes;
  bool found = false;
  const std::string_view of(name.c_str(), name.size());
  {
    const GilReleased unlocked;
    found = cache.find(sample, of, buffer, bytes);
  }
  return found ? nb::object(nb::bytes(bytes.data(), bytes.size())) : nb::none();
}

}  // namespace

void bind_cache(nb::module_& m) {
  nb::class_<CacheTier>(m, "CacheTier")
      .def("__init__",
           [](CacheTier* self, int index, int data, std::uint64_t samples, std::uint64_t limit) {
             new (self) CacheTier(duplicate(index), duplicate(data), samples, limit);
           },
           nb::arg("index"), nb::arg("data"), nb::arg("samples"), nb::arg("limit"))
      .def_static("in_memory", &CacheTier::in_memory, nb::arg("samples"), nb::arg("limit"), nb::arg("error") = 0)
      .def("counts", [](const CacheTier& tier) {
        const CacheTier::Counts counts = tier.counts();
        return nb::make_tuple(counts.samples, counts.bytes, counts.limit, counts.hits, counts.dropped, counts.error);
      });
  nb::class_<SampleCache>(m, "SampleCache")
      .def(nb::init<std::vector<std::shared_ptr<CacheTier>>>(), nb::arg("tiers"))
      .def("find", &find, nb::arg("sample"), nb::arg("name"));
}

}  // namespace penstock
