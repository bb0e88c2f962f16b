// Readers of files for Python: of samples that Python threads make, and of files that a device decodes.
//
// Threads: any that holds Python's lock, which is let go while a file is waited for or read. Memory: PyFileReaders keeps
// the program, for as long as a reader is at one of its files; a PyBrought owns the bytes of one file.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "pool/file_readers.h"

namespace penstock {

// A file that was brought: its bytes in memory.
struct PyBrought {
  std::unique_ptr<BroughtFile> file;

  // What a Scratch takes: the bytes are lent.
  [[nodiscard]] std::unique_ptr<BroughtFile> lend() const {
    auto lent = std::make_unique<BroughtFile>();
    lent->file = SampleFile::memory(file->file.bytes());
    lent->bytes = file->bytes;
    return lent;
  }
};

class PyFileReaders {
 public:
  PyFileReaders(nanobind::object program, unsigned readers, std::uint64_t bytes);
  PyFileReaders(const PyFileReaders&) = delete;
  PyFileReaders& operator=(const PyFileReaders&) = delete;
  ~PyFileReaders();

  [[nodiscard]] FileReaders& readers() const { return *readers_; }
  [[nodiscard]] const Program& program() const { return *native_; }

 private:
  nanobind::object program_;
  std::shared_ptr<const Program> native_;
  std::unique_ptr<FileReaders> readers_;
};

// Fills a sample by fill(scratch), from the file that was brought for it, if any; else sees whether the thread sleeps for
// the file. Either may be null.
template <class Fill>
void fill_brought(PyFileReaders* readers, const PyBrought* brought, Scratch& scratch, Fill&& fill) {
  if (brought != nullptr) {
    scratch.brought = brought->lend();
    fill(scratch);
    scratch.brought.reset();
  } else if (readers != nullptr) {
    readers->readers().metered([&] { fill(scratch); });
  } else {
    fill(scratch);
  }
}

}  // namespace penstock
