#include "tensor/pickled_objects.h"

#include <algorithm>
#include <bit>

#include "files/little_endian.h"
#include "tensor/pickle_names.h"

namespace penstock {
namespace {

using namespace opcode;
using Kind = ObjectKind;

constexpr const char* kDamaged = "a pickle that torch.save does not write";
constexpr std::size_t kMaxObjects = 1u << 16;  // an object takes 64 bytes and may be one of the pickle; hashes recurse
constexpr const char* kUnknown = "it holds an object that is not read natively";
constexpr const char* kNotDense = "it holds a tensor in a form that is not read natively";

// The functions that a pickle may call, by their names in it.
enum class Function : std::uint8_t { tensor_v2, tensor_v3, parameter, ordered_dict, set, complex_number, encode, size };

struct NamedFunction {
  std::string_view name;
  Function function;
};

constexpr std::array<NamedFunction, 8> kFunctions{{
    {"torch._utils\n_rebuild_tensor_v2", Function::tensor_v2}, {"torch._utils\n_rebuild_tensor_v3", Function::tensor_v3},
    {"torch._utils\n_rebuild_parameter", Function::parameter}, {"collections\nOrderedDict", Function::ordered_dict},
    {"__builtin__\nset", Function::set}, {"__builtin__\ncomplex", Function::complex_number},
    {"_codecs\nencode", Function::encode}, {"torch\nSize", Function::size},
}};

}  // namespace

// Runs the opcodes of one pickle; every read checks what is left first. Its functions return nullptr or a reason.
class PickledObjects::Machine {
 public:
  Machine(PickledObjects& out, std::string_view pickle, const StorageRecords& records)
      : out_(out), left_(pickle), records_(records) {}

  const char* run() {
    if (left_.size() < 2 || left_[0] != kProto || left_[1] != '\x02') return "pickle protocol is not 2";
    left_.remove_prefix(2);
    while (!left_.empty()) {
      const char code = left_.front();
      left_.remove_prefix(1);
      if (code == kStop) {
        if (!left_.empty() || !out_.marks_.empty() || out_.stack_.size() != 1) return kDamaged;
        out_.result_ = out_.stack_.front();
        return nullptr;
      }
      if (const char* reason = step(code)) return reason;
      if (out_.objects_.size() == kMaxObjects) return "it holds more than 65,535 objects";
    }
    return kDamaged;
  }

 private:
  const char* step(char code) {
    switch (code) {
      case kNone: return push(Kind::none);
      case kTrue: return push(Kind::yes);
      case kFalse: return push(Kind::no);
      case kInt1: return integer(1);
      case kInt2: return integer(2);
      case kInt4: return integer(4);
      case kLong1: return long_integer();
      case kFloat: return real();
      case kUnicode: return text();
      case kEmptyTuple: return tuple(0);
      case kTuple1: return tuple(1);
      case kTuple2: return tuple(2);
      case kTuple3: return tuple(3);
      case kTuple: return marked_tuple();
      case kEmptyList: return push(Kind::list);
      case kEmptyDict: return push(Kind::dict);
      case kMark: out_.marks_.push_back(static_cast<std::uint32_t>(out_.stack_.size())); return nullptr;
      case kAppend: return depth() < 2 ? kDamaged : change(1, Kind::list);
      case kSetItem: return depth() < 3 ? kDamaged : change(2, Kind::dict);
      case kAppends: return marked_change(Kind::list);
      case kSetItems: return marked_change(Kind::dict);
      case kPut: return put(1);
      case kLongPut: return put(4);
      case kGet: return get(1);
      case kLongGet: return get(4);
      case kGlobal: return global();
      case kReduce: return reduce();
      case kPersistentId: return storage();
      default: return kUnknown;
    }
  }

  // --- the stack ---

  // Objects above the last mark.
  std::size_t depth() const { return out_.stack_.size() - (out_.marks_.empty() ? 0 : out_.marks_.back()); }

