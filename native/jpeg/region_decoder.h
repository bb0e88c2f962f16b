// Decodes a rectangle of a sequential JPEG to interleaved RGB, the same pixels as libjpeg-turbo's on x86-64.
//
// The rectangle decides the work. Blocks outside of it, and of the neighbours that interpolation of chroma needs, cost the
// passing of their bits; what is below costs nothing; what is above costs nothing either where the state of the entropy
// decoder at one of its rows is known.
//
// Threads: an object belongs to one thread at a time; different objects are independent. Memory: the object owns its
// buffers, keeps them for the next image, and borrows the scan's data until the last call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "jpeg/entropy_decoder.h"
#include "jpeg/kernels.h"
#include "jpeg/row_state.h"
#include "jpeg/scan.h"

namespace penstock::jpeg {

struct Region {
  int x0 = 0, y0 = 0, x1 = 0, y1 = 0;  // pixels; x1 and y1 are outside
};

// A scan and what follows entropy decoding: sampling factors of component 0 are 1 or 2, of the others 1.
struct CodedImage {
  Scan scan;
  std::array<QuantisationTable, 3> quantisation;
  Colours colours = Colours::ycc;
};

class RegionDecoder {
 public:
  explicit RegionDecoder(const Kernels& kernels) noexcept : kernels_(&kernels) {}

  // False: the image is of no kind that is decoded here. `image` may go after it, but for its data.
  [[nodiscard]] bool begin(const CodedImage& image) noexcept;

  // The region, which lies inside the image and is not empty, to rows `stride` bytes apart. Bytes around them are
  // overwritten: kBefore before and kBehind behind each row, so that `stride` must be the row's length + kBefore at least.
  // Of a region that reaches the bottom, the end of the data is looked at too.
  // `states` (or nullptr) are those of this image known so far; states of rows that are passed are added.
  // False: something is unusual or damaged; what was written is undefined.
  [[nodiscard]] bool decode(const Region& region, std::uint8_t* rgb, std::ptrdiff_t stride, RowStates* states) noexcept;

  [[nodiscard]] std::size_t held() const noexcept { return samples_size_; }
  void release() noexcept;

  static constexpr std::ptrdiff_t kBefore = 3, kBehind = 3 * kGroup;

 private:
  // The samples of a component in two rows of MCUs, by turns: row y of the component is at y modulo 2 * rows.
  struct Plane {
    std::uint8_t* samples = nullptr;  // of the first column that is decoded
    int rows = 0;                     // of a row of MCUs
    int first = 0;                    // column
    int width = 0, height = 0;        // of the component in the whole image
  };

  void plan(const Region& region) noexcept;
  [[nodiscard]] bool reserve() noexcept;
  [[nodiscard]] bool go_to_row(int row, RowStates* states) noexcept;
  void note_state(int row, RowStates* states) const noexcept;
  [[nodiscard]] bool decode_row(int row) noexcept;
  void transform(int component, int row, int first_mcu, int mcus) const noexcept;
  void extend_edges(int row) const noexcept;
  [[nodiscard]] const std::uint8_t* row_of(int component, int y) const noexcept;
  [[nodiscard]] int next_chroma_row(int y) const noexcept;
  void convert(int y, std::uint8_t* rgb) const noexcept;

  static constexpr int kChunk = 16;  // MCUs that are decoded before they are transformed
  static constexpr std::ptrdiff_t kMargin = 64;  // bytes around the samples of a row, which kernels may read or write

  struct Free {
    void operator()(std::uint8_t* p) const noexcept { ::operator delete[](p, std::align_val_t{64}); }
  };

  const Kernels* kernels_;
  EntropyDecoder entropy_;
  CodedImage image_;
  Sampling sampling_ = Sampling::full;
  Region region_;
  int first_mcu_ = 0, end_mcu_ = 0;  // columns of MCUs
  int first_row_ = 0, end_row_ = 0;  // rows of MCUs
  std::array<Plane, 3> planes_{};
  std::ptrdiff_t stride_ = 0;  // of all planes
  std::unique_ptr<std::uint8_t[], Free> samples_;
  std::size_t samples_size_ = 0;
  // Of kChunk MCUs of up to 6 blocks; rows of blocks of a component follow each other.
  alignas(64) std::array<std::int16_t, std::size_t{kChunk} * 6 * 64> coefficients_{};
};

}  // namespace penstock::jpeg
