// Python's view of the index of JPEG decoder states.
//
// Threads: any; Python's lock is released while files are read or written. Memory: an index owns a duplicate of the
// descriptor that it is given.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstdint>
#include <memory>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "files/file_table.h"
#include "image/image_filler.h"
#include "image/jpeg_index.h"

namespace nb = nanobind;

namespace penstock {
namespace {

void open_index(JpegIndex* self, int descriptor, std::uint64_t samples, std::uint32_t slot_bytes, bool writable) {
  new (self) JpegIndex(duplicate(descriptor), samples, slot_bytes, writable);
}

// Has the index keep all states of some samples: their images are passed over down to the last row.
void index_files(JpegIndex& index, const FileTable& table, std::uint64_t begin, std::uint64_t end) {
  const GilReleased released;
  Scratch all;
  auto& scratch = all.part<ImageScratch>();
  for (std::uint64_t sample = begin; sample < end; ++sample) {
    EncodedImage encoded;
    if (!open_image({&table, sample}, 0, encoded, all, scratch).ok()) continue;
    const int width = scratch.jpeg.width(), height = scratch.jpeg.height();
    JpegSource source(scratch.jpeg, scratch.clock, {&index, sample, encoded.bytes, &scratch.states});
    ImagePart last;
    static_cast<void>(source.pixels({0, height - 1, width, height}, last));
    all.trim();
  }
}

}  // namespace

void bind_jpeg_index(nb::module_& m) {
  nb::class_<JpegIndex>(m, "JpegIndex")
      .def("__init__", &open_index, nb::arg("descriptor"), nb::arg("samples"), nb::arg("slot_bytes"), nb::arg("writable"))
      .def_static("in_memory", &JpegIndex::in_memory, nb::arg("samples"), nb::arg("slot_bytes"))
      .def_static("file_bytes", &JpegIndex::file_bytes, nb::arg("samples"), nb::arg("slot_bytes"))
      .def_ro_static("LEAST_SLOT", &JpegIndex::kLeastSlot)
      .def_ro_static("MOST_SLOT", &JpegIndex::kMostSlot)
      .def("refresh", &JpegIndex::refresh, nb::call_guard<GilReleased>())
      .def("index_files", &index_files, nb::arg("table"), nb::arg("begin"), nb::arg("end"))
      .def("counts", [](const JpegIndex& index) {
        const JpegIndex::Counts counts = index.counts();
        return nb::make_tuple(counts.files, counts.bytes, counts.hits, counts.changed, counts.error);
      });
}

}  // namespace penstock
