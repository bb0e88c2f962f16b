#include "tensor/npy_header.h"

#include <array>

#include "files/little_endian.h"

namespace penstock {
namespace {

constexpr const char* kUnusual = "npy: header not as numpy writes it";

struct Descr {
  std::string_view name;
  DType dtype;
};

constexpr std::array<Descr, 14> kDescrs{{
    {"<f4", DType::f32}, {"|u1", DType::u8}, {"<i8", DType::i64}, {"<f8", DType::f64}, {"<f2", DType::f16},
    {"<i4", DType::i32}, {"<i2", DType::i16}, {"|i1", DType::i8}, {"|b1", DType::boolean}, {"<u2", DType::u16},
    {"<u4", DType::u32}, {"<u8", DType::u64}, {"<c8", DType::c64}, {"<c16", DType::c128},
}};

class Cursor {
 public:
  explicit Cursor(std::string_view text) : left_(text) {}

  bool take(std::string_view token) {
    if (!left_.starts_with(token)) return false;
    left_.remove_prefix(token.size());
    return true;
  }
  void skip_spaces() {
    while (!left_.empty() && left_.front() == ' ') left_.remove_prefix(1);
  }
  bool done() const { return left_.empty(); }

  // 'text' without escapes.
  bool quoted(std::string_view& value) {
    if (!take("'")) return false;
    const std::size_t end = left_.find_first_of("'\\");
    if (end == left_.npos || left_[end] != '\'') return false;
    value = left_.substr(0, end);
    left_.remove_prefix(end + 1);
    return true;
  }

  bool number(std::int64_t& value) {
    std::size_t digits = 0;
    value = 0;
    for (; digits < left_.size() && left_[digits] >= '0' && left_[digits] <= '9'; ++digits)
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, left_[digits] - '0', &value))
        return false;
    if (digits == 0 || (digits > 1 && left_[0] == '0')) return false;  // Python has no 007
    left_.remove_prefix(digits);
    return true;
  }

 private:
  std::string_view left_;
};

// (), (3,) or (3, 4)
const char* read_shape(Cursor& in, TensorSpec& spec) {
  if (!in.take("(")) return kUnusual;
  int count = 0;
  bool comma = true;  // may a number follow?
  for (; !in.take(")"); ++count) {
    if (count == kMaxDims) return "more than 8 dimensions";
    if (!comma || !in.number(spec.shape[count])) return kUnusual;
    comma = in.take(",");
    in.skip_spaces();
  }
  if (count == 1 && !comma) return kUnusual;  // (3) is a number
  spec.ndim = static_cast<std::uint8_t>(count);
  return nullptr;
}

const char* read_descr(Cursor& in, DType& dtype) {
  std::string_view descr;
  if (!in.quoted(descr)) return "npy: a structured dtype";
  for (const Descr& known : kDescrs)
    if (known.name == descr) {
      dtype = known.dtype;
      return nullptr;
    }
  if (descr.starts_with('>')) return "npy: big-endian";
  return "npy: a dtype that is not read natively";
}

const char* read_item(Cursor& in, unsigned& seen, NpyHeader& header) {
  std::string_view key;
  if (!in.quoted(key) || !in.take(":")) return kUnusual;
  in.skip_spaces();
  unsigned bit = 0;
  const char* reason = nullptr;
  if (key == "descr") {
    bit = 1;
    reason = read_descr(in, header.spec.dtype);
  } else if (key == "fortran_order") {
    bit = 2;
    header.fortran_order = in.take("True");
    if (!header.fortran_order && !in.take("False")) reason = kUnusual;
  } else if (key == "shape") {
    bit = 4;
    reason = read_shape(in, header.spec);
  }
  if (reason) return reason;
  if (bit == 0 || (seen & bit) != 0) return kUnusual;
  seen |= bit;
  return nullptr;
}

const std::uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const std::uint8_t*>(text.data()); }

}  // namespace

std::size_t npy_data_offset(std::string_view start) {
  if (start.size() < 12 || start[7] != 0) return 0;
  const std::uint8_t* p = bytes_of(start);
  std::size_t fixed = 12, length = 0;
  if (p[6] == 1) {
    fixed = 10;
    length = le16(p + 8);
  } else if (p[6] == 2 || p[6] == 3) {
    length = le32(p + 8);
  } else {
    return 0;
  }
  return length > kMaxNpyHeader ? 0 : fixed + length;
}

const char* read_npy_header(std::string_view head, NpyHeader& header) {
  header = {};
  header.data_offset = npy_data_offset(head);
  if (header.data_offset == 0) return "npy: unknown version or header over 10,000 bytes";
  if (header.data_offset > head.size()) return "npy: truncated";
  const std::size_t fixed = head[6] == 1 ? 10 : 12;
  Cursor in(head.substr(fixed, header.data_offset - fixed));
  unsigned seen = 0;
  if (!in.take("{")) return kUnusual;
  while (!in.take("}")) {
    if (const char* reason = read_item(in, seen, header)) return reason;
    const bool comma = in.take(",");
    in.skip_spaces();
    if (!comma && !in.take("}")) return kUnusual;
    if (!comma) break;
  }
  if (seen != 7) return kUnusual;
  in.skip_spaces();
  if (!in.take("\n") || !in.done()) return kUnusual;
  return nullptr;
}

}  // namespace penstock
