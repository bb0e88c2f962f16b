// Python's view of files/: tables of names, listings of folders, CRC-32.
//
// Threads: any; Python's lock is released where the system is waited for. Memory: names are copied into a table; the bytes
// of arguments are borrowed for the call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "files/crc.h"
#include "files/path_table.h"
#include "files/scan.h"

namespace nb = nanobind;

namespace penstock {
namespace {

nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

// OSError with errno and file name; PermissionError without an errno for what leaves its root.
[[noreturn]] void raise(const Outcome& outcome, std::string_view path) {
  if (outcome.code != Code::io) {
    PyErr_SetString(PyExc_PermissionError, outcome.reason);
    throw nb::python_error();
  }
  const nb::object name =
      nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
  if (!name.is_valid()) throw nb::python_error();
  errno = outcome.error;
  PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, name.ptr());
  throw nb::python_error();
}

std::size_t checked_index(const PathTable& table, std::size_t i) {
  if (i >= table.size()) throw nb::index_error("past the end of the path table");
  return i;
}

void make_table(PathTable* self, const nb::bytes& root, nb::handle names, const nb::bytes& suffix, bool beneath) {
  const Bytes bytes(names);
  std::string root_copy = text_of(root);
  std::string suffix_copy = text_of(suffix);
  const GilReleased unlocked;
  new (self) PathTable(std::move(root_copy), std::string(bytes.view()), std::move(suffix_copy), beneath);
}

void bind_table(nb::module_& m) {
  nb::class_<FileTable>(m, "FileTable");
  nb::class_<PathTable, FileTable>(m, "PathTable")
      .def("__init__", &make_table, nb::arg("root"), nb::arg("names"), nb::arg("suffix") = nb::bytes("", 0),
           nb::arg("beneath") = false)
      .def("__len__", &PathTable::size)
      .def("name",
           [](const PathTable& t, std::size_t i) { return to_bytes(t.name(checked_index(t, i))); }, nb::arg("i"))
      .def("path",
           [](const PathTable& t, std::size_t i) { return to_bytes(t.path(checked_index(t, i))); }, nb::arg("i"))
      .def("names", [](const PathTable& t) { return to_bytes(t.names()); })
      .def("open",
           [](const PathTable& t, std::size_t i) {
             UniqueFd fd;
             t.refresh();
             if (const Outcome outcome = t.open(checked_index(t, i), fd); !outcome.ok()) raise(outcome, t.path(i));
             return fd.release();
           },
           nb::arg("i"))
      .def("refresh", &PathTable::refresh)
      .def("__getstate__",
           [](const PathTable& t) {
             return nb::make_tuple(to_bytes(t.absolute_root()), to_bytes(t.names()), to_bytes(t.suffix()), t.beneath());
           })
      .def("__setstate__", [](PathTable& self, const nb::tuple& state) {
        if (nb::len(state) != 4) throw nb::value_error("not the state of a PathTable");
        make_table(&self, nb::cast<nb::bytes>(state[0]), state[1], nb::cast<nb::bytes>(state[2]),
                   nb::cast<bool>(state[3]));
      });
  m.def("first_bad_name",
        [](nb::handle names) {
          const Bytes bytes(names);
          return first_bad_name(bytes.view());
        },
        nb::arg("names"));
}

nb::tuple scan(const nb::bytes& root, const std::vector<std::string>& extensions, int threads) {
  const std::string folder = text_of(root);
  Scan result;
  {
    const GilReleased unlocked;
    result = scan_image_folder(folder, extensions, threads, [] {
      const nb::gil_scoped_acquire locked;
      return PyErr_CheckSignals() != 0;
    });
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // Ctrl-C
  if (!result.outcome.ok()) raise(result.outcome, result.where);
  std::vector<std::int64_t> stamps;
  stamps.reserve(4 * result.stamps.size());
  for (const FolderStamp& s : result.stamps)
    stamps.insert(stamps.end(), {s.mtime_ns, s.ctime_ns, static_cast<std::int64_t>(s.inode),
                                 static_cast<std::int64_t>(s.device)});
  const auto raw = [](const std::vector<std::int64_t>& v) {
    return nb::bytes(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(std::int64_t));
  };
  const nb::object table = nb::inst_alloc(nb::type<PathTable>());
  new (nb::inst_ptr<PathTable>(table)) PathTable(folder, std::move(result.names), {}, false);
  nb::inst_mark_ready(table);
  return nb::make_tuple(table, to_bytes(result.classes), raw(result.counts), to_bytes(result.folders), raw(stamps),
                        result.started_ns);
}

bool unchanged(const nb::bytes& root, nb::handle folders, nb::handle stamps, int threads) {
  const std::string folder = text_of(root);
  const Bytes paths(folders);
  const Bytes raw(stamps);
  constexpr std::size_t kSize = 4 * sizeof(std::int64_t);
  if (raw.view().size() % kSize != 0) return false;
  std::vector<FolderStamp> values(raw.view().size() / kSize);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t fields[4];
    std::memcpy(fields, raw.view().data() + i * kSize, kSize);
    values[i] = {fields[0], fields[1], static_cast<std::uint64_t>(fields[2]), static_cast<std::uint64_t>(fields[3])};
  }
  const GilReleased unlocked;
  return folders_unchanged(folder, paths.view(), values, threads);
}

}  // namespace

void bind_files(nb::module_& m) {
  bind_table(m);
  m.def("crc32",
        [](const nb::bytes& data, std::uint32_t before) {
          const auto* bytes = static_cast<const std::uint8_t*>(data.data());
          const std::size_t size = data.size();
          const GilReleased unlocked;
          return crc32(before, bytes, size);
        },
        nb::arg("data"), nb::arg("before") = 0);
  m.def("scan_image_folder", &scan, nb::arg("root"), nb::arg("extensions"), nb::arg("threads"));
  m.def("folders_unchanged", &unchanged, nb::arg("root"), nb::arg("folders"), nb::arg("stamps"), nb::arg("threads"));
  m.def("list_folder",
        [](const nb::bytes& root, const nb::bytes& suffix) {
          const std::string folder = text_of(root);
          const std::string ending = text_of(suffix);
          Listing listing;
          {
            const GilReleased unlocked;
            listing = list_folder(folder, ending);
          }
          if (!listing.outcome.ok()) raise(listing.outcome, folder);
          return to_bytes(listing.names);
        },
        nb::arg("root"), nb::arg("suffix"));
}

}  // namespace penstock
