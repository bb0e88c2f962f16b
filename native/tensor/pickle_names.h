// The opcodes of a pickle, and the names in it of element types.
//
// Format: Python's pickletools, protocol 2; the names are those that torch.save writes.
// Threads: pure functions. Memory: nothing is owned or allocated.
#pragma once

#include <array>
#include <string_view>

#include "tensor/dtype.h"

namespace penstock {

namespace opcode {

inline constexpr char kProto = '\x80', kStop = '.', kMark = '(', kGlobal = 'c', kReduce = 'R', kPersistentId = 'Q';
inline constexpr char kNone = 'N', kTrue = '\x88', kFalse = '\x89', kInt1 = 'K', kInt2 = 'M', kInt4 = 'J',
                      kLong1 = '\x8a', kFloat = 'G', kUnicode = 'X';
inline constexpr char kEmptyTuple = ')', kTuple = 't', kTuple1 = '\x85', kTuple2 = '\x86', kTuple3 = '\x87',
                      kEmptyList = ']', kAppend = 'a', kAppends = 'e', kEmptyDict = '}', kSetItem = 's',
                      kSetItems = 'u';
inline constexpr char kPut = 'q', kLongPut = 'r', kGet = 'h', kLongGet = 'j';

}  // namespace opcode

struct StorageClass {
  std::string_view name;
  DType dtype;
};

inline constexpr std::array<StorageClass, 12> kStorageClasses{{
    {"FloatStorage", DType::f32}, {"ByteStorage", DType::u8}, {"HalfStorage", DType::f16},
    {"BFloat16Storage", DType::bf16}, {"LongStorage", DType::i64}, {"IntStorage", DType::i32},
    {"ShortStorage", DType::i16}, {"CharStorage", DType::i8}, {"BoolStorage", DType::boolean},
    {"DoubleStorage", DType::f64}, {"ComplexFloatStorage", DType::c64}, {"ComplexDoubleStorage", DType::c128},
}};

inline constexpr std::string_view kTorchModule = "torch\n";

// The element type of a storage class: of "torch\nFloatStorage". False: no such class.
inline bool storage_dtype(std::string_view global, DType& dtype) {
  if (!global.starts_with(kTorchModule)) return false;
  for (const StorageClass& known : kStorageClasses)
    if (known.name == global.substr(kTorchModule.size())) {
      dtype = known.dtype;
      return true;
    }
  return false;
}

// The element type that a name means: "torch\nfloat32". False: none that is known.
inline bool named_dtype(std::string_view global, DType& dtype) {
  if (!global.starts_with(kTorchModule)) return false;
  for (std::size_t i = 0; i < kDTypes.size(); ++i)
    if (kDTypes[i].torch_name == global.substr(kTorchModule.size())) {
      dtype = static_cast<DType>(i);
      return true;
    }
  return false;
}

// What a function of torch's makes that is more than a view of dense elements, or nullptr.
inline const char* special_tensor(std::string_view global) {
  if (global == "torch._utils\n_rebuild_parameter_with_state") return "a torch.nn.Parameter with attributes";
  if (global == "torch._utils\n_rebuild_sparse_tensor") return "a sparse tensor";
  if (global == "torch._utils\n_rebuild_qtensor") return "a quantized tensor";
  if (global == "torch._utils\n_rebuild_nested_tensor") return "a nested tensor";
  if (global.starts_with("torch._utils\n_rebuild_meta_tensor")) return "a meta tensor, without data";
  if (global == "torch._tensor\n_rebuild_from_type_v2") return "a tensor subclass or a tensor with attributes";
  return nullptr;
}

}  // namespace penstock
