// Python's view of packed shards: CRC-32C, and the rows of an index.
//
// Threads: any; Python's lock is released where the system is waited for, and for long checksums. Memory: the bytes of
// arguments are borrowed for the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "files/crc.h"
#include "files/row_file.h"
#include "files/shard_table.h"
#include "files/unique_fd.h"

namespace nb = nanobind;

namespace penstock {
namespace {

using RowArray = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Letting go of Python's lock and taking it back costs about as much as this many bytes.
constexpr std::size_t kLong = std::size_t{16} << 10;

std::uint32_t checksum(nb::handle data, std::uint32_t seed) {
  const Bytes bytes(data);
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.view().data());
  const std::size_t size = bytes.view().size();
  std::optional<GilReleased> unlocked;
  if (size >= kLong) unlocked.emplace();
  return crc32c(seed, begin, size);
}

void open_rows(RowFile* self, int fd, std::uint64_t start, std::uint64_t row_bytes, std::uint64_t count) {
  new (self) RowFile(duplicate(fd), start, row_bytes, count);
}

void read_rows(const RowFile& file, const IndexArray& positions, const RowArray& out) {
  if (out.shape(0) != positions.shape(0) || out.shape(1) != file.row_bytes())
    throw nb::value_error("out has another number of rows than positions, or rows of another length");
  Outcome outcome;
  {
    const GilReleased unlocked;
    for (std::size_t i = 0; i < positions.shape(0) && outcome.ok(); ++i)
      outcome = file.read(static_cast<std::uint64_t>(positions.data()[i]), 0, file.row_bytes(),
                          out.data() + i * file.row_bytes());
  }
  if (outcome.ok()) return;
  if (outcome.error == ERANGE) throw nb::index_error("a row that the file does not have");
  raise_errno(outcome.error);
}

// Half of the descriptors that this process may have, at the most.
std::size_t most_open() noexcept {
  struct rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 64;
  return std::min<std::size_t>(limit.rlim_cur / 2, 4096);
}

void make_shard_table(ShardTable* self, std::shared_ptr<const RowFile> rows, const nb::list& shards,
                      const std::vector<std::uint64_t>& columns, bool verify, std::optional<std::size_t> max_open) {
  if (columns.size() != 3) throw nb::value_error("columns are those of the shard, the length of the ID and the member");
  std::vector<ShardTable::Shard> listed;
  for (nb::handle shard : shards) {
    listed.push_back({text_of(nb::cast<nb::bytes>(shard[0])), nb::cast<std::uint64_t>(shard[1])});
  }
  new (self) ShardTable(std::move(rows), std::move(listed), {columns[0], columns[1], columns[2]}, verify,
                        max_open.value_or(most_open()));
}

}  // namespace

void bind_shards(nb::module_& m) {
  m.def("crc32c", &checksum, nb::arg("buffer"), nb::arg("seed") = 0);
  nb::class_<RowFile>(m, "RowFile")
      .def("__init__", &open_rows, nb::arg("descriptor"), nb::arg("start"), nb::arg("row_bytes"), nb::arg("count"))
      .def("__len__", &RowFile::size)
      .def("read", &read_rows, nb::arg("positions"), nb::arg("out"));
  nb::class_<ShardTable, FileTable>(m, "ShardTable")
      .def("__init__", &make_shard_table, nb::arg("rows"), nb::arg("shards"), nb::arg("columns"), nb::arg("verify"),
           nb::arg("max_open") = nb::none())
      .def("__len__", &ShardTable::size)
      .def_prop_ro("open_shards", &ShardTable::open_shards);
}

}  // namespace penstock
