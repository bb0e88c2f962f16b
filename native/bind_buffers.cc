// Batch memory for Python: a block is lent as an array, and comes back when the array, and with it every
// tensor, view or memoryview that rests on it, is gone.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>

#include "bind.h"
#include "buffers.h"

namespace nb = nanobind;

namespace penstock {
namespace {

// Loans keep the pool alive after Python's object is gone.
struct Shared {
  std::shared_ptr<BlockPool> pool;
};

struct Loan {
  std::shared_ptr<BlockPool> pool;
  Block block;
};

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

Bytes lend(const std::shared_ptr<BlockPool>& pool, std::size_t bytes) {
  auto loan = std::make_unique<Loan>(Loan{pool, pool->lend(bytes)});
  std::uint8_t* data = loan->block.data();
  nb::capsule owner(loan.get(), [](void* pointer) noexcept {
    const std::unique_ptr<Loan> ended(static_cast<Loan*>(pointer));
    ended->pool->give_back(std::move(ended->block));
  });
  static_cast<void>(loan.release());  // the capsule owns it now
  const std::size_t shape[1] = {bytes};
  return Bytes(data, 1, shape, owner);
}

}  // namespace

void bind_buffers(nb::module_& m) {
  nb::class_<Shared>(m, "BlockPool")
      .def("__init__", [](Shared* self, std::size_t keep) { new (self) Shared{std::make_shared<BlockPool>(keep)}; },
           nb::arg("keep"))
      .def("lend", [](const Shared& self, std::size_t bytes) { return lend(self.pool, bytes); }, nb::arg("bytes"),
           nb::rv_policy::reference)
      .def("counts", [](const Shared& self) {
        const BlockCounts counts = self.pool->counts();
        return nb::make_tuple(counts.lent, counts.free, counts.created);
      });
}

}  // namespace penstock
