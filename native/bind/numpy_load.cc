// numpy.load: the arrays of .npy and .npz files; and the elements of a file as numpy.fromfile gives them: in
// numpy's memory.
//
// Threads: any number at once, each with its own NpyFile; Python's lock is released while a file is read and parsed.
// Memory: arrays are numpy's; they are written before anybody else has them. An NpzArchive borrows its descriptor.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "bind/own.h"
#include "files/read_at.h"
#include "tensor/npy_file.h"
#include "tensor/npz_file.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

constexpr std::size_t kAtOnce = 64 * 1024;  // bytes that are copied without letting Python's lock go

// The records of an .npz archive that somebody else keeps open.
struct NpzArchive {
  int fd = -1;
  std::vector<ZipRecord> records;
};

class NumpyLoader {
 public:
  NumpyLoader(nb::object empty, std::vector<nb::object> dtypes, nb::object refused)
      : empty_(std::move(empty)), dtypes_(std::move(dtypes)), refused_(std::move(refused)) {
    if (dtypes_.size() != kDTypes.size()) throw nb::value_error("one dtype for each element type");
  }

  nb::object path(nb::handle path) const {
    const FilePath file_path(path);
    if (file_path.name() == nullptr) return refused_(FilePath::kNone);
    return make([&](NpyFile& file, std::uint8_t* room) { return file.read(file_path.name(), room); }, true);
  }
  nb::object descriptor(int fd, std::uint64_t start) const {
    return make([&](NpyFile& file, std::uint8_t* room) { return file.read(fd, start, room); }, true);
  }
  nb::object bytes(const nb::bytes& bytes, std::uint64_t start) const {
    const std::span<const std::uint8_t> all(static_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    const auto rest = all.subspan(std::min<std::uint64_t>(start, all.size()));
    return make([&](NpyFile& file, std::uint8_t*) { return file.read(rest); }, false);
  }

  // A refusal or the elements of a file from `offset` on, at most `count` where that is not -1, as numpy.fromfile has them.
  nb::object part(nb::handle path, const nb::object& dtype, std::size_t element, std::int64_t count,
                  std::uint64_t offset) const {
    const FilePath file_path(path);
    if (file_path.name() == nullptr || element == 0) return refused_(FilePath::kNone);
    UniqueFd file;
    struct stat status {};
    {
      const GilReleased released;
      file = open_for_loading(file_path.name());
      if (!file || ::fstat(file.get(), &status) != 0) status = {};
    }
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (!S_ISREG(status.st_mode) || offset > size) return refused_("not a regular file, or one that ends before");
    std::uint64_t elements = (size - offset) / element, done = 0;
    if (count >= 0) elements = std::min(elements, static_cast<std::uint64_t>(count));
    nb::object array = empty_(elements, dtype);
    std::uint8_t* const to = memory_of(array);
    {
      const GilReleased released;
      if (!read_at(file.get(), to, elements * element, offset, done)) done = 0;
    }
    return done == elements * element ? array : refused_("the file cannot be read");
  }

  // A refusal or the arrays of an archive that are read one by one.
  nb::object archive(int fd) const {
    auto made = std::make_shared<NpzArchive>();
    made->fd = fd;
    const char* reason = nullptr;
    {
      const GilReleased released;
      reason = list_npz(fd, made->records);
    }
    return reason != nullptr ? refused_(reason) : nb::cast(made);
  }
  // A refusal, or (the elements in one dimension, shape, whether they are in Fortran's order) of an archive's array.
  nb::object member(const NpzArchive& archive, std::size_t index) const {
    NpzArray found;
    const char* reason = nullptr;
    {
      const GilReleased released;
      reason = find_npz_array(archive.fd, archive.records.at(index), found);
    }
    if (reason != nullptr) return refused_(reason);
    const nb::object array = allocate(found.header.spec.dtype, found.bytes);
    std::uint8_t* const to = memory_of(array);
    {
      const GilReleased released;
      reason = read_npz_array(archive.fd, found, to);
    }
    if (reason != nullptr) return refused_(reason);
    return nb::make_tuple(array, shape_of(found.header), found.header.fortran_order);
  }

 private:
  nb::object allocate(DType dtype, std::size_t bytes) const {
    return empty_(bytes / info(dtype).size, dtypes_[static_cast<std::size_t>(dtype)]);
  }

  // A refusal, or (the elements in one dimension, shape, whether they are in Fortran's order, bytes in the file).
  template <class Read>
  nb::object make(const Read& read, bool guessing) const {
    const Own<NpyFile> own;
    NpyFile& file = *own;
    nb::object array;
    std::uint8_t* room = nullptr;
    if (guessing && file.guess().offset != 0) {
      array = allocate(file.guess().dtype, file.guess().bytes);
      room = memory_of(array);
    }
    const char* reason = nullptr;
    {
      const GilReleased released;
      reason = read(file, room);
    }
    if (reason != nullptr) return refused_(reason);
    const NpyHeader& header = file.header();
    if (file.elements() != nullptr) {
      array = allocate(header.spec.dtype, file.bytes());
      copy(memory_of(array), file.elements(), file.bytes());
    }
    return nb::make_tuple(array, shape_of(header), header.fortran_order, header.data_offset + file.bytes());
  }

  static nb::object shape_of(const NpyHeader& header) {
    nb::object shape = nb::steal(PyTuple_New(header.spec.ndim));
    for (int d = 0; d < header.spec.ndim; ++d)
      PyTuple_SetItem(shape.ptr(), d, PyLong_FromLongLong(header.spec.shape[d]));
    return shape;
  }

  static void copy(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
    if (bytes == 0) return;
    if (bytes <= kAtOnce) {
      std::memcpy(to, from, bytes);
      return;
    }
    const GilReleased released;
    std::memcpy(to, from, bytes);
  }

  nb::object empty_;
  std::vector<nb::object> dtypes_;
  nb::object refused_;
};

}  // namespace

void bind_numpy_load(nb::module_& m) {
  nb::class_<NpzArchive>(m, "NpzArchive").def("names", [](const NpzArchive& archive) {
    nb::list names;
    for (const ZipRecord& record : archive.records) names.append(nb::str(record.name.data(), record.name.size()));
    return names;
  });
  nb::class_<NumpyLoader>(m, "NumpyLoader")
      .def(nb::init<nb::object, std::vector<nb::object>, nb::object>(), "empty"_a, "dtypes"_a, "refused"_a)
      .def("path", &NumpyLoader::path, "path"_a)
      .def("descriptor", &NumpyLoader::descriptor, "fd"_a, "start"_a)
      .def("bytes", &NumpyLoader::bytes, "bytes"_a, "start"_a)
      .def("part", &NumpyLoader::part, "path"_a, "dtype"_a, "element"_a, "count"_a, "offset"_a)
      .def("archive", &NumpyLoader::archive, "fd"_a)
      .def("member", &NumpyLoader::member, "archive"_a, "index"_a);
}

}  // namespace penstock
