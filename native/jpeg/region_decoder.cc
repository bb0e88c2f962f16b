#include "jpeg/region_decoder.h"

#include <algorithm>
#include <cstring>

namespace penstock::jpeg {
namespace {

// A buffer larger than this is given back when the next image needs far less.
constexpr std::size_t kKeepBytes = std::size_t{8} << 20;

[[nodiscard]] int halved(int size, bool half) { return half ? (size + 1) / 2 : size; }

// jdsample.c, jinit_upsampler(): rows of up to two samples are not interpolated, and their columns neither.
[[nodiscard]] Sampling sampling_of(const Scan& scan) {
  const bool columns = scan.max_h() == 2, rows = scan.max_v() == 2;
  if (!columns) return rows ? Sampling::h1v2 : Sampling::full;
  if (halved(scan.width, true) <= 2) return Sampling::doubled;
  return rows ? Sampling::h2v2 : Sampling::h2v1;
}

[[nodiscard]] bool interpolates_columns(Sampling sampling) {
  return sampling == Sampling::h2v1 || sampling == Sampling::h2v2;
}

[[nodiscard]] bool interpolates_rows(Sampling sampling) {
  return sampling == Sampling::h1v2 || sampling == Sampling::h2v2;
}

}  // namespace

bool RegionDecoder::begin(const CodedImage& image) noexcept {
  const Scan& scan = image.scan;
  if (scan.component_count != (image.colours == Colours::grey ? 1 : 3)) return false;
  for (int i = 0; i < scan.component_count; ++i) {
    const int most = i == 0 && scan.component_count == 3 ? 2 : 1;
    if (scan.components[i].h < 1 || scan.components[i].h > most || scan.components[i].v < 1 ||
        scan.components[i].v > most)
      return false;
  }
  image_ = image;
  sampling_ = image.colours == Colours::luma ? Sampling::full : sampling_of(scan);
  return entropy_.begin(scan);
}

void RegionDecoder::release() noexcept {
  samples_.reset();
  samples_size_ = 0;
}

// Which MCUs hold samples that the region needs, with the neighbours that interpolation adds.
void RegionDecoder::plan(const Region& region) noexcept {
  region_ = region;
  const Scan& scan = image_.scan;
  const int h = scan.components[0].h, v = scan.components[0].v;
  int x0 = region.x0, x1 = region.x1, y0 = region.y0, y1 = region.y1;
  if (interpolates_columns(sampling_)) {
    x0 = std::max(x0 / 2 - 1, 0) * 2;
    x1 = std::min((x1 - 1) / 2 + 2, halved(scan.width, true)) * 2;
  }
  if (interpolates_rows(sampling_)) {
    y0 = 2 * std::min(y0 / 2, next_chroma_row(y0));
    y1 = 2 * std::max((y1 - 1) / 2, next_chroma_row(y1 - 1)) + 1;
  }
  first_mcu_ = x0 / (8 * h);
  end_mcu_ = (x1 - 1) / (8 * h) + 1;
  first_row_ = y0 / (8 * v);
  end_row_ = (y1 - 1) / (8 * v) + 1;
  for (int i = 0; i < scan.component_count; ++i) {
    Plane& plane = planes_[i];
    plane.rows = 8 * scan.components[i].v;
    plane.first = first_mcu_ * 8 * scan.components[i].h;
    plane.width = halved(scan.width, i != 0 && h == 2);
    plane.height = halved(scan.height, i != 0 && v == 2);
  }
}

bool RegionDecoder::reserve() noexcept {
  const int columns = (end_mcu_ - first_mcu_) * 8 * image_.scan.components[0].h;
  stride_ = (columns + kGroup - 1) / kGroup * kGroup + 2 * kMargin;
  std::ptrdiff_t rows = 0;
  for (int i = 0; i < image_.scan.component_count; ++i) rows += 2 * planes_[i].rows;
  const std::size_t bytes = static_cast<std::size_t>(stride_ * rows);  // 65,500 columns and 64 rows at the most
  if (bytes > samples_size_ || (samples_size_ > kKeepBytes && bytes < samples_size_ / 4)) {
    release();
    samples_.reset(static_cast<std::uint8_t*>(::operator new[](bytes, std::align_val_t{64}, std::nothrow)));
    if (samples_ == nullptr) return false;
    std::memset(samples_.get(), 0, bytes);  // kernels read a few samples that no block wrote
    samples_size_ = bytes;
  }
  std::uint8_t* next = samples_.get() + kMargin;
  for (int i = 0; i < image_.scan.component_count; ++i) {
    planes_[i].samples = next;
    next += stride_ * 2 * planes_[i].rows;
  }
  return true;
}

void RegionDecoder::note_state(int row, RowStates* states) const noexcept {
  const auto at = static_cast<std::size_t>(row);
  if (states == nullptr || (at < states->known.size() && states->known[at].bit != RowState::kUnknown)) return;
  const std::optional<RowState> state = entropy_.state();
  if (!state) return;
  try {
    if (at >= states->known.size()) states->known.resize(at + 1);
  } catch (const std::bad_alloc&) {
    return;  // a state less
  }
  states->known[at] = *state;
}

// From the beginning of the scan to the first MCU of a row.
bool RegionDecoder::go_to_row(int row, RowStates* states) noexcept {
  const int mcus = image_.scan.mcus_per_row();
  int at = 0;
  if (states != nullptr) {
    at = std::min(row, static_cast<int>(states->known.size()) - 1);
    while (at > 0 && states->known[static_cast<std::size_t>(at)].bit == RowState::kUnknown) --at;
    at = std::max(at, 0);
    if (at > 0 && !entropy_.seek(states->known[static_cast<std::size_t>(at)], at)) return false;
  }
  if (states == nullptr) return at == row || entropy_.skip((row - at) * mcus);
  for (note_state(at, states); at < row; note_state(++at, states))
    if (!entropy_.skip(mcus)) return false;
  return true;
}

void RegionDecoder::transform(int component, int row, int first_mcu, int mcus) const noexcept {
  const ScanComponent& factors = image_.scan.components[component];
  const Plane& plane = planes_[component];
  const std::int16_t* blocks = coefficients_.data();
  for (int i = 0; i < component; ++i) blocks += kChunk * 64 * image_.scan.components[i].h * image_.scan.components[i].v;
  for (int y = 0; y < factors.v; ++y, blocks += kChunk * factors.h * 64) {
    const int top = (row % 2 * factors.v + y) * 8;
    kernels_->transform(blocks, mcus * factors.h, image_.quantisation[component],
                        plane.samples + top * stride_ + (first_mcu - first_mcu_) * factors.h * 8, stride_);
  }
}

// The MCUs of the region's columns in one row, to their planes; the decoder is at its first MCU before and after.
bool RegionDecoder::decode_row(int row) noexcept {
  const Scan& scan = image_.scan;
  if (!entropy_.skip(first_mcu_)) return false;
  // Of a row that only chroma's interpolation needs, luma is not transformed.
  const int v = scan.components[0].v;
  const bool luma = (row + 1) * 8 * v > region_.y0 && row * 8 * v < region_.y1;
  const int wanted = image_.colours == Colours::luma ? 1 : scan.component_count;
  std::array<CoefficientRow, 3> rows;
  std::int16_t* blocks = coefficients_.data();
  int block_count = 0;
  for (int i = 0; i < scan.component_count; ++i) {
    const ScanComponent& factors = scan.components[i];
    rows[i] = {blocks, kChunk * factors.h * 64};
    blocks += kChunk * factors.h * factors.v * 64;
    block_count += kChunk * factors.h * factors.v;
  }
  for (int mcu = first_mcu_; mcu < end_mcu_; mcu += kChunk) {
    const int mcus = std::min(kChunk, end_mcu_ - mcu);
    std::memset(coefficients_.data(), 0, static_cast<std::size_t>(block_count) * 64 * sizeof(std::int16_t));
    if (!entropy_.decode(mcus, rows, 0)) return false;
    for (int i = luma ? 0 : 1; i < wanted; ++i) transform(i, row, mcu, mcus);
  }
  if (interpolates_columns(sampling_)) extend_edges(row);
  return true;
}

// Interpolation beyond the first and the last sample of a row gives the sample itself where it is there twice.
void RegionDecoder::extend_edges(int row) const noexcept {
  for (int i = 1; i < image_.scan.component_count; ++i) {
    const Plane& plane = planes_[i];
    const std::ptrdiff_t end = plane.width - plane.first;
    const bool at_end = end <= (end_mcu_ - first_mcu_) * 8;
    std::uint8_t* samples = plane.samples + row % 2 * 8 * stride_;
    for (int y = 0; y < 8; ++y, samples += stride_) {
      if (plane.first == 0) samples[-1] = samples[0];
      if (at_end) samples[end] = samples[end - 1];
    }
  }
}

const std::uint8_t* RegionDecoder::row_of(int component, int y) const noexcept {
  const Plane& plane = planes_[component];
  return plane.samples + y % (2 * plane.rows) * stride_;
}

// jdmainct.c: beyond the first and the last row of chroma lie these rows once more.
int RegionDecoder::next_chroma_row(int y) const noexcept {
  const int last = (image_.scan.height + 1) / 2 - 1;
  return std::clamp(y / 2 + (y % 2 != 0 ? 1 : -1), 0, last);
}

void RegionDecoder::convert(int y, std::uint8_t* rgb) const noexcept {
  const bool halved_columns = image_.scan.components[0].h == 2, halved_rows = image_.scan.components[0].v == 2;
  // Pixels come in pairs where they share a sample.
  const int x0 = halved_columns ? region_.x0 / 2 * 2 : region_.x0, pixels = region_.x1 - x0;
  std::uint8_t* const out = rgb - 3 * (region_.x0 - x0);
  SampleRow row;
  row.first = row_of(0, y) + (x0 - planes_[0].first);
  if (image_.colours == Colours::grey || image_.colours == Colours::luma) return kernels_->grey(row, pixels, out);
  for (std::size_t i = 0; i < 2; ++i) {
    const int component = static_cast<int>(i) + 1;
    const int column = (halved_columns ? x0 / 2 : x0) - planes_[component].first;
    row.nearest[i] = row_of(component, halved_rows ? y / 2 : y) + column;
    if (interpolates_rows(sampling_)) row.next[i] = row_of(component, next_chroma_row(y)) + column;
  }
  row.bias = y % 2 != 0 ? 2 : 1;
  const Kernels& kernels = sampling_ == Sampling::doubled ? kPortableKernels : *kernels_;  // of at most 4 columns
  const auto& converters = image_.colours == Colours::ycc ? kernels.ycc : kernels.rgb;
  converters[static_cast<std::size_t>(sampling_)](row, pixels, out);
}

bool RegionDecoder::decode(const Region& region, std::uint8_t* rgb, std::ptrdiff_t stride, RowStates* states) noexcept {
  plan(region);
  const Scan& scan = image_.scan;
  const int mcus = scan.mcus_per_row();
  if (!reserve() || !go_to_row(first_row_, states)) return false;
  int y = region.y0;
  for (int row = first_row_; row < end_row_; ++row) {
    if (!decode_row(row)) return false;
    // All pixels whose samples are there: interpolation needs a row of chroma of the next MCUs for the last ones.
    const int bottom = (row + 1) * 8 * scan.components[0].v;
    const int ready = interpolates_rows(sampling_) && row + 1 < scan.mcu_rows() ? bottom - 1 : bottom;
    for (const int end = std::min(ready, region.y1); y < end; ++y, rgb += stride) convert(y, rgb);
    if (!entropy_.skip(mcus - end_mcu_)) return false;  // of the last row too, so that damage in it is noticed
    if (row + 1 < scan.mcu_rows()) note_state(row + 1, states);
  }
  return region.y1 != scan.height || entropy_.finish();
}

}  // namespace penstock::jpeg
