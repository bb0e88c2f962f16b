// Readers of tensor files, parsers and CRC-32 by themselves.
//
// Threads: with Python's lock held; a TensorReader by one thread at a time. Memory: bytes are borrowed or copied for the
// call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fcntl.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bind/spec.h"
#include "bind/testing/testing.h"
#include "files/crc.h"
#include "files/unique_fd.h"
#include "tensor/tensor_file.h"

namespace nb = nanobind;

namespace penstock {
namespace {

nb::tuple numbers(const std::int64_t* values, int count) {
  nb::list list;
  for (int d = 0; d < count; ++d) list.append(values[d]);
  return nb::tuple(list);
}

nb::object describe(const TensorLayout& layout) {
  nb::dict out;
  out["dtype"] = std::string(info(layout.spec.dtype).torch_name);
  out["shape"] = numbers(layout.spec.shape.data(), layout.spec.ndim);
  out["stride"] = numbers(layout.stride.data(), layout.spec.ndim);
  out["offset"] = layout.offset;
  out["reach"] = layout.reach;
  out["contiguous"] = layout.contiguous;
  return out;
}

// With `head` >= 0 the parser sees only the first `head` and the last `tail` bytes. Each part is a heap
// block of exactly their length, so that AddressSanitizer sees a step outside it.
nb::object parse(const nb::bytes& data, std::int64_t head, std::int64_t tail) {
  const auto* bytes = static_cast<const std::uint8_t*>(data.data());
  const std::size_t size = data.size();
  if (head < 0) head = static_cast<std::int64_t>(size), tail = 0;
  if (static_cast<std::size_t>(head) > size || tail < 0 || static_cast<std::size_t>(tail) > size)
    throw nb::value_error("head or tail is longer than data");
  const std::vector<std::uint8_t> first(bytes, bytes + head), last(bytes + size - tail, bytes + size);
  SplitFile file(size);
  file.add(0, {first.data(), first.size()});
  file.add(size - last.size(), {last.data(), last.size()});
  TensorLayout layout;
  TensorParser parser;
  if (const char* reason = parser.parse(file, layout)) return nb::str(reason);
  return describe(layout);
}

nb::tuple spec_tuple(const TensorSpec& spec) {
  return nb::make_tuple(std::string(info(spec.dtype).torch_name), numbers(spec.shape.data(), spec.ndim));
}

// The outcome as Python values: OSError for io, (kind, reason) for Python's turn, (kind, got) for mismatch.
nb::object explain(const Outcome& outcome, const TensorSpec& got) {
  switch (outcome.code) {
    case Code::python: return nb::make_tuple("python", outcome.reason);
    case Code::mismatch: return nb::make_tuple("mismatch", spec_tuple(got));
    default:
      errno = outcome.error;
      PyErr_SetFromErrno(PyExc_OSError);
      throw nb::python_error();
  }
}

SampleFile open_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
    throw nb::python_error();
  }
  return SampleFile(std::move(fd));
}

nb::object read(TensorReader& reader, const std::string& path, std::size_t name_length, const std::string& dtype,
                const std::vector<std::int64_t>& shape) {
  const TensorSpec want = make_spec(dtype, shape);
  SampleFile file = open_file(path);
  std::vector<std::uint8_t> row(bytes_of(want));
  TensorSpec got;
  const Outcome outcome = reader.read(file, name_length, want, row.data(), got);
  if (!outcome.ok()) return explain(outcome, got);
  if (got != want) throw std::runtime_error("got is not what was wanted");
  return nb::bytes(row.data(), row.size());
}

// What a file holds, by a reader that has seen no other.
nb::object probe(const std::string& path) {
  SampleFile file = open_file(path);
  TensorReader reader;
  std::uint8_t row = 0;  // of the tensor that is asked for, a single byte; others do not match and are not loaded
  TensorSpec got;
  const Outcome outcome = reader.read(file, 0, TensorSpec{}, &row, got);
  return outcome.ok() || outcome.code == Code::mismatch ? spec_tuple(got) : explain(outcome, got);
}

constexpr std::array<std::pair<std::string_view, CrcWay>, 3> kCrcWays{{
    {"portable", CrcWay::portable}, {"clmul128", CrcWay::clmul128}, {"clmul256", CrcWay::clmul256}}};

// By a given way, which crc_ways() names. The bytes lie in a heap block of exactly their length, so that
// AddressSanitizer sees a step outside it.
template <std::uint32_t (*kCrc)(std::uint32_t, const std::uint8_t*, std::size_t, CrcWay) noexcept>
std::uint32_t crc_by(const std::string& name, const nb::bytes& data, std::uint32_t before) {
  const auto* bytes = static_cast<const std::uint8_t*>(data.data());
  const std::vector<std::uint8_t> copy(bytes, bytes + data.size());
  for (const auto& [known, way] : kCrcWays)
    if (known == name && can_crc(way)) return kCrc(before, copy.data(), copy.size(), way);
  throw nb::value_error("this processor cannot");
}

std::vector<std::string> crc_ways() {
  std::vector<std::string> names;
  for (const auto& [name, way] : kCrcWays)
    if (can_crc(way)) names.emplace_back(name);
  return names;
}

}  // namespace

void bind_tensor(nb::module_& m) {
  m.def("parse_tensor", &parse, nb::arg("data"), nb::arg("head") = -1, nb::arg("tail") = 0);
  m.def("crc32_by", &crc_by<crc32>, nb::arg("way"), nb::arg("data"), nb::arg("before") = 0);
  m.def("crc32c_by", &crc_by<crc32c>, nb::arg("way"), nb::arg("data"), nb::arg("before") = 0);
  m.def("crc_ways", &crc_ways);
  m.def("probe", &probe, nb::arg("path"));
  nb::class_<TensorReader>(m, "TensorReader")
      .def(nb::init<>())
      .def("read", &read, nb::arg("path"), nb::arg("name_length"), nb::arg("dtype"), nb::arg("shape"))
      .def_prop_ro("predicted", &TensorReader::predicted);
}

}  // namespace penstock
