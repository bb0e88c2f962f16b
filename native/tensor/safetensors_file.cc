#include "tensor/safetensors_file.h"

#include <sys/stat.h>

#include <array>
#include <bit>
#include <new>

#include "files/little_endian.h"
#include "files/read_at.h"
#include "tensor/zip_directory.h"

namespace penstock {
namespace {

constexpr const char* kUnusual = "safetensors: header not as its library writes it";
constexpr std::size_t kFirstRead = 4096, kMaxHeader = 1u << 20, kMaxTensors = 256;

struct Name {
  std::string_view name;
  DType dtype;
};
constexpr std::array<Name, 13> kNames{{
    {"F32", DType::f32}, {"I64", DType::i64}, {"U8", DType::u8}, {"F16", DType::f16}, {"BF16", DType::bf16},
    {"F64", DType::f64}, {"I32", DType::i32}, {"I16", DType::i16}, {"I8", DType::i8}, {"BOOL", DType::boolean},
    {"U16", DType::u16}, {"U32", DType::u32}, {"U64", DType::u64},
}};

// JSON without spaces and escapes.
class Json {
 public:
  explicit Json(std::string_view text) : left_(text) {}

  bool take(std::string_view token) {
    if (!left_.starts_with(token)) return false;
    left_.remove_prefix(token.size());
    return true;
  }
  bool text(std::string_view& value) {
    if (!take("\"")) return false;
    const std::size_t end = left_.find_first_of("\"\\");
    if (end == left_.npos || left_[end] != '"') return false;
    value = left_.substr(0, end);
    left_.remove_prefix(end + 1);
    return printable_ascii(value);
  }
  bool number(std::int64_t& value) {
    std::size_t digits = 0;
    value = 0;
    for (; digits < left_.size() && left_[digits] >= '0' && left_[digits] <= '9'; ++digits)
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, left_[digits] - '0', &value))
        return false;
    if (digits == 0 || (digits > 1 && left_[0] == '0')) return false;
    left_.remove_prefix(digits);
    return true;
  }
  bool only_spaces() const { return left_.find_first_not_of(' ') == left_.npos; }

 private:
  std::string_view left_;
};

bool skip_metadata(Json& in) {
  std::string_view text;
  if (!in.take("{")) return false;
  if (in.take("}")) return true;
  do {
    if (!in.text(text) || !in.take(":") || !in.text(text)) return false;
  } while (in.take(","));
  return in.take("}");
}

const char* read_tensor(Json& in, SafeTensor& tensor) {
  std::string_view dtype;
  std::int64_t begin = 0, end = 0, bytes = 0;
  if (!in.take("{\"dtype\":") || !in.text(dtype) || !in.take(",\"shape\":[")) return kUnusual;
  const Name* known = nullptr;
  for (const Name& one : kNames)
    if (one.name == dtype) known = &one;
  if (known == nullptr) return "safetensors: a dtype that is not read natively";
  tensor.spec.dtype = known->dtype;
  if (!in.take("]")) do {
    if (tensor.spec.ndim == kMaxDims) return "more than 8 dimensions";
    if (!in.number(tensor.spec.shape[tensor.spec.ndim++])) return kUnusual;
  } while (in.take(",") || !in.take("]"));
  if (!in.take(",\"data_offsets\":[") || !in.number(begin) || !in.take(",") || !in.number(end) || !in.take("]}"))
    return kUnusual;
  if (!checked_bytes(tensor.spec, bytes) || begin > end || bytes != end - begin) return "safetensors: bad offsets";
  if (bytes == 0) return "safetensors: a tensor without elements";
  tensor.begin = static_cast<std::uint64_t>(begin);
  tensor.end = static_cast<std::uint64_t>(end);
  return nullptr;
}

}  // namespace

const char* SafetensorsFile::read(const char* path) noexcept {
  try {
    return read_all(path);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

const char* SafetensorsFile::read_all(const char* path) {
  if constexpr (std::endian::native != std::endian::little) return "a big-endian machine";
  tensors_.clear();
  const UniqueFd file = open_for_loading(path);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "the file cannot be opened";
  const std::uint64_t size = static_cast<std::uint64_t>(status.st_size);
  if (size > kMaxWhole) return kTooLarge;
  std::uint64_t done = 0;
  header_.resize(kFirstRead);
  auto* bytes = reinterpret_cast<std::uint8_t*>(header_.data());
  if (!read_at(file.get(), bytes, kFirstRead, 0, done)) return "the file cannot be read";
  if (done < 8) return "safetensors: truncated";
  const std::uint64_t length = le64(bytes);
  if (length > kMaxHeader) return "safetensors: header over 1 MiB";
  if (length > size - 8) return "safetensors: truncated";
  if (8 + length > done) {
    header_.resize(8 + length);
    bytes = reinterpret_cast<std::uint8_t*>(header_.data());
    if (!read_at(file.get(), bytes, 8 + length, 0, done) || done != 8 + length) return "the file cannot be read";
  }
  if (const char* reason = parse({header_.data() + 8, length}, size - 8 - length)) return reason;
  for (SafeTensor& tensor : tensors_) {
    SavedStorage& storage = tensor.storage;
    storage.bytes = tensor.end - tensor.begin;
    if (!storage.block.allocate(storage.bytes)) return kNoMemory;
    if (!read_at(file.get(), storage.block.bytes(), storage.bytes, 8 + length + tensor.begin, done) || done != storage.bytes)
      return "the file cannot be read";
  }
  return nullptr;
}

// `bytes`: behind the header.
const char* SafetensorsFile::parse(std::string_view header, std::uint64_t bytes) {
  Json in(header);
  std::uint64_t end = 0;
  if (!in.take("{")) return kUnusual;
  do {
    SafeTensor tensor;
    if (!in.text(tensor.name) || !in.take(":")) return kUnusual;
    if (tensor.name == "__metadata__") {
      if (end != 0 || !skip_metadata(in)) return kUnusual;
      continue;
    }
    if (const char* reason = read_tensor(in, tensor)) return reason;
    if (tensor.begin != end) return "safetensors: tensors with space between them, or in another order";
    end = tensor.end;
    for (const SafeTensor& other : tensors_)
      if (other.name == tensor.name) return kUnusual;
    if (tensors_.size() == kMaxTensors) return "safetensors: more than 256 tensors";
    tensors_.push_back(std::move(tensor));
  } while (in.take(","));
  if (!in.take("}") || !in.only_spaces()) return kUnusual;
  return end == bytes ? nullptr : "safetensors: truncated, or longer";
}

}  // namespace penstock
