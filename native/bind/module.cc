#include "bind/bind.h"

NB_MODULE(_native, m) {
  m.doc() = "The native core of Penstock; its contract is _native.pyi.";
  // A loader that a program holds at its end is not a leak that its user should read about.
  nanobind::set_leak_warnings(false);
  penstock::bind_files(m);
  penstock::bind_cache(m);
  penstock::bind_jpeg_index(m);
  penstock::bind_augmentation(m);
  penstock::bind_image(m);
  penstock::bind_mapping(m);
  penstock::bind_buffers(m);
  penstock::bind_order(m);
  penstock::bind_fillers(m);
  penstock::bind_pool(m);
  penstock::bind_index_notes(m);
  penstock::bind_sample(m);
  penstock::bind_collate(m);
  penstock::bind_arrow(m);
  penstock::bind_gather(m);
  penstock::bind_torch_load(m);
  penstock::bind_numpy_load(m);
  penstock::bind_opencv_load(m);
  penstock::bind_wav(m);
  penstock::bind_shards(m);
}
