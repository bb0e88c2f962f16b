// SampleFile, for tests.
#include <fcntl.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "bind/testing/testing.h"
#include "files/sample_file.h"

namespace nb = nanobind;

namespace penstock {
namespace {

[[noreturn]] void raise(int error) {
  errno = error;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

UniqueFd open_file(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) raise(errno);
  return file;
}

SampleFile in_memory(const nb::bytes& bytes) {
  auto copy = std::make_unique<std::uint8_t[]>(bytes.size());
  std::copy_n(static_cast<const std::uint8_t*>(bytes.data()), bytes.size(), copy.get());
  return SampleFile::memory(std::move(copy), bytes.size());
}

std::uint64_t size_of(const SampleFile& file) {
  std::uint64_t bytes = 0;
  const Outcome outcome = file.size(bytes);
  if (outcome.code == Code::io) raise(outcome.error);
  if (!outcome.ok()) throw nb::value_error(outcome.reason);
  return bytes;
}

// One call of readv(); each room has its own heap block, so that AddressSanitizer sees a step outside it.
nb::bytes read(SampleFile& file, const std::vector<std::size_t>& rooms, std::uint64_t offset) {
  std::vector<std::vector<std::uint8_t>> blocks;
  std::vector<iovec> given;
  for (const std::size_t size : rooms) blocks.emplace_back(size);
  for (auto& block : blocks) given.push_back({block.data(), block.size()});
  const ssize_t got = file.readv(given, offset);
  if (got < 0) raise(errno);
  std::string all;
  for (const auto& block : blocks) all.append(block.begin(), block.end());
  return nb::bytes(all.data(), static_cast<std::size_t>(got));
}

nb::bytes read_whole(SampleFile& file, std::uint64_t bytes, std::uint64_t offset) {
  std::vector<std::uint8_t> room(bytes);
  std::uint64_t done = 0;
  if (!file.read(room.data(), bytes, offset, done)) raise(errno);
  return nb::bytes(room.data(), static_cast<std::size_t>(done));
}

}  // namespace

void bind_sample_file(nb::module_& m) {
  nb::class_<SampleFile>(m, "SampleFile")
      .def_static("whole", [](const std::string& path) { return SampleFile(open_file(path)); }, nb::arg("path"))
      .def_static("part", [](const std::string& path, std::uint64_t offset,
                             std::uint64_t length) { return SampleFile::part(open_file(path), offset, length); },
                  nb::arg("path"), nb::arg("offset"), nb::arg("length"))
      .def_static("checked", [](const std::string& path, std::uint64_t offset, std::uint64_t length, std::uint32_t crc32c) {
             return SampleFile::checked(SampleFile::part(open_file(path), offset, length), crc32c);
           }, nb::arg("path"), nb::arg("offset"), nb::arg("length"), nb::arg("crc32c"))
      .def_static("memory", &in_memory, nb::arg("data"))
      .def("size", &size_of)
      .def("readv", &read, nb::arg("rooms"), nb::arg("offset"))
      .def("read", &read_whole, nb::arg("bytes"), nb::arg("offset"));
}

}  // namespace penstock
