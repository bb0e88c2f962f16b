#include "tensor/pickle_reader.h"

#include "files/little_endian.h"
#include "tensor/pickle_names.h"
#include "tensor/zip_directory.h"

namespace penstock {
namespace {

using namespace opcode;

constexpr const char* kNotTensor = "the pickle is not that of one dense tensor";

// Reads opcodes in order; every read checks what is left first.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : left_(bytes) {}

  bool done() const { return left_.empty(); }
  char peek() const { return left_.empty() ? '\0' : left_.front(); }

  bool take(char opcode) {
    if (left_.empty() || left_.front() != opcode) return false;
    left_.remove_prefix(1);
    return true;
  }

  // Storing the value on top in the memo: nothing in an accepted pickle reads it back.
  bool skip_put() {
    const std::size_t bytes = peek() == kPut ? 2 : peek() == kLongPut ? 5 : 0;
    if (bytes > left_.size()) return false;
    left_.remove_prefix(bytes);
    return true;
  }

  // "module\nname" of a GLOBAL.
  bool global(std::string_view& name) {
    if (!take(kGlobal)) return false;
    const std::size_t first = left_.find('\n');
    if (first == left_.npos) return false;
    const std::size_t second = left_.find('\n', first + 1);
    if (second == left_.npos) return false;
    name = left_.substr(0, second);
    left_.remove_prefix(second + 1);
    return skip_put();
  }

  bool text(std::string_view& value) {
    if (!take(kUnicode) || left_.size() < 4) return false;
    const std::size_t length = le32(data());
    left_.remove_prefix(4);
    if (length > left_.size()) return false;
    value = left_.substr(0, length);
    left_.remove_prefix(length);
    return printable_ascii(value) && skip_put();
  }

  // A whole number that is not negative.
  bool number(std::int64_t& value) {
    if (left_.size() < 2) return false;
    std::size_t bytes = 0, skip = 1;
    switch (left_.front()) {
      case kInt1: bytes = 1; break;
      case kInt2: bytes = 2; break;
      case kInt4: bytes = 4; break;
      case kLong1: bytes = data()[1]; skip = 2; break;
      default: return false;
    }
    if (bytes > 8 || left_.size() < skip + bytes) return false;
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < bytes; ++i) bits |= std::uint64_t{data()[skip + i]} << (8 * i);
    // INT4 and LONG1 are signed: the top bit of the last byte is the sign.
    if (bytes >= 1 && (skip == 2 || bytes == 4) && (data()[skip + bytes - 1] & 0x80) != 0) return false;
    value = static_cast<std::int64_t>(bits);
    left_.remove_prefix(skip + bytes);
    return true;
  }

 private:
  const std::uint8_t* data() const { return reinterpret_cast<const std::uint8_t*>(left_.data()); }

  std::string_view left_;
};

// A tuple of numbers; `count` is kMaxDims + 1 when there are more than kMaxDims.
bool numbers(Cursor& in, std::array<std::int64_t, kMaxDims>& values, int& count) {
  count = 0;
  if (in.take(kEmptyTuple)) return in.skip_put();
  const bool mark = in.take(kMark);
  std::int64_t value = 0;
  while (in.number(value)) {
    if (count < kMaxDims) values[count] = value;
    if (count <= kMaxDims) ++count;
  }
  if (mark) return in.take(kTuple) && in.skip_put();
  if (count < 1 || count > 3 || !in.take(static_cast<char>(kTuple1 + count - 1))) return false;
  return in.skip_put();
}

// What a pickle that is not one dense tensor holds, as far as its first opcode tells.
const char* what_else(char opcode) {
  switch (opcode) {
    case kEmptyDict: return "a dict, not one dense tensor";
    case kEmptyList: return "a list, not one dense tensor";
    case kMark: case kEmptyTuple: return "a tuple, not one dense tensor";
    case kUnicode: case kInt1: case kInt2: case kInt4: case kLong1: case kTrue: case kFalse: case kNone: case kFloat:
      return "a plain Python value, not one dense tensor";
    default: return kNotTensor;
  }
}

const char* what_else(std::string_view global) {
  if (global.starts_with("collections\n")) return "a dict, not one dense tensor";
  if (global.starts_with("torch._utils\n_rebuild_parameter")) return "a torch.nn.Parameter, not one dense tensor";
  const char* const known = special_tensor(global);
  return known ? known : kNotTensor;
}

// persid('storage', class, key, location, number of elements)
const char* read_storage(Cursor& in, bool typed, PickledTensor& tensor) {
  std::string_view tag, storage_class, location;
  std::int64_t elements = 0;
  if (!in.take(kMark) || !in.text(tag) || tag != "storage" || !in.global(storage_class)) return kNotTensor;
  std::uint64_t item = 1;
  if (typed) {
    if (!storage_dtype(storage_class, tensor.spec.dtype)) return "a storage class that is not read natively";
    item = info(tensor.spec.dtype).size;
  } else if (storage_class != "torch.storage\nUntypedStorage") {
    return "a storage class that is not read natively";
  }
  // The location is a device's name; the bytes are the same wherever the tensor was.
  if (!in.text(tensor.key) || !in.text(location) || !in.number(elements)) return kNotTensor;
  if (!in.take(kTuple) || !in.skip_put() || !in.take(kPersistentId) || !in.skip_put()) return kNotTensor;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(elements), item, &tensor.storage_bytes))
    return "a storage of more than 64 bits";
  return nullptr;
}

// size, stride
const char* read_geometry(Cursor& in, PickledTensor& tensor) {
  int sizes = 0, strides = 0;
  if (!in.number(tensor.storage_offset) || !numbers(in, tensor.spec.shape, sizes) ||
      !numbers(in, tensor.stride, strides) || sizes != strides)
    return kNotTensor;
  if (sizes > kMaxDims) return "more than 8 dimensions";
  tensor.spec.ndim = static_cast<std::uint8_t>(sizes);
  return nullptr;
}

}  // namespace

const char* read_tensor_pickle(std::string_view bytes, PickledTensor& tensor) {
  Cursor in(bytes);
  if (!in.take(kProto) || !in.take('\x02')) return "pickle protocol is not 2";
  if (in.peek() != kGlobal) return what_else(in.peek());
  std::string_view name;
  if (!in.global(name)) return kNotTensor;
  const bool typed = name == "torch._utils\n_rebuild_tensor_v2";
  if (!typed && name != "torch._utils\n_rebuild_tensor_v3") return what_else(name);
  if (!in.take(kMark)) return kNotTensor;
  if (const char* reason = read_storage(in, typed, tensor)) return reason;
  if (const char* reason = read_geometry(in, tensor)) return reason;
  if (in.take(kTrue)) return "a tensor that requires grad";
  // backward_hooks: collections.OrderedDict()
  if (!in.take(kFalse) || !in.global(name) || name != "collections\nOrderedDict" || !in.take(kEmptyTuple) ||
      !in.take(kReduce) || !in.skip_put())
    return kNotTensor;
  if (!typed) {
    if (!in.global(name)) return kNotTensor;
    if (!named_dtype(name, tensor.spec.dtype)) return "a dtype that is not read natively";
  }
  if (in.take(kEmptyDict) && (!in.skip_put() || in.peek() != kTuple))
    return "tensor metadata (a conjugate or negative view)";
  if (!in.take(kTuple) || !in.skip_put() || !in.take(kReduce) || !in.skip_put() || !in.take(kStop) || !in.done())
    return kNotTensor;
  return nullptr;
}

}  // namespace penstock