  PickledObject& make(Kind kind) {
    out_.stack_.push_back(static_cast<std::uint32_t>(out_.objects_.size()));
    PickledObject& object = out_.objects_.emplace_back();
    object.kind = kind;
    return object;
  }
  const char* push(Kind kind) {
    make(kind);
    return nullptr;
  }
  std::uint32_t pop() {
    const std::uint32_t top = out_.stack_.back();
    out_.stack_.pop_back();
    return top;
  }
  // Takes the top `count` objects off the stack, as children; returns where they begin.
  std::uint32_t take(std::size_t count) {
    const std::uint32_t first = static_cast<std::uint32_t>(out_.children_.size());
    out_.children_.insert(out_.children_.end(), out_.stack_.end() - static_cast<std::ptrdiff_t>(count), out_.stack_.end());
    out_.stack_.resize(out_.stack_.size() - count);
    return first;
  }
  bool pop_mark(std::size_t& count) {
    if (out_.marks_.empty()) return false;
    count = depth();
    out_.marks_.pop_back();
    return true;
  }

  const std::uint8_t* data() const { return reinterpret_cast<const std::uint8_t*>(left_.data()); }
  bool number(std::size_t bytes, std::uint32_t& value) {
    if (left_.size() < bytes) return false;
    value = bytes == 1 ? data()[0] : bytes == 2 ? le16(data()) : le32(data());
    left_.remove_prefix(bytes);
    return true;
  }

  const char* put(std::size_t bytes) {
    std::uint32_t index = 0;
    // An index is not more than one above the last, as the pickler counts.
    if (!number(bytes, index) || depth() == 0 || index > out_.memo_.size()) return kDamaged;
    if (index == out_.memo_.size()) out_.memo_.push_back(0);
    out_.memo_[index] = out_.stack_.back();
    return nullptr;
  }
  const char* get(std::size_t bytes) {
    std::uint32_t index = 0;
    if (!number(bytes, index) || index >= out_.memo_.size()) return kDamaged;
    out_.stack_.push_back(out_.memo_[index]);
    return nullptr;
  }

  // --- plain values ---

  const char* integer(std::size_t bytes) {
    std::uint32_t value = 0;
    if (!number(bytes, value)) return kDamaged;
    make(Kind::integer).integer = bytes == 4 ? static_cast<std::int32_t>(value) : static_cast<std::int64_t>(value);
    return nullptr;
  }
  const char* long_integer() {
    std::uint32_t bytes = 0;
    if (!number(1, bytes) || left_.size() < bytes) return kDamaged;
    PickledObject& object = make(bytes > 8 ? Kind::big_integer : Kind::integer);
    object.text = left_.substr(0, bytes);
    std::uint64_t bits = bytes > 0 && (data()[bytes - 1] & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = std::min<std::size_t>(bytes, 8); i-- > 0;) bits = bits << 8 | data()[i];
    object.integer = static_cast<std::int64_t>(bits);
    left_.remove_prefix(bytes);
    return nullptr;
  }
  const char* real() {
    if (left_.size() < 8) return kDamaged;
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 8; ++i) bits = bits << 8 | data()[i];
    make(Kind::real).real = std::bit_cast<double>(bits);
    left_.remove_prefix(8);
    return nullptr;
  }
  const char* text() {
    std::uint32_t bytes = 0;
    if (!number(4, bytes) || left_.size() < bytes) return kDamaged;
    make(Kind::text).text = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return nullptr;
  }

  // --- containers ---

  const char* tuple(std::size_t count) {
    if (depth() < count) return kDamaged;
    const std::uint32_t first = take(count);
    PickledObject& object = make(Kind::tuple);
    object.first = first;
    object.count = static_cast<std::uint32_t>(count);
    return nullptr;
  }
  const char* marked_tuple() {
    std::size_t count = 0;
    return pop_mark(count) ? tuple(count) : kDamaged;
  }
  const char* marked_change(Kind kind) {
    std::size_t count = 0;
    return pop_mark(count) && depth() >= count + 1 ? change(count, kind) : kDamaged;
  }
  // The top `count` objects go into the container under them.
  const char* change(std::size_t count, Kind kind) {
    if (kind == Kind::dict && count % 2 != 0) return kDamaged;
    const std::uint32_t first = take(count), target = out_.stack_.back();
    PickledObject& object = out_.objects_[target];
    const bool fits = object.kind == kind || (kind == Kind::dict && object.kind == Kind::ordered_dict);
    if (!fits || object.frozen) return kDamaged;
    out_.changes_.push_back({target, first, static_cast<std::uint32_t>(count),
                             static_cast<std::uint32_t>(out_.objects_.size()), object.change});
    object.change = static_cast<std::uint32_t>(out_.changes_.size() - 1);
    return nullptr;
  }

