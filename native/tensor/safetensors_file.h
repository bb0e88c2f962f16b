// The tensors of a .safetensors file, each read into memory of its own.
//
// Format: huggingface/safetensors, README, "Format"; the header as its writer has it. Every length of the file is checked.
// Threads: a SafetensorsFile belongs to one thread at a time. Memory: it owns each tensor's bytes, until their Block is
// moved out.
#pragma once

#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/file_block.h"
#include "tensor/saved_file.h"

namespace penstock {

struct SafeTensor {
  std::string_view name;  // in the header
  TensorSpec spec;
  std::uint64_t begin = 0, end = 0;  // in the bytes behind the header
  SavedStorage storage;
};

class SafetensorsFile {
 public:
  // nullptr, or why the file is left to its library (a string with static storage duration).
  [[nodiscard]] const char* read(const char* path) noexcept;
  // In the order of the file.
  [[nodiscard]] std::vector<SafeTensor>& tensors() { return tensors_; }
  void trim() noexcept { tensors_.clear(); }

 private:
  const char* read_all(const char* path);
  const char* parse(std::string_view header, std::uint64_t bytes);

  std::vector<char> header_;
  std::vector<SafeTensor> tensors_;
};

}  // namespace penstock
