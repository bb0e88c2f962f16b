#include "tensor/column_filler.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace penstock {
ColumnFiller::ColumnFiller(std::vector<ColumnChunk> chunks, std::size_t elements, DType stored, TensorSpec spec)
    : chunks_(std::move(chunks)), elements_(elements), row_bytes_(elements * info(stored).size), spec_(spec) {
  if (stored != spec.dtype) {
    convert_ = converter_of(stored, spec.dtype);
    if (convert_ == nullptr) throw std::invalid_argument("elements that the native core does not convert");
  }
  std::size_t end = 0;
  for (const ColumnChunk& chunk : chunks_) ends_.push_back(end += chunk.rows);
}

const std::uint8_t* ColumnFiller::find(std::size_t local) const noexcept {
  const auto found = std::upper_bound(ends_.begin(), ends_.end(), local);
  if (found == ends_.end()) return nullptr;
  const auto number = static_cast<std::size_t>(found - ends_.begin());
  return chunks_[number].values + (local - (number == 0 ? 0 : ends_[number - 1])) * row_bytes_;
}

Outcome ColumnFiller::fill(const SampleKey& key, const FileTable*, const TensorSpec& want, std::uint8_t* row,
                           TensorSpec& got, Scratch& scratch) const noexcept {
  const std::uint8_t* const values = find(key.local);
  if (values == nullptr) return Outcome::io_error(ERANGE, "index");
  got = spec_;
  if (!(want == got)) return Outcome::mismatch("shape or dtype");
  if (convert_ != nullptr)
    convert_(values, elements_, row);
  else if (row_bytes_ > 0)
    std::memcpy(row, values, row_bytes_);
  scratch.clock.defer(Stage::gather);
  return Outcome::success();
}

void ColumnFiller::prefetch(std::size_t local) const noexcept {
  if (const std::uint8_t* const values = find(local)) prefetch_bytes(values, row_bytes_);
}

std::size_t ColumnFiller::memory_bytes() const noexcept { return std::max<std::size_t>(1, elements_ * info(spec_.dtype).size); }

}  // namespace penstock
