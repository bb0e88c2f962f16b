#include "image/jpeg.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs FILE and size_t
#include <new>

#include <jpeglib.h>

#include <jerror.h>

#include "image/jpeg_segments.h"
#include "image/sequential_jpeg.h"

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2000000
#error "penstock needs libjpeg-turbo 2.0 or newer (Debian: apt-get install libjpeg62-turbo-dev)"
#endif

namespace penstock {
namespace {

// Coefficients of a multi-scan file are held whole; this bounds them (Pillow's pixel limit needs 540 MB).
constexpr long kMaxMemory = 1L << 30;
// A scan costs a pass over the image but only a few bytes of file. Encoders write about ten.
constexpr int kMaxScans = 500;
// A buffer larger than this is given back when the next image needs far less.
constexpr std::size_t kKeepBytes = std::size_t{32} << 20;
// libjpeg's SIMD colour conversion writes 16- and 32-byte aligned rows with non-temporal stores, which sends the
// pixels to memory just before they are read again. Rows at 8 modulo 64 stay in cache.
constexpr std::size_t kRowAlign = 64;
constexpr std::size_t kRowOffset = 8;
// The own decoder stores in ordinary ways, and fastest to whole lines of the cache.
constexpr std::size_t kOwnRowOffset = kRowAlign;

}  // namespace

struct JpegDecoder::State {
  // libjpeg reports through this; it is the first member of Errors, as is its custom.
  struct Errors {
    jpeg_error_mgr base;
    std::jmp_buf jump;
    const char* reason;
  };
  struct Free {
    void operator()(std::uint8_t* p) const noexcept { ::operator delete[](p, std::align_val_t{kRowAlign}); }
  };

