#include "pool/file_readers.h"

#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>
#include <vector>

#include "files/cache_tier.h"

namespace penstock {
namespace {

// Reads all of a file of so many bytes, and of one that is shorter by now what there is. One that is longer by now is not
// read.
Outcome read_whole(SampleFile& file, std::uint64_t size, BroughtFile& out) {
  std::unique_ptr<std::uint8_t[]> bytes(new (std::nothrow) std::uint8_t[size + 1]);
  if (!bytes) return Outcome::to_python("out of memory");
  std::uint64_t done = 0;
  if (!file.read(bytes.get(), size + 1, 0, done)) return file.failure();
  if (done > size) return Outcome::to_python("the file became longer while it was read");
  out.bytes = done;
  out.file = SampleFile::memory(std::move(bytes), done);
  return Outcome::success();
}

}  // namespace

FileReaders::FileReaders(std::shared_ptr<const Program> program, unsigned readers, std::uint64_t bytes)
    : program_(std::move(program)), process_(getpid()), ahead_(readers, bytes) {}

bool FileReaders::abandoned() const { return getpid() != process_; }

std::shared_ptr<ReadList> FileReaders::add(std::span<const std::int64_t> local, std::span<const std::int32_t> source,
                                           std::shared_ptr<const PathTable> names) {
  std::vector<FileLocation> files;
  files.reserve(local.size());
  for (std::size_t i = 0; i < local.size(); ++i) {
    const Program::Fillers& fillers = program_->sources[source.empty() ? 0 : static_cast<std::size_t>(source[i])];
    files.push_back(fillers.front()->locate({static_cast<std::size_t>(local[i]), 0, 0, {}, i}, names.get()));
  }
  auto list = std::make_shared<ReadList>(std::move(files));
  list->names = std::move(names);
  ahead_.add(list);
  return list;
}

std::unique_ptr<BroughtFile> FileReaders::take(ReadList& list, std::size_t file) {
  StageCounters counted;
  StageClock clock(&counted);
  clock.start();
  std::unique_ptr<BroughtFile> brought = ahead_.take(list, file, clock);
  waits_.merge(counted);
  // All that is unusual is the caller's, error and all.
  if (brought && !(brought->outcome.ok() && brought->file.in_memory())) brought.reset();
  return brought;
}

Outcome FileReaders::read(std::size_t source, std::size_t local, const PathTable* names, std::uint64_t most,
                          BroughtFile& out) {
  Outcome outcome;
  metered([&] {
    const FileLocation where = program_->sources[source].front()->locate({local, 0, 0, {}, 0}, names);
    if (where.table == nullptr || where.index >= where.table->size()) {
      outcome = Outcome::io_error(ERANGE, "index");
      return;
    }
    SampleFile file;
    std::vector<std::uint8_t> cached;  // which the file borrows
    outcome = where.cache == nullptr || !where.keeps_file
                  ? where.table->open(where.index, file)
                  : where.cache->open(where.sample, *where.table, where.index, cached, file);
    std::uint64_t size = 0;
    if (outcome.ok()) outcome = file.size(size);
    if (outcome.ok() && (size == 0 || size > most)) outcome = Outcome::to_python("an empty file, or a huge one");
    if (outcome.ok()) outcome = read_whole(file, size, out);
  });
  return outcome;
}

StageCounters::Count FileReaders::stage(Stage stage) const {
  StageCounters::Count total = waits_.count(stage);
  return total += ahead_.stage(stage);
}

void FileReaders::close() {
  if (!abandoned()) ahead_.close();
}

}  // namespace penstock
