// Reads the one tensor of a .pt or .npy file into a row of a batch.
//
// Threads: a TensorReader belongs to one thread. Memory: a reader owns its scratch: about 130 KiB from the
// start, and while it reads a tensor that is not in C order, the bytes that the tensor spans; more than
// 16 MiB are given back after the file. The file and the row belong to the caller.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "files/outcome.h"
#include "files/sample_file.h"
#include "files/stages.h"
#include "tensor/dtype.h"
#include "tensor/tensor_layout.h"

namespace penstock {

class TensorReader {
 public:
  // `clock`: of the thread that reads, or null; it outlives the reader. Throws std::bad_alloc.
  explicit TensorReader(StageClock* clock = nullptr);

  // Reads the tensor of `source` into `row`, which holds
  // checked_bytes(want). `name_length`: of the sample's name; files whose names are equally long tend to
  // have the same layout, as torch.save writes the name into the file. `got` is set when the layout was
  // understood, also on mismatch. After any outcome but ok the row's content is undefined.
  // The elements have the CRC-32 that the file gives for them, where it gives one.
  [[nodiscard]] Outcome read(SampleFile& source, std::size_t name_length, const TensorSpec& want, std::uint8_t* row,
                             TensorSpec& got) noexcept;

  // Files that one system call read, the layout being that of an earlier file.
  [[nodiscard]] std::uint64_t predicted() const noexcept { return predicted_; }

 private:
  // Where the elements lay in the last file with names of this length.
  struct Prediction {
    std::size_t name_length = 0;
    std::uint64_t head = 0;   // bytes before the elements; 0: nothing known
    std::uint64_t bytes = 0;  // of the elements
    std::uint64_t tail = 0;   // bytes after them
  };
  struct Opened {
    SplitFile file{0};
    TensorLayout layout;
    bool whole = false;  // the file lies in scratch_ from its start
  };

  bool read_predicted(SampleFile& source, const Prediction& guess, const TensorSpec& want, std::uint8_t* row, TensorSpec& got,
                      Outcome& outcome) noexcept;
  Outcome open(SampleFile& source, Opened& opened) noexcept;
  Outcome read_parts(SampleFile& source, Opened& opened) noexcept;
  Outcome load(SampleFile& source, const Opened& opened, std::uint8_t* row) noexcept;
  Outcome check(SampleFile& source, const TensorLayout& layout, const std::uint8_t* elements) noexcept;
  std::uint8_t* scratch(std::uint64_t bytes) noexcept;
  void trim_scratch() noexcept;
  void lap(Stage stage) const noexcept {
    if (clock_ != nullptr) clock_->lap(stage);
  }

  StageClock* clock_;
  TensorParser parser_;
  std::array<Prediction, 32> predictions_{};
  std::unique_ptr<std::uint8_t[]> head_;
  std::unique_ptr<std::uint8_t[]> tail_;
  std::unique_ptr<std::uint8_t[]> scratch_;
  std::uint64_t scratch_bytes_ = 0;
  std::uint64_t predicted_ = 0;
};

}  // namespace penstock
