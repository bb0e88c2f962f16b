#include "tensor/tensor_filler.h"

#include <cerrno>
#include <cstring>

namespace penstock {

GatherFiller::GatherFiller(const std::uint8_t* base, std::size_t count, std::ptrdiff_t row_stride, TensorSpec spec)
    : base_(base), count_(count), row_stride_(row_stride), row_bytes_(0), spec_(spec) {
  std::int64_t bytes = 0;
  if (checked_bytes(spec, bytes)) row_bytes_ = static_cast<std::size_t>(bytes);
}

Outcome GatherFiller::fill(const SampleKey& key, const FileTable*, const TensorSpec& want, std::uint8_t* row,
                           TensorSpec& got, Scratch& scratch) const noexcept {
  if (key.local >= count_) return Outcome::io_error(ERANGE, "index");
  if (!(want == spec_)) {
    got = spec_;
    return Outcome::mismatch("shape or dtype");
  }
  if (row_bytes_ > 0) std::memcpy(row, base_ + static_cast<std::ptrdiff_t>(key.local) * row_stride_, row_bytes_);
  scratch.clock.defer(Stage::gather);
  return Outcome::success();
}

void GatherFiller::prefetch(std::size_t local) const noexcept {
  if (local < count_) prefetch_bytes(base_ + static_cast<std::ptrdiff_t>(local) * row_stride_, row_bytes_);
}

Outcome TensorFileFiller::fill(const SampleKey& key, const FileTable*, const TensorSpec& want, std::uint8_t* row,
                               TensorSpec& got, Scratch& scratch) const noexcept {
  return without_throwing([&] {
    SampleFile file;
    if (const Outcome opened = scratch.open(locate(key, nullptr), file); !opened.ok()) return opened;
    scratch.clock.lap(Stage::open);
    TensorReader& reader = scratch.part<TensorScratch>().reader;
    const Outcome outcome = reader.read(file, table_->layout_hint(key.local), want, row, got);
    scratch.clock.add_bytes(Stage::read, file.bytes_read());
    return outcome;
  });
}

}  // namespace penstock
