// Batch memory for Python: memory that belongs to a tensor, as the array of bytes that the native core fills.
//
// Threads: any that holds the GIL. Memory: the array holds its owner, never the bytes themselves.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "bind/bind.h"

namespace nb = nanobind;

namespace penstock {
namespace {

constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

Bytes bytes_of(nb::handle owner, std::uintptr_t address, std::size_t bytes) {
  const std::size_t shape[1] = {bytes};
  return Bytes(reinterpret_cast<void*>(address), 1, shape, owner);
}

// Advises the system on the whole pages of memory. A refusal changes nothing.
void advise(std::uintptr_t address, std::size_t bytes, std::uintptr_t page, int advice) {
  const std::uintptr_t begin = (address + page - 1) / page * page;
  const std::uintptr_t end = (address + bytes) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

// A page fault for every 4 KiB of fresh memory costs more than filling it.
void advise_huge_pages(std::uintptr_t address, std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  advise(address, bytes, kHugePage, MADV_HUGEPAGE);
#endif
}

void discard_pages(std::uintptr_t address, std::size_t bytes) {
  advise(address, bytes, static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)), MADV_DONTNEED);
}

}  // namespace

void bind_buffers(nb::module_& m) {
  m.def("bytes_of", &bytes_of, nb::arg("owner"), nb::arg("address"), nb::arg("bytes"));
  m.def("advise_huge_pages", &advise_huge_pages, nb::arg("address"), nb::arg("bytes"));
  m.def("discard_pages", &discard_pages, nb::arg("address"), nb::arg("bytes"));
}

}  // namespace penstock
