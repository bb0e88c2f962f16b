// The Python module `penstock._native_testing`, in parts: what only tests call. No wheel holds it.
//
// Threads: each function is called once, at import, with Python's lock held. Memory: what they register belongs to the
// module, which links the core a second time: only what an object holds is shared with penstock._native.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock {

void bind_jpeg_pixels(nanobind::module_& m);
void bind_resize(nanobind::module_& m);
void bind_sample_file(nanobind::module_& m);
void bind_reading(nanobind::module_& m);
void bind_tensor(nanobind::module_& m);

}  // namespace penstock