  jpeg_decompress_struct cinfo{};
  Errors errors{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
  bool created = false;
  bool opened = false;  // the header is read, the image is not yet decoded

  std::unique_ptr<std::uint8_t[], Free> buffer;
  std::size_t capacity = 0;
  // The decode in progress: rows of the box go to first_row, first_row + stride, ...
  Box box{};
  JDIMENSION crop_x = 0, crop_width = 0;
  std::uint8_t* first_row = nullptr;
  std::size_t stride = 0;
  SequentialJpeg sequential;

  explicit State(const jpeg::Kernels& kernels);
  ~State();

  bool guarded(void (*step)(State&)) noexcept;
  bool renew() noexcept;
  void close() noexcept;
  Outcome check_frame() const;
  void plan_columns();
  bool reserve(std::size_t offset) noexcept;

  static void create(State& s);
  static void read_header(State& s);
  static void start(State& s);
  static void read_rows(State& s);
  [[noreturn]] static void fail(j_common_ptr cinfo, const char* reason);
};

// --- libjpeg's callbacks. They leave by longjmp to guarded(); the only C++ frame between holds nothing to destroy.

void JpegDecoder::State::fail(j_common_ptr cinfo, const char* reason) {
  auto* errors = reinterpret_cast<Errors*>(cinfo->err);
  errors->reason = reason;
  std::longjmp(errors->jump, 1);
}

// Runs one step of libjpeg; false when it failed, with errors.reason set. No object with a destructor may live in
// a step.
bool JpegDecoder::State::guarded(void (*step)(State&)) noexcept {
  if (setjmp(errors.jump) != 0) return false;
  step(*this);
  return true;
}

JpegDecoder::State::State(const jpeg::Kernels& kernels) : sequential(kernels) {
  cinfo.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = [](j_common_ptr info) {
    const int code = info->err->msg_code;
    const bool memory = code == JERR_OUT_OF_MEMORY || code == JERR_NO_BACKING_STORE;
    fail(info, memory ? "out of memory" : "libjpeg: corrupt data");
  };
  // Level -1 is a warning: the data are damaged. Pillow continues, so Pillow shall. Other levels are traces.
  errors.base.emit_message = [](j_common_ptr info, int level) {
    if (level < 0) fail(info, "libjpeg: corrupt data");
  };
  errors.base.output_message = [](j_common_ptr) {};

  source.init_source = [](j_decompress_ptr) {};
  source.term_source = [](j_decompress_ptr) {};
  source.resync_to_restart = jpeg_resync_to_restart;
  source.fill_input_buffer = [](j_decompress_ptr info) -> boolean {
    fail(reinterpret_cast<j_common_ptr>(info), "libjpeg: corrupt data");  // the file ends too early
  };
  source.skip_input_data = [](j_decompress_ptr info, long count) {
    if (count <= 0) return;
    if (static_cast<std::size_t>(count) > info->src->bytes_in_buffer)
      fail(reinterpret_cast<j_common_ptr>(info), "libjpeg: corrupt data");
    info->src->next_input_byte += count;
    info->src->bytes_in_buffer -= static_cast<std::size_t>(count);
  };
  progress.progress_monitor = [](j_common_ptr info) {
    if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMaxScans) fail(info, "JPEG: too many scans");
  };
}

JpegDecoder::State::~State() {
  if (created) jpeg_destroy_decompress(&cinfo);  // cannot fail: it only frees
}

void JpegDecoder::State::create(State& s) {
  jpeg_create_decompress(&s.cinfo);
  s.cinfo.src = &s.source;
  s.cinfo.progress = &s.progress;
  s.cinfo.mem->max_memory_to_use = kMaxMemory;
}

// A fresh jpeg_decompress_struct: a reused one would lend an image without quantisation or Huffman tables those of
// the image before it. Costs 0.2 microseconds.
bool JpegDecoder::State::renew() noexcept {
  opened = false;
  if (created) jpeg_destroy_decompress(&cinfo);
  created = guarded(create);
  return created;
}

// Frees what belongs to the image, whether it was decoded, in part, or failed.
void JpegDecoder::State::close() noexcept {
  opened = false;
  jpeg_abort_decompress(&cinfo);
}

void JpegDecoder::State::read_header(State& s) {
  jpeg_read_header(&s.cinfo, TRUE);
}

// Lets pass only what is proven equal to Pillow.
Outcome JpegDecoder::State::check_frame() const {
  if (cinfo.data_precision != 8) return Outcome::to_python("JPEG: not 8 bits a sample");
  if (cinfo.arith_code) return Outcome::to_python("JPEG: arithmetic coding");
  const jpeg_component_info* c = cinfo.comp_info;
  if (cinfo.num_components == 1) {
    if (c[0].h_samp_factor != 1 || c[0].v_samp_factor != 1) return Outcome::to_python("JPEG: unusual sampling");
    return Outcome::success();
  }
  if (cinfo.num_components != 3) return Outcome::to_python("JPEG: CMYK or another number of components");
  if (cinfo.jpeg_color_space != JCS_YCbCr && cinfo.jpeg_color_space != JCS_RGB)
    return Outcome::to_python("JPEG: unknown colour space");
  for (int i = 1; i < 3; ++i)
    if (c[i].h_samp_factor != 1 || c[i].v_samp_factor != 1) return Outcome::to_python("JPEG: unusual sampling");
  const int h = c[0].h_samp_factor, v = c[0].v_samp_factor;
  if (h > 2 || v > 2) return Outcome::to_python("JPEG: unusual sampling");
#if LIBJPEG_TURBO_VERSION_NUMBER < 2000003
  if (h == 1 && v == 2) return Outcome::to_python("JPEG: unusual sampling");  // rounded otherwise before 2.0.3
#endif
  return Outcome::success();
}

// Chooses the columns that libjpeg decodes. Where chroma is upsampled, the first column of a crop is wrong (it lacks
// its neighbour) and the last may be, so one column more is decoded on each side; the left edge moves on to a multiple
// of the iMCU width, as libjpeg wants it. A crop that leaves less than two chroma samples a row makes libjpeg switch
// to another upsampling: two iMCUs are decoded at least. Rows need no such guard: libjpeg reads the context itself.
void JpegDecoder::State::plan_columns() {
  const JDIMENSION width = cinfo.image_width;
  const JDIMENSION imcu = static_cast<JDIMENSION>(DCTSIZE * cinfo.max_h_samp_factor);
  const int guard = cinfo.max_h_samp_factor > 1 ? 1 : 0;
  crop_x = static_cast<JDIMENSION>(std::max(box.x0 - guard, 0)) / imcu * imcu;
  const JDIMENSION end = std::min(width, std::max(static_cast<JDIMENSION>(box.x1 + guard), crop_x + 2 * imcu));
  if (end - crop_x < 2 * imcu) crop_x -= std::min(crop_x, imcu);
  crop_width = end - crop_x;
}

// Makes room for the box's rows, crop_width pixels each, the first one at `offset`.
bool JpegDecoder::State::reserve(std::size_t offset) noexcept {
  const std::size_t row = std::size_t{crop_width} * 3 + kReadable;
  stride = (row + kRowAlign - 1) / kRowAlign * kRowAlign;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(stride, static_cast<std::size_t>(box.height()), &bytes)) return false;
  if (__builtin_add_overflow(bytes, offset + SequentialJpeg::kBehind, &bytes)) return false;
  if (bytes > capacity || (capacity > kKeepBytes && bytes < capacity / 4)) {
    capacity = 0;
    buffer.reset();
    buffer.reset(static_cast<std::uint8_t*>(::operator new[](bytes, std::align_val_t{kRowAlign}, std::nothrow)));
    if (buffer == nullptr) return false;
    capacity = bytes;
  }
  first_row = buffer.get() + offset;
  return true;
}