  // --- names and what they make ---

  const char* global() {
    const std::size_t first = left_.find('\n');
    const std::size_t second = first == left_.npos ? first : left_.find('\n', first + 1);
    if (second == left_.npos) return kDamaged;
    const std::string_view name = left_.substr(0, second);
    left_.remove_prefix(second + 1);
    DType dtype = DType::u8;
    if (storage_dtype(name, dtype) || name == "torch.storage\nUntypedStorage") {
      PickledObject& object = make(Kind::storage_class);
      object.dtype = dtype;
      object.name = name == "torch.storage\nUntypedStorage";
      return nullptr;
    }
    if (named_dtype(name, dtype)) {
      make(Kind::dtype).dtype = dtype;
      return nullptr;
    }
    for (const NamedFunction& known : kFunctions)
      if (known.name == name) {
        make(Kind::function).name = static_cast<std::uint8_t>(known.function);
        return nullptr;
      }
    if (const char* const special = special_tensor(name)) return special;
    out_.detail_.assign(name);
    out_.detail_[first] = '.';
    return kUnknown;
  }

  const char* reduce() {
    if (depth() < 2) return kDamaged;
    const PickledObject arguments = out_.objects_[pop()], called = out_.objects_[pop()];
    if (called.kind != Kind::function || arguments.kind != Kind::tuple) return kUnknown;
    switch (static_cast<Function>(called.name)) {
      case Function::tensor_v2: return tensor(arguments, 6);
      case Function::tensor_v3: return tensor(arguments, 7);
      case Function::parameter: return parameter(arguments);
      case Function::ordered_dict: return arguments.count == 0 ? push(Kind::ordered_dict) : kUnknown;
      case Function::set: return wrapped(Kind::set, Kind::list, arguments);
      case Function::size: return wrapped(Kind::size, Kind::tuple, arguments);
      case Function::complex_number: return complex_number(arguments);
      case Function::encode: return encoded(arguments);
    }
    return kUnknown;
  }

  const PickledObject& part(const PickledObject& of, std::uint32_t i) const {
    return out_.objects_[out_.children_[of.first + i]];
  }

  const char* wrapped(Kind kind, Kind of, const PickledObject& arguments) {
    if (arguments.count != 1 || part(arguments, 0).kind != of) return kUnknown;
    PickledObject& object = make(kind);
    object.first = arguments.first;
    object.count = 1;
    return nullptr;
  }
  const char* complex_number(const PickledObject& arguments) {
    if (arguments.count != 2 || part(arguments, 0).kind != Kind::real || part(arguments, 1).kind != Kind::real)
      return kUnknown;
    PickledObject& object = make(Kind::complex_number);
    object.real = part(arguments, 0).real;
    object.imaginary = part(arguments, 1).real;
    return nullptr;
  }
  const char* encoded(const PickledObject& arguments) {
    if (arguments.count != 2 || part(arguments, 0).kind != Kind::text || part(arguments, 1).kind != Kind::text ||
        part(arguments, 1).text != "latin1")
      return kUnknown;
    const std::string_view text = part(arguments, 0).text;  // before make(), which moves the objects
    make(Kind::bytes).text = text;
    return nullptr;
  }
  const char* parameter(const PickledObject& arguments) {
    if (arguments.count != 3 || part(arguments, 0).kind != Kind::tensor || !is_bool(part(arguments, 1)) ||
        !hooks(arguments, 2))
      return kNotDense;
    PickledObject& object = make(Kind::parameter);
    object.first = arguments.first;
    object.count = 3;
    return nullptr;
  }

  // --- tensors ---

  static bool is_bool(const PickledObject& object) { return object.kind == Kind::yes || object.kind == Kind::no; }

