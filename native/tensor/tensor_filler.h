// Fillers of tensors: rows of an array in memory, and files of one tensor each.
//
// Threads: as every Filler's (filler.h). Memory: a GatherFiller borrows its array; a TensorFileFiller shares its table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tensor/filler.h"
#include "tensor/tensor_file.h"

namespace penstock {

// Rows of an array: count rows of row_bytes, row_stride apart.
class GatherFiller final : public Filler {
 public:
  GatherFiller(const std::uint8_t* base, std::size_t count, std::ptrdiff_t row_stride, TensorSpec spec);
  Outcome fill(const SampleKey&, const FileTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  void prefetch(std::size_t local) const noexcept override;
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return row_bytes_; }

 private:
  const std::uint8_t* base_;
  std::size_t count_;
  std::ptrdiff_t row_stride_;
  std::size_t row_bytes_;
  TensorSpec spec_;
};

// The reader of one thread. What it holds it gives back by itself.
struct TensorScratch final : ScratchPart {
  explicit TensorScratch(StageClock& clock) : reader(&clock) {}
  [[nodiscard]] std::size_t held() const noexcept override { return 0; }
  void release() noexcept override {}

  TensorReader reader;
};

// Tensor files by name (.pt, .npy).
class TensorFileFiller final : public Filler {
 public:
  explicit TensorFileFiller(std::shared_ptr<const FileTable> table) : table_(std::move(table)) {}
  Outcome fill(const SampleKey&, const FileTable*, const TensorSpec&, std::uint8_t*, TensorSpec&,
               Scratch&) const noexcept override;
  [[nodiscard]] FileLocation locate(const SampleKey& key, const FileTable*) const noexcept override {
    return {table_.get(), key.local};
  }

 private:
  std::shared_ptr<const FileTable> table_;
};

}  // namespace penstock
