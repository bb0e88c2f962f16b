#include "tensor/tensor_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <string_view>

#include "files/crc.h"
#include "tensor/npy_header.h"

namespace penstock {
namespace {

void set_contiguous(TensorLayout& layout) {
  std::int64_t expected = 1;
  layout.contiguous = true;
  if (layout.reach == 0) return;
  for (int d = layout.spec.ndim - 1; d >= 0; --d) {
    if (layout.spec.shape[d] == 1) continue;
    if (layout.stride[d] != expected) layout.contiguous = false;
    expected *= layout.spec.shape[d];  // fits: checked_bytes holds
  }
}

// What a pickle holds whose result is not a tensor.
const char* what_else(ObjectKind kind) {
  switch (kind) {
    case ObjectKind::dict: case ObjectKind::ordered_dict: return "a dict, not one dense tensor";
    case ObjectKind::list: return "a list, not one dense tensor";
    case ObjectKind::tuple: return "a tuple, not one dense tensor";
    case ObjectKind::parameter: return "a torch.nn.Parameter, not one dense tensor";
    default: return "a plain Python value, not one dense tensor";
  }
}

const char* parse_npy(SplitFile& file, TensorLayout& layout) {
  const char* reason = nullptr;
  if (file.size() < 12) return "npy: truncated";
  const std::string_view start = contents(file, {0, 12}, reason);
  if (reason) return reason;
  const std::uint64_t header_bytes = npy_data_offset(start);
  if (header_bytes > file.size()) return "npy: truncated";
  const std::string_view head = contents(file, {0, std::max<std::uint64_t>(header_bytes, 12)}, reason);
  if (reason) return reason;
  NpyHeader header;
  if ((reason = read_npy_header(head, header))) return reason;
  layout.spec = header.spec;
  std::int64_t total = 0;
  if (!checked_bytes(header.spec, total)) return "a tensor of more than 63 bits";
  if (static_cast<std::uint64_t>(total) > file.size() - header.data_offset) return "npy: truncated";
  const int last = header.spec.ndim - 1;
  std::int64_t stride = 1;  // of the next dimension, from the fastest; an empty one counts as 1
  for (int i = 0; i <= last; ++i) {
    const int d = header.fortran_order ? i : last - i;
    layout.stride[d] = stride;
    if (__builtin_mul_overflow(stride, std::max<std::int64_t>(header.spec.shape[d], 1), &stride))
      return "a tensor of more than 63 bits";
  }
  layout.offset = header.data_offset;
  layout.reach = static_cast<std::uint64_t>(total);
  set_contiguous(layout);
  return nullptr;
}

struct Dim {
  std::int64_t size;
  std::int64_t stride;  // bytes in the source
};

// Drops dimensions of extent 1 and joins neighbours that are one run in memory.
int coalesce(const TensorLayout& layout, std::array<Dim, kMaxDims>& dims) {
  const std::int64_t item = static_cast<std::int64_t>(info(layout.spec.dtype).size);
  int count = 0;
  for (int d = 0; d < layout.spec.ndim; ++d) {
    if (layout.spec.shape[d] == 1) continue;  // its stride may be any number
    const Dim dim{layout.spec.shape[d], layout.stride[d] * item};  // fits: lies within reach
    if (count > 0 && dims[count - 1].stride == dim.stride * dim.size) {
      dims[count - 1] = {dims[count - 1].size * dim.size, dim.stride};
    } else {
      dims[count++] = dim;
    }
  }
  return count;
}

template <std::size_t kItem>
void copy_line(const std::uint8_t* from, const Dim& dim, std::uint8_t* to) {
  for (std::int64_t i = 0; i < dim.size; ++i) std::memcpy(to + i * std::int64_t{kItem}, from + i * dim.stride, kItem);
}

void copy_line(std::size_t item, const std::uint8_t* from, const Dim& dim, std::uint8_t* to) {
  if (dim.stride == static_cast<std::int64_t>(item)) {
    std::memcpy(to, from, static_cast<std::size_t>(dim.size) * item);
    return;
  }
  switch (item) {
    case 1: return copy_line<1>(from, dim, to);
    case 2: return copy_line<2>(from, dim, to);
    case 4: return copy_line<4>(from, dim, to);
    case 8: return copy_line<8>(from, dim, to);
    default: return copy_line<16>(from, dim, to);
  }
}

}  // namespace

const char* TensorParser::parse_torch(SplitFile& file, TensorLayout& layout) {
  TorchArchive archive;
  records_.clear();
  if (const char* reason = read_zip_directory(file, archive, records_)) return reason;
  if (records_.empty()) return "zip: no storage: not one dense tensor";
  if (records_.size() > 1) return "several storages: not one dense tensor";
  if (const char* reason = check_notes(file, archive)) return reason;
  const char* reason = nullptr;
  const std::string_view pickle = contents(file, archive.pickle, reason);
  if (reason) return reason;
  if (archive.pickle_crc != 0 &&
      crc32(0, reinterpret_cast<const std::uint8_t*>(pickle.data()), pickle.size()) != archive.pickle_crc)
    return "data.pkl does not match its CRC-32";
  if ((reason = objects_.read(pickle, records_))) return reason;
  const PickledObject& result = objects_.objects()[objects_.result()];
  if (result.kind != ObjectKind::tensor) return what_else(result.kind);
  const PickledView& view = objects_.tensors()[result.first];
  if (view.requires_grad) return "a tensor that requires grad";
  const PickledStorage& storage = objects_.storages()[view.storage];
  layout.spec = view.spec;
  layout.stride = view.stride;
  layout.reach = view.reach;
  layout.storage = storage.range;
  layout.crc = storage.crc;
  layout.offset = storage.range.offset;
  if (view.reach != 0) layout.offset += static_cast<std::uint64_t>(view.storage_offset) * info(view.spec.dtype).size;
  set_contiguous(layout);
  return nullptr;
}

const char* TensorParser::parse(SplitFile& file, TensorLayout& layout) noexcept {
  if constexpr (std::endian::native != std::endian::little) return "a big-endian machine";
  layout = {};
  if (file.size() == 0) return "empty file";
  constexpr std::string_view kZipMagic{"PK\x03\x04", 4};
  const char* reason = nullptr;
  const std::string_view magic = contents(file, {0, std::min<std::uint64_t>(file.size(), kNpyMagic.size())}, reason);
  if (reason) return reason;
  try {
    if (magic.starts_with(kZipMagic)) return parse_torch(file, layout);
  } catch (const std::bad_alloc&) {
    return "not enough memory";
  }
  if (magic == kNpyMagic) return parse_npy(file, layout);
  if (magic.starts_with("\x80")) return "a pickle or a file of torch before 1.6 (no zip archive)";
  return "neither a torch.save archive nor .npy";
}

void copy_strided(const std::uint8_t* from, const TensorLayout& layout, std::uint8_t* to) noexcept {
  if (layout.reach == 0) return;
  const std::size_t item = info(layout.spec.dtype).size;
  std::array<Dim, kMaxDims> dims;
  const int count = coalesce(layout, dims);
  if (count == 0) {
    std::memcpy(to, from, item);
    return;
  }
  const Dim line = dims[count - 1];
  const std::size_t line_bytes = static_cast<std::size_t>(line.size) * item;
  std::array<std::int64_t, kMaxDims> index{};
  for (;;) {
    copy_line(item, from, line, to);
    to += line_bytes;
    int d = count - 2;
    for (; d >= 0; --d) {  // the next line: an odometer over the outer dimensions
      from += dims[d].stride;
      if (++index[d] < dims[d].size) break;
      from -= dims[d].stride * dims[d].size;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace penstock
