#include "bind.h"

NB_MODULE(_native, m) {
  m.doc() = "The native core of Penstock; its contract is _native.pyi.";
  penstock::bind_tensor(m);
  penstock::bind_resize(m);
  penstock::bind_jpeg(m);
  penstock::bind_image(m);
  penstock::bind_scan(m);
  penstock::bind_buffers(m);
  penstock::bind_order(m);
  penstock::bind_pool(m);
}
