// The pixels of a JPEG by native/jpeg/, in each kind of instructions that this processor has, against libjpeg's.
//
// Threads: an object belongs to one thread at a time. Memory: the object owns its decoders; files are borrowed for the call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "image/jpeg.h"

namespace penstock::fuzz {

class PixelComparison {
 public:
  PixelComparison();

  // What is wrong with how a file is decoded; nullptr: nothing. The number chooses the instructions and the boxes.
  [[nodiscard]] const char* fault(std::span<const std::uint8_t> file, std::uint64_t number);
  // Boxes that were decoded to the end of the image, and boxes that were equal.
  [[nodiscard]] std::uint64_t decoded() const { return decoded_; }
  [[nodiscard]] std::uint64_t equal() const { return equal_; }

 private:
  std::vector<std::unique_ptr<JpegDecoder>> own_;
  JpegDecoder libjpeg_;
  std::uint64_t decoded_ = 0, equal_ = 0;
};

}  // namespace penstock::fuzz
