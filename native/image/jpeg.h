// Decodes a rectangle of a JPEG to interleaved RGB bytes, equal bit for bit to what Pillow's
// `Image.open(file).convert("RGB")` holds there.
//
// Sequential files of one scan are decoded by jpeg/, all others by libjpeg, and so is every file that jpeg/ finds unusual
// or damaged: it says what is wrong. Only the rectangle is transformed and converted: entropy decoding starts at the top,
// or at a row whose state is known, and stops at the last row that is needed.
//
// Native: Huffman-coded baseline, extended and progressive JPEGs of 8 bits a sample, grey or three components
// (YCbCr or RGB) sampled 4:4:4, 4:2:2, 4:2:0 or 4:4:0, that libjpeg reads without a single warning.
// All else is Code::python with the reason: other formats, CMYK, other samplings, arithmetic coding, lossless,
// progressive files that lack refinement scans, missing end-of-image marker, anything damaged or unusual.
//
// What success promises: if Pillow gives pixels for the same bytes, they are the same pixels. Pillow may still
// refuse a file that succeeded here for one kind of damage only: in the directories of Exif and MPO metadata.
//
// Threads: an object belongs to one thread at a time; different objects are independent. It may be moved to
// another thread between calls. Memory: the object owns libjpeg's state and the pixels, keeps both for the next
// image, and never owns the file's bytes. Not copyable, not movable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "files/outcome.h"
#include "image/box.h"
#include "jpeg/kernels.h"
#include "jpeg/row_state.h"

namespace penstock {

// What decodes: for tests one of them.
enum class JpegWay : std::uint8_t { own_else_libjpeg, own, libjpeg };

class JpegDecoder {
 public:
  JpegDecoder();  // throws std::bad_alloc only
  JpegDecoder(JpegWay way, const jpeg::Kernels& kernels);  // as the one before
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header. On success width() and height() are valid (1 to 65,500 pixels each), and one decode() may
  // follow; `data` must stay as it is until then. More than max_pixels pixels are left to Python; 0: no limit.
  [[nodiscard]] Outcome open(const std::uint8_t* data, std::size_t size, std::uint64_t max_pixels) noexcept;

  [[nodiscard]] int width() const noexcept { return width_; }
  [[nodiscard]] int height() const noexcept { return height_; }
  // Of the open image: pixels of a row of MCUs, and such rows.
  [[nodiscard]] int mcu_height() const noexcept { return mcu_height_; }
  [[nodiscard]] int mcu_rows() const noexcept { return (height_ + mcu_height_ - 1) / mcu_height_; }
  // Of the open image: 1 (grey) or 3.
  [[nodiscard]] int components() const noexcept;
  // Bytes of the file before its entropy-coded data: all that Pillow reads when it opens the image.
  [[nodiscard]] std::size_t head() const noexcept { return head_; }

  // Decodes `box`, which lies inside the image and is not empty. On success `pixels` points at the red byte of
  // (box.x0, box.y0), rows are row_stride bytes apart, and at least kReadable bytes after each row's last pixel
  // may be read. The pixels are the decoder's, valid until the next open(), decode() or destruction.
  // Rows need not be aligned: libjpeg's are not, on purpose (see jpeg.cc).
  // `states` (or nullptr) are those of this image's rows known so far, which save decoding what is above the box; those of
  // rows that are passed are added. `luma`: of YCbCr only the first component is decoded, as grey; only by jpeg/.
  [[nodiscard]] Outcome decode(Box box, const std::uint8_t*& pixels, std::ptrdiff_t& row_stride,
                               jpeg::RowStates* states = nullptr, bool luma = false) noexcept;

  // Of the open image, which is closed by it: success promises that Pillow decodes the whole file without an error,
  // whatever its entropy-coded data hold. That is known only of the common form: sequential, one scan, restart markers
  // at most within it. `end` is the position after its end-of-image marker: what follows, Pillow does not decode.
  // Without it the reason is that of Code::python.
  [[nodiscard]] Outcome certify(std::size_t& end) noexcept;

  // Bytes of the buffers of pixels.
  [[nodiscard]] std::size_t held() const noexcept;
  // Gives these buffers back, and all that belongs to an open image, which is closed.
  void release() noexcept;

  static constexpr std::size_t kReadable = 16;

 private:
  struct State;  // libjpeg's side; keeps jpeglib.h out of this header

  [[nodiscard]] bool decode_own(Box box, jpeg::RowStates* states, bool luma) noexcept;

  std::unique_ptr<State> state_;
  JpegWay way_ = JpegWay::own_else_libjpeg;
  int width_ = 0;
  int height_ = 0;
  int mcu_height_ = 8;
  std::size_t head_ = 0;
  std::size_t end_ = 0;  // position after the end-of-image marker; 0: there are several scans
  const std::uint8_t* data_ = nullptr;  // of the open image; the caller's
  std::size_t size_ = 0;
};

}  // namespace penstock
