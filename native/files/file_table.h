// The interface of a table of files: which bytes belong to a sample, by its index. PathTable (files by name) is one
// kind; others find samples in parts of larger files.
//
// Threads: any number of threads may call every method at once. Memory: as the kind says; a SampleFile that open() gives
// may borrow from the table, which outlives it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "files/outcome.h"
#include "files/sample_file.h"

namespace penstock {

class FileTable {
 public:
  FileTable() = default;
  FileTable(const FileTable&) = delete;
  FileTable& operator=(const FileTable&) = delete;
  virtual ~FileTable() = default;

  [[nodiscard]] virtual std::size_t size() const noexcept = 0;

  // The name of a sample, as a view into the table; empty where the table holds none. Needs i < size().
  [[nodiscard]] virtual std::string_view name(std::size_t i) const noexcept = 0;

  // Samples for which this is the same number tend to have the same layout (tensor_file.h): the length of the name, as
  // torch.save writes the name into the file. Needs i < size().
  [[nodiscard]] virtual std::size_t layout_hint(std::size_t i) const noexcept { return name(i).size(); }

  // The bytes of sample i, read from the file when they are asked for. An index past the end is io_error(EINVAL).
  [[nodiscard]] virtual Outcome open(std::size_t i, SampleFile& out) const noexcept = 0;

  // Where the sample lies, for messages. Needs i < size().
  [[nodiscard]] virtual std::string path(std::size_t i) const = 0;
};

class SampleCache;

// Which file a sample is.
struct FileLocation {
  const FileTable* table = nullptr;  // null: the sample is not a file
  std::size_t index = 0;
  const SampleCache* cache = nullptr;  // may have its bytes, or keep them; null: there is none
  std::size_t sample = 0;              // of the cache
  bool keeps_file = true;              // the cache keeps the file's bytes; false: what the filler makes of them
};

}  // namespace penstock
