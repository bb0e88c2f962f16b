#include "image/jpeg_trial.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csetjmp>
#include <cstdint>
#include <cstdio>  // jpeglib.h needs FILE and size_t
#include <cstring>
#include <memory>
#include <span>

#include <jpeglib.h>

#include "image/jpeg.h"

namespace penstock {
namespace {

constexpr int kWidth = 93, kHeight = 61;  // no whole number of MCUs
constexpr std::array<Box, 3> kBoxes{{{0, 0, kWidth, kHeight}, {17, 15, 48, 33}, {33, 47, 34, 48}}};

struct Trial {
  J_COLOR_SPACE colours;
  int h, v;
  int quality;
  unsigned restart_interval;
  bool extreme;  // quantisation by 255 of coefficients that were quantised by far less
};

constexpr std::array<Trial, 8> kTrials{{
    {JCS_YCbCr, 1, 1, 96, 0, false},
    {JCS_YCbCr, 2, 1, 90, 5, false},
    {JCS_YCbCr, 1, 2, 75, 0, false},
    {JCS_YCbCr, 2, 2, 60, 1, false},
    {JCS_RGB, 1, 1, 50, 0, false},
    {JCS_GRAYSCALE, 1, 1, 30, 0, false},
    {JCS_YCbCr, 1, 1, 98, 0, true},
    {JCS_YCbCr, 2, 2, 80, 0, true},
}};

// A pixel of flat blocks, waves and noise.
void put_pixel(int x, int y, std::uint8_t* pixel) {
  const auto noise = (static_cast<std::uint32_t>(x) * 2654435761U + static_cast<std::uint32_t>(y) * 2246822519U) >> 13;
  for (int c = 0; c < 3; ++c) {
    const int wave = (x * (c + 2) + y * (5 - c)) % 256;
    const bool flat = x < 32 && y < 32, white = ((x >> 3) + (y >> 4)) % 2 != 0;
    pixel[c] = static_cast<std::uint8_t>(flat ? (white ? 255 : 0) : y < 40 ? wave : noise >> (8 * (c % 2)));
  }
}

struct Encoder {
  // libjpeg reports through this; it is the first member of Errors, as is its custom.
  struct Errors {
    jpeg_error_mgr base;
    std::jmp_buf jump;
  };

  jpeg_compress_struct cinfo{};
  Errors errors{};
  jpeg_destination_mgr destination{};
  std::array<std::uint8_t, 1 << 16> bytes{};
  std::array<std::uint8_t, std::size_t{3} * kWidth> row{};

  Encoder() {
    cinfo.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = [](j_common_ptr info) { std::longjmp(reinterpret_cast<Errors*>(info->err)->jump, 1); };
    errors.base.output_message = [](j_common_ptr) {};
    destination.init_destination = [](j_compress_ptr) {};
    destination.empty_output_buffer = [](j_compress_ptr info) -> boolean {
      info->err->error_exit(reinterpret_cast<j_common_ptr>(info));
      return FALSE;
    };
    destination.term_destination = [](j_compress_ptr) {};
  }
  ~Encoder() { jpeg_destroy_compress(&cinfo); }  // as good where none was created
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  void write(const Trial& trial) {
    jpeg_create_compress(&cinfo);
    destination.next_output_byte = bytes.data();
    destination.free_in_buffer = bytes.size();
    cinfo.dest = &destination;
    cinfo.image_width = kWidth;
    cinfo.image_height = kHeight;
    cinfo.input_components = 3;
    cinfo.in_color_space = JCS_RGB;
    jpeg_set_defaults(&cinfo);
    jpeg_set_colorspace(&cinfo, trial.colours);
    cinfo.comp_info[0].h_samp_factor = trial.h;
    cinfo.comp_info[0].v_samp_factor = trial.v;
    jpeg_set_quality(&cinfo, trial.quality, TRUE);
    cinfo.optimize_coding = trial.quality % 4 == 0 ? TRUE : FALSE;
    cinfo.restart_interval = trial.restart_interval;
    jpeg_start_compress(&cinfo, TRUE);
    for (int y = 0; y < kHeight; ++y) {
      for (int x = 0; x < kWidth; ++x) put_pixel(x, y, &row[static_cast<std::size_t>(3 * x)]);
      JSAMPROW rows[1] = {row.data()};
      jpeg_write_scanlines(&cinfo, rows, 1);
    }
    jpeg_finish_compress(&cinfo);
  }

  // The file; empty: it could not be made.
  std::span<const std::uint8_t> encode(const Trial& trial) noexcept {
    if (setjmp(errors.jump) != 0) return {};
    write(trial);
    const std::size_t size = bytes.size() - destination.free_in_buffer;
    jpeg_destroy_compress(&cinfo);
    if (trial.extreme) quantise_by_255(size);
    return {bytes.data(), size};
  }

  // One table a segment, as libjpeg writes them.
  void quantise_by_255(std::size_t size) {
    constexpr std::uint8_t start_of_scan = 0xDA, quantisation = 0xDB;
    for (std::size_t at = 2; at + 5 + DCTSIZE2 <= size && bytes[at + 1] != start_of_scan;) {
      if (bytes[at + 1] == quantisation) std::fill_n(&bytes[at + 5], DCTSIZE2, std::uint8_t{255});
      at += 2 + static_cast<std::size_t>(bytes[at + 2] << 8 | bytes[at + 3]);
    }
  }
};

[[nodiscard]] bool same(JpegDecoder& own, JpegDecoder& libjpeg, std::span<const std::uint8_t> file, Box box) {
  const std::uint8_t *a = nullptr, *b = nullptr;
  std::ptrdiff_t a_stride = 0, b_stride = 0;
  if (!own.open(file.data(), file.size(), 0).ok() || !own.decode(box, a, a_stride).ok()) return false;
  if (!libjpeg.open(file.data(), file.size(), 0).ok() || !libjpeg.decode(box, b, b_stride).ok()) return false;
  for (int y = 0; y < box.height(); ++y, a += a_stride, b += b_stride)
    if (std::memcmp(a, b, static_cast<std::size_t>(box.width()) * 3) != 0) return false;
  return true;
}

[[nodiscard]] bool passes() {
  const jpeg::Kernels& kernels = *jpeg::kernels(jpeg::Instructions::best);
  if (&kernels == &jpeg::kPortableKernels) return false;
  JpegDecoder own(JpegWay::own, kernels), libjpeg(JpegWay::libjpeg, kernels);
  const auto encoder = std::make_unique<Encoder>();
  for (const Trial& trial : kTrials) {
    const std::span<const std::uint8_t> file = encoder->encode(trial);
    if (file.empty()) return false;
    for (const Box box : kBoxes)
      if (!same(own, libjpeg, file, box)) return false;
  }
  return true;
}

}  // namespace

bool own_jpeg_serves() noexcept {
  // Threads that ask at once may each find out: a lock could be held in a process that forks.
  enum : int { unknown, yes, no };
  static std::atomic<int> found = unknown;
  int known = found.load(std::memory_order_acquire);
  if (known == unknown) {
    try {
      known = passes() ? yes : no;
    } catch (const std::bad_alloc&) {
      return false;
    }
    found.store(known, std::memory_order_release);
  }
  return known == yes;
}

}  // namespace penstock
