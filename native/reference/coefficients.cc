#include "reference/coefficients.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs FILE and size_t

#include <jpeglib.h>

namespace penstock::reference {

struct LibjpegFile::State {
  jpeg_error_mgr errors{};  // first, so that a callback finds this object
  std::jmp_buf jump;
  jpeg_decompress_struct cinfo{};
  std::span<const std::uint8_t> data;
  std::array<jpeg::HuffmanTable, 2 * NUM_HUFF_TBLS> tables{};  // DC, then AC
  jvirt_barray_ptr* arrays = nullptr;
  // The row of blocks that is copied next.
  int component = 0;
  JDIMENSION row = 0;
  JBLOCKARRAY rows = nullptr;

  // Runs a step of libjpeg's, in which no object with a destructor may live. False: it warned or failed.
  bool guarded(void (*step)(State&)) {
    if (setjmp(jump) != 0) return false;
    step(*this);
    return true;
  }
  [[noreturn]] static void fail(j_common_ptr info) {
    std::longjmp(reinterpret_cast<State*>(info->err)->jump, 1);
  }

  static void read_header(State& s) {
    jpeg_create_decompress(&s.cinfo);
    s.cinfo.mem->max_memory_to_use = 1L << 30;
    jpeg_mem_src(&s.cinfo, s.data.data(), static_cast<unsigned long>(s.data.size()));
    jpeg_read_header(&s.cinfo, TRUE);
  }
  static void read_coefficients(State& s) { s.arrays = jpeg_read_coefficients(&s.cinfo); }
  static void access_row(State& s) {
    const auto info = reinterpret_cast<j_common_ptr>(&s.cinfo);
    s.rows = (*s.cinfo.mem->access_virt_barray)(info, s.arrays[s.component], s.row, 1, FALSE);
  }
  static void finish(State& s) { jpeg_finish_decompress(&s.cinfo); }
};

LibjpegFile::LibjpegFile(std::span<const std::uint8_t> data) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.data = data;
  s.cinfo.err = jpeg_std_error(&s.errors);
  s.errors.error_exit = [](j_common_ptr info) { State::fail(info); };
  s.errors.emit_message = [](j_common_ptr info, int level) {
    if (level < 0) State::fail(info);  // a warning
  };
  s.errors.output_message = [](j_common_ptr) {};
}

LibjpegFile::~LibjpegFile() { jpeg_destroy_decompress(&state_->cinfo); }

bool LibjpegFile::open(std::uint64_t most_pixels) {
  State& s = *state_;
  return s.guarded(State::read_header) && std::uint64_t{s.cinfo.image_width} * s.cinfo.image_height <= most_pixels;
}

std::optional<jpeg::Scan> LibjpegFile::scan() {
  State& s = *state_;
  const jpeg_decompress_struct& info = s.cinfo;
  const bool sequential = !info.progressive_mode && !info.arith_code && info.data_precision == 8;
  if (!sequential || info.num_components > 3 || info.comps_in_scan != info.num_components) return std::nullopt;
  if (info.Ss != 0 || info.Se != DCTSIZE2 - 1 || info.Ah != 0 || info.Al != 0) return std::nullopt;  // libjpeg warns

  jpeg::Scan scan;
  scan.width = static_cast<int>(info.image_width);
  scan.height = static_cast<int>(info.image_height);
  scan.component_count = info.num_components;
  scan.restart_interval = static_cast<int>(info.restart_interval);
  scan.data = {info.src->next_input_byte, info.src->bytes_in_buffer};
  const auto table = [&](JHUFF_TBL* const* from, int number, int place) -> const jpeg::HuffmanTable* {
    if (number < 0 || number >= NUM_HUFF_TBLS || from[number] == nullptr) return nullptr;
    jpeg::HuffmanTable& to = s.tables[static_cast<std::size_t>(place + number)];
    std::copy(std::begin(from[number]->bits), std::end(from[number]->bits), to.counts.begin());
    std::copy(std::begin(from[number]->huffval), std::end(from[number]->huffval), to.symbols.begin());
    return &to;
  };
  for (int i = 0; i < info.num_components; ++i) {
    const jpeg_component_info& component = *info.cur_comp_info[i];
    const int quantisation = component.quant_tbl_no;
    if (component.component_index != i || quantisation < 0 || quantisation >= NUM_QUANT_TBLS) return std::nullopt;
    if (info.quant_tbl_ptrs[quantisation] == nullptr) return std::nullopt;  // libjpeg fails
    scan.components[static_cast<std::size_t>(i)] = {component.h_samp_factor, component.v_samp_factor,
                                                    table(info.dc_huff_tbl_ptrs, component.dc_tbl_no, 0),
                                                    table(info.ac_huff_tbl_ptrs, component.ac_tbl_no, NUM_HUFF_TBLS)};
  }
  return scan;
}

std::optional<Coefficients> LibjpegFile::coefficients() {
  State& s = *state_;
  if (!s.guarded(State::read_coefficients)) return std::nullopt;
  Coefficients all;
  for (s.component = 0; s.component < s.cinfo.num_components; ++s.component) {
    const jpeg_component_info& component = s.cinfo.comp_info[s.component];
    const auto round_up = [](JDIMENSION n, int to) { return (static_cast<int>(n) + to - 1) / to * to; };
    Blocks blocks{round_up(component.height_in_blocks, component.v_samp_factor),
                  round_up(component.width_in_blocks, component.h_samp_factor), {}};
    for (int y = 0; y < blocks.rows; ++y) {
      s.row = static_cast<JDIMENSION>(y);
      if (!s.guarded(State::access_row)) return std::nullopt;
      const JCOEF* const first = &s.rows[0][0][0];
      blocks.values.insert(blocks.values.end(), first, first + std::ptrdiff_t{blocks.columns} * DCTSIZE2);
    }
    all.push_back(std::move(blocks));
  }
  if (!s.guarded(State::finish)) return std::nullopt;
  return all;
}

std::optional<Coefficients> decode_scan(jpeg::EntropyDecoder& decoder, const jpeg::Scan& scan, const Way& way,
                                        jpeg::RowStates* states) {
  if (!decoder.begin(scan)) return std::nullopt;
  const int per_row = scan.mcus_per_row(), rows_left = scan.mcu_rows() - way.first_row;
  if (rows_left <= 0) return std::nullopt;
  if (way.from ? !decoder.seek(*way.from, way.first_row) : !decoder.skip(way.first_row * per_row)) return std::nullopt;

  Coefficients all;
  for (int i = 0; i < scan.component_count; ++i) {
    const jpeg::ScanComponent& component = scan.components[static_cast<std::size_t>(i)];
    Blocks blocks{rows_left * component.v, per_row * component.h, {}};
    blocks.values.resize(static_cast<std::size_t>(blocks.rows) * static_cast<std::size_t>(blocks.columns) * 64);
    all.push_back(std::move(blocks));
  }
  const int run = way.run > 0 ? way.run : per_row;
  for (int y = 0; y < rows_left; ++y) {
    std::array<jpeg::CoefficientRow, 3> rows;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::ptrdiff_t row = std::ptrdiff_t{all[i].columns} * 64;
      rows[i] = {all[i].values.data() + y * scan.components[i].v * row, row};
    }
    if (states != nullptr) states->known.push_back(decoder.state().value_or(jpeg::RowState{}));
    for (int x = 0; x < per_row; x += run)
      if (!decoder.decode(std::min(run, per_row - x), rows, x)) return std::nullopt;
  }
  if (!decoder.finish()) return std::nullopt;
  return all;
}

}  // namespace penstock::reference