void JpegDecoder::State::start(State& s) {
  s.cinfo.out_color_space = JCS_RGB;  // grey is replicated, as Pillow's convert("RGB") does
  s.cinfo.dct_method = JDCT_ISLOW;
  s.cinfo.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&s.cinfo);
}

void JpegDecoder::State::read_rows(State& s) {
  jpeg_decompress_struct& cinfo = s.cinfo;
  start(s);
  // Where low frequencies lack refinement scans libjpeg smooths blocks, each version in its own way.
  if (cinfo.coef_bits != nullptr)
    for (int c = 0; c < cinfo.num_components; ++c)
      for (int k = 0; k < 10; ++k)
        if (cinfo.coef_bits[c][k] != 0) fail(reinterpret_cast<j_common_ptr>(&cinfo), "JPEG: incomplete progressive");

  JDIMENSION x = s.crop_x, width = s.crop_width;
  if (width != cinfo.output_width) jpeg_crop_scanline(&cinfo, &x, &width);
  if (x != s.crop_x || width != s.crop_width) fail(reinterpret_cast<j_common_ptr>(&cinfo), "libjpeg: unexpected crop");
  const JDIMENSION y0 = static_cast<JDIMENSION>(s.box.y0), y1 = static_cast<JDIMENSION>(s.box.y1);
  if (y0 > 0 && jpeg_skip_scanlines(&cinfo, y0) != y0)
    fail(reinterpret_cast<j_common_ptr>(&cinfo), "libjpeg: unexpected skip");

  std::array<JSAMPROW, 4> rows;  // libjpeg gives at most two at a time
  std::uint8_t* next = s.first_row;
  while (cinfo.output_scanline < y1) {
    const JDIMENSION want = std::min<JDIMENSION>(static_cast<JDIMENSION>(rows.size()), y1 - cinfo.output_scanline);
    for (JDIMENSION i = 0; i < want; ++i) rows[i] = next + i * s.stride;
    const JDIMENSION got = jpeg_read_scanlines(&cinfo, rows.data(), want);
    if (got == 0) fail(reinterpret_cast<j_common_ptr>(&cinfo), "libjpeg: unexpected suspension");
    next += got * s.stride;
  }
  // At the bottom, what follows is checked too, up to the end of the image.
  if (cinfo.output_scanline == cinfo.output_height) jpeg_finish_decompress(&cinfo);
}

int JpegDecoder::components() const noexcept { return state_->cinfo.num_components; }

// Every error of libjpeg's is in what the markers say, which jpeg_start_decompress() has looked at as a whole where one
// scan is all; of damaged data it warns, and Pillow continues.
Outcome JpegDecoder::certify(std::size_t& end) noexcept {
  State& s = *state_;
  if (!s.opened) return Outcome::to_python("JPEG: no image is open");
  end = end_;
  const bool started = end != 0 && s.guarded(State::start);
  s.close();
  if (end == 0) return Outcome::to_python("JPEG: several scans");
  return started ? Outcome::success() : Outcome::to_python(s.errors.reason);
}

std::size_t JpegDecoder::held() const noexcept { return state_->capacity + state_->sequential.held(); }

void JpegDecoder::release() noexcept {
  if (state_->opened) state_->close();
  state_->capacity = 0;
  state_->buffer.reset();
  state_->sequential.release();
}

JpegDecoder::JpegDecoder(JpegWay way, const jpeg::Kernels& kernels)
    : state_(std::make_unique<State>(kernels)), way_(way) {}