  bool hooks(const PickledObject& arguments, std::uint32_t i) {
    PickledObject& object = out_.objects_[out_.children_[arguments.first + i]];
    if (object.kind != Kind::ordered_dict || object.change != kNoObject) return false;
    object.frozen = true;
    return true;
  }
  // A tuple of whole numbers that are not negative.
  bool numbers(const PickledObject& object, std::array<std::int64_t, kMaxDims>& values) const {
    if (object.kind != Kind::tuple || object.count > kMaxDims) return false;
    for (std::uint32_t i = 0; i < object.count; ++i) {
      const PickledObject& number = part(object, i);
      if (number.kind != Kind::integer || number.integer < 0) return false;
      values[i] = number.integer;
    }
    return true;
  }

  // storage, offset, size, stride, requires_grad, hooks; version 3: and dtype
  const char* tensor(const PickledObject& arguments, std::uint32_t count) {
    if (arguments.count != count) return "it holds a conjugate or negative view";
    const PickledObject& storage = part(arguments, 0);
    const PickledObject& offset = part(arguments, 1);
    PickledView view;
    if (storage.kind != Kind::storage || offset.kind != Kind::integer || offset.integer < 0) return kNotDense;
    const PickledStorage& bytes = out_.storages_[storage.first];
    const bool typed = count == 6;
    if (bytes.untyped == typed || (!typed && part(arguments, 6).kind != Kind::dtype)) return kNotDense;
    view.spec.dtype = typed ? bytes.dtype : part(arguments, 6).dtype;
    if (!numbers(part(arguments, 2), view.spec.shape) || !numbers(part(arguments, 3), view.stride) ||
        part(arguments, 2).count != part(arguments, 3).count || !is_bool(part(arguments, 4)) || !hooks(arguments, 5))
      return kNotDense;
    view.spec.ndim = static_cast<std::uint8_t>(part(arguments, 2).count);
    view.storage_offset = offset.integer;
    view.storage = storage.first;
    view.hooks = out_.children_[arguments.first + 5];
    view.requires_grad = part(arguments, 4).kind == Kind::yes;
    // torch refuses to rebuild a version 3 tensor that requires grad: its error is the answer.
    if (view.requires_grad && (!typed || !may_require_grad(view.spec.dtype))) return kNotDense;
    if (const char* reason = check_view(view, bytes.range.length)) return reason;
    make(Kind::tensor).first = static_cast<std::uint32_t>(out_.tensors_.size());
    out_.tensors_.push_back(view);
    return nullptr;
  }

  // persid('storage', class, key, location, number of elements)
  const char* storage() {
    if (depth() == 0) return kDamaged;
    const PickledObject id = out_.objects_[pop()];
    if (id.kind != Kind::tuple || id.count != 5 || part(id, 0).kind != Kind::text || part(id, 0).text != "storage")
      return kDamaged;
    const PickledObject &kind = part(id, 1), &key = part(id, 2), &location = part(id, 3), &elements = part(id, 4);
    if (kind.kind != Kind::storage_class) return "it holds a storage of a class that is not read natively";
    if (key.kind != Kind::text || location.kind != Kind::text || elements.kind != Kind::integer || elements.integer < 0 ||
        !printable_ascii(location.text))
      return kDamaged;
    const StorageRecord* const at = find_record(records_, key.text);
    if (at == nullptr) return "zip: no record of a tensor's storage";
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(elements.integer), info(kind.dtype).size, &bytes) ||
        bytes != at->range.length)
      return "a storage's record is not as long as the pickle says";
    std::uint32_t& found = out_.found_[static_cast<std::size_t>(at - records_.data())];
    if (found == kNoObject) {
      found = static_cast<std::uint32_t>(out_.storages_.size());
      out_.storages_.push_back({kind.dtype, kind.name == 1, false, location.text == "cpu", 0, at->range, at->crc});
    } else if (bytes == 0) {
      return "it holds an empty storage twice";  // one storage or two, by the release of torch
    } else if (out_.storages_[found].dtype != kind.dtype || out_.storages_[found].untyped != (kind.name == 1)) {
      return "it holds a storage under two element types";
    }
    make(Kind::storage).first = found;
    return nullptr;
  }

  PickledObjects& out_;
  std::string_view left_;
  const StorageRecords& records_;
};

const char* PickledObjects::run(std::string_view pickle, const StorageRecords& records) {
  return Machine(*this, pickle, records).run();
}

}  // namespace penstock
