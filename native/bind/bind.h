// The Python module `penstock._native`, in parts. Only files named bind*.cc see Python.
//
// Threads: each function is called once, at import, with Python's lock held. Memory: what they register
// belongs to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock {

void bind_tensor(nanobind::module_& m);
void bind_resize(nanobind::module_& m);
void bind_jpeg(nanobind::module_& m);
void bind_image(nanobind::module_& m);
void bind_mapping(nanobind::module_& m);
void bind_scan(nanobind::module_& m);
void bind_buffers(nanobind::module_& m);
void bind_order(nanobind::module_& m);
void bind_pool(nanobind::module_& m);
void bind_sample(nanobind::module_& m);
void bind_collate(nanobind::module_& m);

}  // namespace penstock
