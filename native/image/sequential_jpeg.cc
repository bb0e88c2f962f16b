#include "image/sequential_jpeg.h"

#include <algorithm>
#include <cstdio>  // jpeglib.h needs FILE and size_t

#include <jpeglib.h>

namespace penstock {
namespace {

[[nodiscard]] const jpeg::HuffmanTable* copy_table(const JHUFF_TBL* from, jpeg::HuffmanTable& to) {
  if (from == nullptr) return nullptr;
  std::copy_n(from->bits, to.counts.size(), to.counts.begin());
  std::copy_n(from->huffval, to.symbols.size(), to.symbols.begin());
  return &to;
}

}  // namespace

bool SequentialJpeg::read(const jpeg_decompress_struct& header) noexcept {
  // The first scan must be all there is, and say so: libjpeg warns of other spectral selections.
  if (header.progressive_mode || header.arith_code || header.data_precision != 8) return false;
  if (header.comps_in_scan != header.num_components || (header.num_components != 1 && header.num_components != 3))
    return false;
  if (header.Ss != 0 || header.Se != DCTSIZE2 - 1 || header.Ah != 0 || header.Al != 0) return false;

  jpeg::Scan& scan = image_.scan;
  scan.width = static_cast<int>(header.image_width);
  scan.height = static_cast<int>(header.image_height);
  scan.component_count = header.num_components;
  scan.restart_interval = static_cast<int>(header.restart_interval);
  for (int i = 0; i < header.num_components; ++i) {
    const jpeg_component_info& component = header.comp_info[i];
    if (header.cur_comp_info[i] != &component) return false;  // the scan has them in another order
    const int dc = component.dc_tbl_no, ac = component.ac_tbl_no, quantisation = component.quant_tbl_no;
    if (dc < 0 || dc >= NUM_HUFF_TBLS || ac < 0 || ac >= NUM_HUFF_TBLS) return false;
    if (quantisation < 0 || quantisation >= NUM_QUANT_TBLS || header.quant_tbl_ptrs[quantisation] == nullptr) return false;
    jpeg::ScanComponent& to = scan.components[static_cast<std::size_t>(i)];
    to.h = component.h_samp_factor;
    to.v = component.v_samp_factor;
    to.dc = copy_table(header.dc_huff_tbl_ptrs[dc], dc_[static_cast<std::size_t>(dc)]);
    to.ac = copy_table(header.ac_huff_tbl_ptrs[ac], ac_[static_cast<std::size_t>(ac)]);
    std::copy_n(header.quant_tbl_ptrs[quantisation]->quantval, DCTSIZE2,
                image_.quantisation[static_cast<std::size_t>(i)].begin());
  }
  image_.colours = header.num_components == 1              ? jpeg::Colours::grey
                   : header.jpeg_color_space == JCS_YCbCr ? jpeg::Colours::ycc
                                                          : jpeg::Colours::rgb;
  return true;
}

bool SequentialJpeg::decode(const jpeg_decompress_struct& header, std::span<const std::uint8_t> data, Box box,
                            std::uint8_t* rgb, std::ptrdiff_t stride, jpeg::RowStates* states, bool luma) noexcept {
  image_.scan.data = data;
  if (!read(header) || (luma && image_.colours != jpeg::Colours::ycc)) return false;
  if (luma) image_.colours = jpeg::Colours::luma;
  return decoder_.begin(image_) &&
         decoder_.decode({box.x0, box.y0, box.x1, box.y1}, rgb, stride, states);
}

}  // namespace penstock
