// The Python modules `penstock._native` and, in bind/testing/, `penstock._native_testing`, in parts. Only bind/ sees Python.
//
// Threads: each function is called once, at import, with Python's lock held. Memory: what they register
// belongs to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock {

void bind_files(nanobind::module_& m);
void bind_jpeg_index(nanobind::module_& m);
void bind_augmentation(nanobind::module_& m);
void bind_image(nanobind::module_& m);
void bind_mapping(nanobind::module_& m);
void bind_buffers(nanobind::module_& m);
void bind_order(nanobind::module_& m);
void bind_fillers(nanobind::module_& m);
void bind_pool(nanobind::module_& m);
void bind_index_notes(nanobind::module_& m);
void bind_sample(nanobind::module_& m);
void bind_collate(nanobind::module_& m);
void bind_arrow(nanobind::module_& m);
void bind_gather(nanobind::module_& m);
void bind_torch_load(nanobind::module_& m);
void bind_numpy_load(nanobind::module_& m);
void bind_opencv_load(nanobind::module_& m);
void bind_wav(nanobind::module_& m);
void bind_shards(nanobind::module_& m);
void bind_cache(nanobind::module_& m);

}  // namespace penstock