// Without vectors of 256 bits jpeg/ is slower than libjpeg.
JpegDecoder::JpegDecoder() : JpegDecoder(JpegWay::own_else_libjpeg, *jpeg::kernels(jpeg::Instructions::best)) {
  if (jpeg::kernels(jpeg::Instructions::best) == &jpeg::kPortableKernels) way_ = JpegWay::libjpeg;
}
JpegDecoder::~JpegDecoder() = default;

Outcome JpegDecoder::open(const std::uint8_t* data, std::size_t size, std::uint64_t max_pixels) noexcept {
  State& s = *state_;
  width_ = height_ = 0;
  if (s.opened) s.close();

  JpegSegments header;
  if (Outcome outcome = read_segments(data, size, header); !outcome.ok()) return outcome;
  if (!has_end(data, size, header.scan)) return Outcome::to_python("JPEG: no end of image marker");

  if (!s.renew()) return Outcome::to_python(s.errors.reason);
  s.source.next_input_byte = data;
  s.source.bytes_in_buffer = size;
  s.opened = true;
  if (!s.guarded(State::read_header)) {
    s.close();
    return Outcome::to_python(s.errors.reason);
  }
  if (Outcome outcome = s.check_frame(); !outcome.ok()) {
    s.close();
    return outcome;
  }
  // Pillow decodes to the end of the image, and refuses a file of one scan for most markers that come before that. libjpeg
  // reads all of several scans before it gives the first row.
  end_ = 0;
  if (jpeg_has_multiple_scans(&s.cinfo) == FALSE) {
    end_ = end_of_scan(data, size, header.end) + 2;
    if (end_ > size || data[end_ - 1] != 0xD9) {
      s.close();
      return Outcome::to_python("JPEG: another marker than the end of the image behind its scan");
    }
  }
  // JPEG_MAX_DIMENSION is 65,500: the product fits.
  if (max_pixels != 0 && std::uint64_t{s.cinfo.image_width} * s.cinfo.image_height > max_pixels) {
    s.close();
    return Outcome::to_python("over Pillow's MAX_IMAGE_PIXELS");
  }
  width_ = static_cast<int>(s.cinfo.image_width);
  height_ = static_cast<int>(s.cinfo.image_height);
  mcu_height_ = DCTSIZE * s.cinfo.max_v_samp_factor;
  head_ = header.end;
  data_ = data;
  size_ = size;
  return Outcome::success();
}

// By jpeg/. False: by libjpeg, from the start, which also says what is wrong with damaged data.
bool JpegDecoder::decode_own(Box box, jpeg::RowStates* states, bool luma) noexcept {
  State& s = *state_;
  if (way_ == JpegWay::libjpeg || s.source.next_input_byte != data_ + head_) return false;
  s.crop_x = static_cast<JDIMENSION>(box.x0);
  s.crop_width = static_cast<JDIMENSION>(box.width());
  return s.reserve(kOwnRowOffset) && s.sequential.decode(s.cinfo, {data_ + head_, size_ - head_}, box, s.first_row,
                                            static_cast<std::ptrdiff_t>(s.stride), states, luma);
}

Outcome JpegDecoder::decode(Box box, const std::uint8_t*& pixels, std::ptrdiff_t& row_stride,
                            jpeg::RowStates* states, bool luma) noexcept {
  State& s = *state_;
  if (!s.opened) return Outcome::to_python("JPEG: no image is open");
  if (box.x0 < 0 || box.y0 < 0 || box.x0 >= box.x1 || box.y0 >= box.y1 || box.x1 > width_ || box.y1 > height_)
    return Outcome::to_python("box outside the image");

  s.box = box;
  bool done = decode_own(box, states, luma);
  if (!done && way_ != JpegWay::own && !luma) {
    s.plan_columns();
    if (!s.reserve(kRowOffset)) {
      s.close();
      return Outcome::to_python("out of memory");
    }
    done = s.guarded(State::read_rows);
  } else if (!done) {
    s.errors.reason = "JPEG: left to libjpeg";
  }
  s.close();  // leaves the rows below the box undecoded
  if (!done) return Outcome::to_python(s.errors.reason);
  pixels = s.first_row + std::size_t{3} * (static_cast<std::size_t>(box.x0) - s.crop_x);
  row_stride = static_cast<std::ptrdiff_t>(s.stride);
  return Outcome::success();
}

}  // namespace penstock
