#include "bind/testing/testing.h"
#include "files/path_table.h"

namespace nb = nanobind;

NB_MODULE(_native_testing, m) {
  m.doc() = "Parts of Penstock's native core, for its tests; the contract is _native_testing.pyi.";
  nb::module_::import_("penstock._native");  // registers PathTable
  m.def("forgo_openat2", [](penstock::PathTable& table) { table.forgo_openat2(); }, nb::arg("table"));
  penstock::bind_jpeg_pixels(m);
  penstock::bind_resize(m);
  penstock::bind_sample_file(m);
  penstock::bind_reading(m);
  penstock::bind_tensor(m);
}
