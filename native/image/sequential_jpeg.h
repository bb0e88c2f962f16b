// Sequential JPEGs, decoded by jpeg/: what libjpeg has read of an image's header goes to a RegionDecoder.
//
// Threads: an object belongs to one thread at a time. Memory: the object owns its buffers and a copy of the image's
// tables; the file's bytes are borrowed for the call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "image/box.h"
#include "jpeg/region_decoder.h"

struct jpeg_decompress_struct;

namespace penstock {

class SequentialJpeg {
 public:
  explicit SequentialJpeg(const jpeg::Kernels& kernels) noexcept : decoder_(kernels) {}

  // The image that `header` is of, which libjpeg has read up to the entropy-coded data of the first scan, `data`. False:
  // it is of another kind, or unusual, or damaged. luma: of YCbCr only the first component is decoded, as grey. The rest
  // is as RegionDecoder::decode() says.
  [[nodiscard]] bool decode(const jpeg_decompress_struct& header, std::span<const std::uint8_t> data, Box box,
                            std::uint8_t* rgb, std::ptrdiff_t stride, jpeg::RowStates* states, bool luma) noexcept;

  [[nodiscard]] std::size_t held() const noexcept { return decoder_.held(); }
  void release() noexcept { decoder_.release(); }

  static constexpr std::ptrdiff_t kBefore = jpeg::RegionDecoder::kBefore, kBehind = jpeg::RegionDecoder::kBehind;

 private:
  [[nodiscard]] bool read(const jpeg_decompress_struct& header) noexcept;

  jpeg::RegionDecoder decoder_;
  jpeg::CodedImage image_;
  std::array<jpeg::HuffmanTable, 4> dc_, ac_;  // by destination identifier (B.2.4.2)
};

}  // namespace penstock
