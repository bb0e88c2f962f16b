#include "bind/file_readers.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "bind/program.h"
#include "bind/reading.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {

PyFileReaders::PyFileReaders(nb::object program, unsigned readers, std::uint64_t bytes)
    : program_(std::move(program)),
      native_(nb::cast<PyProgram&>(program_).program()),
      readers_(std::make_unique<FileReaders>(native_, readers, bytes)) {
  if (native_->fields == 0) throw nb::value_error("a sample has no field");
  LeftBehind::instance().forget();
}

PyFileReaders::~PyFileReaders() {
  if (readers_ && readers_->abandoned()) {  // forked off: locks may be held by threads that do not exist here
    static_cast<void>(readers_.release());
    static_cast<void>(program_.release());
    return;
  }
  const std::weak_ptr<const void> busy = readers_->busy();
  {
    const GilReleased released;
    readers_.reset();
  }
  LeftBehind::instance().keep(busy, std::move(program_));
}

namespace {


// names: each followed by a NUL.
std::shared_ptr<const PathTable> table_of(std::string names) {
  return std::make_shared<const PathTable>(std::string(), std::move(names), std::string(), false);
}

nb::object add(PyFileReaders& self, const IndexArray& local, const std::optional<Sources>& source,
               const std::optional<nb::bytes>& names) {
  if (self.readers().abandoned()) return nb::none();
  const std::span<const std::int64_t> indices(local.data(), local.shape(0));
  std::span<const std::int32_t> sources;
  if (source) sources = {source->data(), source->shape(0)};
  if (source && sources.size() != indices.size()) throw nb::value_error("local and source have different lengths");
  check_samples(local, source ? &*source : nullptr, self.program().sources.size());
  std::shared_ptr<const PathTable> table = names ? table_of(text_of(*names)) : nullptr;
  if (table && table->size() != indices.size()) throw nb::value_error("names and local have different lengths");
  return nb::cast(self.readers().add(indices, sources, std::move(table)));
}

nb::object take(PyFileReaders& self, ReadList& list, std::size_t file) {
  if (file >= list.files.size()) throw nb::index_error("no such file");
  if (self.readers().abandoned()) return nb::none();
  std::unique_ptr<BroughtFile> brought;
  {
    const GilReleased released;
    brought = self.readers().take(list, file);
  }
  return brought ? nb::cast(PyBrought{std::move(brought)}) : nb::none();
}

nb::object read(PyFileReaders& self, std::size_t source, std::size_t local, const std::optional<nb::bytes>& name,
                std::uint64_t most) {
  if (source >= self.program().sources.size()) throw nb::index_error("no such source");
  std::shared_ptr<const PathTable> table;
  if (name) {
    std::string text = text_of(*name);
    if (text.find('\0') != std::string::npos) return nb::cast("its path holds a NUL character");
    text.push_back('\0');
    table = table_of(std::move(text));
  }
  auto brought = std::make_unique<BroughtFile>();
  Outcome outcome;
  {
    const GilReleased released;
    outcome = self.readers().read(source, local, table.get(), most, *brought);
  }
  if (outcome.ok()) return nb::cast(PyBrought{std::move(brought)});
  if (outcome.code == Code::io) return nb::cast(std::string("cannot be read: ") + std::strerror(outcome.error));
  return nb::cast(outcome.code == Code::escapes ? "leads out of its root folder" : outcome.reason);
}

using Content = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

Content content_of(nb::handle brought) {
  const std::span<const std::uint8_t> bytes = nb::cast<const PyBrought&>(brought).file->file.bytes();
  const std::size_t shape[1] = {bytes.size()};
  return Content(const_cast<std::uint8_t*>(bytes.data()), 1, shape, brought);  // its own memory, which it may write
}

}  // namespace

void bind_file_readers(nb::module_& m) {
  nb::class_<ReadList>(m, "ReadList");
  nb::class_<PyBrought>(m, "BroughtFile").def_prop_ro("content", &content_of);
  nb::class_<PyFileReaders>(m, "FileReaders")
      .def(nb::init<nb::object, unsigned, std::uint64_t>(), "program"_a, "readers"_a, "ahead_bytes"_a)
      .def("add", &add, "local"_a, "source"_a.none(), "names"_a.none())
      .def("take", &take, "files"_a, "place"_a)
      .def("read", &read, "source"_a, "local"_a, "name"_a.none(), "most"_a)
      .def("start", [](PyFileReaders& self) { self.readers().start(); })
      .def("close",
           [](PyFileReaders& self) {
             const GilReleased released;
             self.readers().close();
           })
      .def("reading", [](const PyFileReaders& self) { return dict_of(self.readers().counts()); })
      .def("stages",
           [](const PyFileReaders& self) {
             return list_of([&](Stage stage) { return self.readers().stage(stage); });
           })
      .def_prop_ro("depth", [](const PyFileReaders& self) { return self.readers().depth(); });
}

}  // namespace penstock
