// torch.load and safetensors.torch.load_file: the objects of a file made in Python, their storages filled natively.
//
// Threads: any number at once, each with its own SavedFile; Python's lock is released while a file is read and parsed.
// Memory: the bytes of a storage belong to the storage, which frees them; they are not of torch's allocator, and torch
// cannot resize them, as it cannot those of torch.load.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/exchange_api.h"
#include "bind/gil_released.h"
#include "bind/own.h"
#include "files/read_at.h"
#include "tensor/saved_file.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock {
namespace {

constexpr std::size_t kLongestName = 200;  // bytes of a name that a refusal tells

// DLManagedTensor: what the functions that take capsules expect.
struct CapsuledTensor {
  nb::dlpack::dltensor tensor;
  void* context;
  void (*deleter)(CapsuledTensor* self);
};

// What is noted in front of a storage's bytes.
struct Lent {
  ManagedTensor managed;
  CapsuledTensor capsuled;
  std::array<std::int64_t, kMaxDims> shape, stride;
};
static_assert(sizeof(Lent) <= Block::kFront);

std::optional<nb::dlpack::dtype> dlpack_type(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto type = [&](Code code) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(info(dtype).size * 8), 1};
  };
  switch (dtype) {
    case DType::u8: case DType::u16: case DType::u32: case DType::u64: return type(Code::UInt);
    case DType::i8: case DType::i16: case DType::i32: case DType::i64: return type(Code::Int);
    case DType::f16: case DType::f32: case DType::f64: return type(Code::Float);
    case DType::bf16: return type(Code::Bfloat);
    case DType::boolean: return type(Code::Bool);
    case DType::c64: case DType::c128: return type(Code::Complex);
    default: return std::nullopt;
  }
}

// What Python and torch make objects with.
struct Makers {
  const ExchangeApi* api;   // nullptr: torch is older than 2.10
  nb::object from_capsule;  // makes a tensor of a DLPack capsule, where there is no api
  std::vector<nb::object> dtypes;  // in the order of kDTypes; None: this torch lacks it
  nb::object view, parameter, size, ordered_dict, increment_version, refused;
};

// A tensor of all bytes of a storage, which from then on owns them.
nb::object whole(const Makers& makers, SavedStorage& storage, const std::array<std::int64_t, kMaxDims>& shape,
                 const std::array<std::int64_t, kMaxDims>& stride, int ndim, nb::dlpack::dtype type) {
  Lent* const lent = new (storage.block.front()) Lent{};
  std::uint8_t* const bytes = storage.block.bytes() + storage.offset;
  lent->shape = shape;
  lent->stride = stride;
  const nb::dlpack::dltensor tensor{bytes, {nb::device::cpu::value, 0}, ndim, type, lent->shape.data(), lent->stride.data(), 0};
  void* const block = storage.block.release();
  // Where this fails nothing says whether torch has freed the memory: it is then lost rather than freed twice.
  if (makers.api == nullptr) {
    lent->capsuled = {tensor, block, [](CapsuledTensor* self) { std::free(self->context); }};  // what `self` is part of, too
    return makers.from_capsule(nb::capsule(&lent->capsuled, "dltensor"));
  }
  lent->managed.major = kExchangeMajor;
  lent->managed.context = block;
  lent->managed.deleter = [](ManagedTensor* self) { std::free(self->context); };
  lent->managed.tensor = tensor;
  void* made = nullptr;
  if (makers.api->to_object(&lent->managed, &made) != 0) throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(made));
}

// Makes the objects of one file, in their order. Python errors are thrown as nb::python_error.
class Making {
 public:
  Making(const Makers& makers, SavedFile& file)
      : makers_(makers), file_(file), objects_(file.objects()), made_(objects_.objects().size()),
        bases_(objects_.storages().size()) {}

  nb::object result() {
    std::size_t change = 0;
    const auto& changes = objects_.changes();
    for (std::size_t i = 0; i < objects_.objects().size(); ++i) {
      for (; change < changes.size() && changes[change].after <= i; ++change) apply(changes[change]);
      const PickledObject& object = objects_.objects()[i];
      if (object.wanted) made_[i] = make(object);
    }
    for (; change < changes.size(); ++change) apply(changes[change]);
    count_versions();
    return made_[objects_.result()];
  }

 private:
  static nb::object owned(PyObject* object) {
    if (object == nullptr) throw nb::python_error();
    return nb::steal(object);
  }
  static void check(int result) {
    if (result != 0) throw nb::python_error();
  }

  const nb::object& child(std::uint32_t i) const { return made_[objects_.children()[i]]; }

  nb::object make(const PickledObject& object) {
    switch (object.kind) {
      case ObjectKind::yes: return nb::borrow(Py_True);
      case ObjectKind::no: return nb::borrow(Py_False);
      case ObjectKind::integer: return owned(PyLong_FromLongLong(object.integer));
      case ObjectKind::big_integer:
        return nb::handle(reinterpret_cast<PyObject*>(&PyLong_Type))
            .attr("from_bytes")(nb::bytes(object.text.data(), object.text.size()), "little", "signed"_a = true);
      case ObjectKind::real: return owned(PyFloat_FromDouble(object.real));
      case ObjectKind::complex_number: return owned(PyComplex_FromDoubles(object.real, object.imaginary));
      case ObjectKind::text: return text(object.text);
      case ObjectKind::bytes: return owned(PyUnicode_AsLatin1String(text(object.text).ptr()));
      case ObjectKind::dtype: return dtype(object.dtype);
      case ObjectKind::tuple: return tuple(object);
      case ObjectKind::size: return makers_.size(child(object.first));
      case ObjectKind::list: return owned(PyList_New(0));
      case ObjectKind::set: return owned(PySet_New(child(object.first).ptr()));
      case ObjectKind::dict: return owned(PyDict_New());
      case ObjectKind::ordered_dict: return makers_.ordered_dict();
      case ObjectKind::tensor: return tensor(objects_.tensors()[object.first]);
      case ObjectKind::parameter:
        count_versions();
        return makers_.parameter(child(object.first), child(object.first + 1), child(object.first + 2));
      default: return nb::none();
    }
  }

  const nb::object& dtype(DType number) const {
    const nb::object& dtype = makers_.dtypes[static_cast<std::size_t>(number)];
    if (!dtype.is_none()) return dtype;
    PyErr_SetString(PyExc_TypeError, "a dtype that this torch lacks");
    throw nb::python_error();
  }
  static nb::object text(std::string_view utf8) {
    return owned(PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "surrogatepass"));
  }
  nb::object tuple(const PickledObject& object) {
    nb::object made = owned(PyTuple_New(object.count));
    for (std::uint32_t i = 0; i < object.count; ++i)
      check(PyTuple_SetItem(made.ptr(), i, nb::object(child(object.first + i)).release().ptr()));
    return made;
  }

  void apply(const PickledChange& change) {
    const PickledObject& target = objects_.objects()[change.target];
    if (!target.wanted) return;
    PyObject* const container = made_[change.target].ptr();
    const bool plain = target.kind == ObjectKind::dict;
    for (std::uint32_t i = change.first; i < change.first + change.count; ++i) {
      if (target.kind == ObjectKind::list) {
        check(PyList_Append(container, child(i).ptr()));
        continue;
      }
      PyObject *const key = child(i).ptr(), *const value = child(i + 1).ptr();
      check(plain ? PyDict_SetItem(container, key, value) : PyObject_SetItem(container, key, value));
      ++i;
    }
  }

  // --- tensors ---

  nb::object tensor(const PickledView& view) {
    const PickledStorage& storage = objects_.storages()[view.storage];
    const auto type = dlpack_type(view.spec.dtype);
    nb::object made;
    if (view.whole && storage.users == 1 && type) {
      made = whole(makers_, file_.storages()[view.storage], view.spec.shape, view.stride, view.spec.ndim, *type);
      uncounted_.append(made);
    } else {
      nb::object& base = bases_[view.storage];
      if (!base.is_valid()) {
        SavedStorage& bytes = file_.storages()[view.storage];
        base = whole(makers_, bytes, {static_cast<std::int64_t>(bytes.bytes)}, {1}, 1, *dlpack_type(DType::u8));
      }
      made = makers_.view(base, dtype(view.spec.dtype), view.storage_offset,
                          numbers(view.spec.shape, view.spec.ndim), numbers(view.stride, view.spec.ndim));
    }
    if (view.requires_grad) made.attr("requires_grad") = true;
    made.attr("_backward_hooks") = made_[view.hooks];
    return made;
  }

  static nb::object numbers(const std::array<std::int64_t, kMaxDims>& values, int count) {
    nb::object made = owned(PyTuple_New(count));
    for (int d = 0; d < count; ++d) check(PyTuple_SetItem(made.ptr(), d, owned(PyLong_FromLongLong(values[d])).release().ptr()));
    return made;
  }

  // A tensor of torch.load was written once.
  void count_versions() {
    if (uncounted_.size() == 0) return;
    makers_.increment_version(uncounted_);
    uncounted_ = nb::list();
  }

  const Makers& makers_;
  SavedFile& file_;
  const PickledObjects& objects_;
  std::vector<nb::object> made_;
  std::vector<nb::object> bases_;
  nb::list uncounted_;
};

class TorchLoader {
 public:
  TorchLoader(nb::object api, std::vector<nb::object> dtypes, nb::object view, nb::object parameter, nb::object size,
              nb::object ordered_dict, nb::object increment_version, nb::object refused)
      : makers_{nb::isinstance<nb::capsule>(api) ? exchange_api(nb::cast<nb::capsule>(api)) : nullptr, api, std::move(dtypes), std::move(view), std::move(parameter), std::move(size),
                std::move(ordered_dict), std::move(increment_version), std::move(refused)} {
    if (makers_.api != nullptr && makers_.api->to_object == nullptr) throw nb::value_error("a DLPack without imports");
    if (makers_.dtypes.size() != kDTypes.size()) throw nb::value_error("one dtype for each element type");
  }

  nb::object path(nb::handle path, bool anywhere) const {
    const FilePath file_path(path);
    if (file_path.name() == nullptr) return makers_.refused(FilePath::kNone);
    return make(anywhere, [&](SavedFile& file) { return file.read(file_path.name()); }).first;
  }
  nb::tuple descriptor(int fd, std::uint64_t start, bool anywhere) const {
    return pair(make(anywhere, [&](SavedFile& file) { return file.read(fd, start); }), start);
  }
  nb::tuple bytes(const nb::bytes& bytes, std::uint64_t start, bool anywhere) const {
    const std::span<const std::uint8_t> all(static_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    const auto rest = all.subspan(std::min<std::uint64_t>(start, all.size()));
    return pair(make(anywhere, [&](SavedFile& file) { return file.read(rest); }), start);
  }

  // A refusal or the tensors that lie one behind another in an open file, from `start` to its end; each (number of the
  // dtype, shape, begin, end).
  nb::object parts(int fd, std::uint64_t start, const nb::list& asked) const {
    struct stat status {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return makers_.refused("not a regular file");
    std::vector<std::pair<TensorSpec, SavedStorage>> tensors;
    std::int64_t at = 0;
    for (const nb::handle one : asked) {
      const auto [dtype, shape, begin, end] =
          nb::cast<std::tuple<std::size_t, std::vector<std::int64_t>, std::int64_t, std::int64_t>>(one);
      if (dtype >= kDTypes.size() || shape.size() > kMaxDims) return makers_.refused("more than 8 dimensions");
      auto& [spec, storage] = tensors.emplace_back();
      spec.dtype = static_cast<DType>(dtype);
      spec.ndim = static_cast<std::uint8_t>(shape.size());
      std::copy(shape.begin(), shape.end(), spec.shape.begin());
      std::int64_t bytes = 0;
      if (!dlpack_type(spec.dtype) || !checked_bytes(spec, bytes) || bytes == 0 || begin != at || end < begin ||
          end - begin != bytes)
        return makers_.refused("tensors that are empty, or lie in another order");
      storage.bytes = static_cast<std::size_t>(bytes);
      at = end;
    }
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size > kMaxWhole) return makers_.refused(kTooLarge);
    if (start > size || size - start != static_cast<std::uint64_t>(at)) return makers_.refused("truncated, or longer");
    {
      const GilReleased released;
      for (auto& [spec, storage] : tensors) {
        std::uint64_t done = 0;
        if (storage.block.allocate(storage.bytes) &&
            read_at(fd, storage.block.bytes(), storage.bytes, start, done) && done == storage.bytes)
          start += done;
        else
          storage.bytes = 0;
      }
    }
    nb::list made;
    for (auto& [spec, storage] : tensors) {
      if (storage.bytes == 0) return makers_.refused("the file cannot be read");
      std::array<std::int64_t, kMaxDims> stride{};
      std::int64_t apart = 1;
      for (int d = spec.ndim - 1; d >= 0; apart *= spec.shape[d--]) stride[d] = apart;
      made.append(whole(makers_, storage, spec.shape, stride, spec.ndim, *dlpack_type(spec.dtype)));
    }
    return made;
  }

 private:
  static nb::tuple pair(const std::pair<nb::object, std::uint64_t>& made, std::uint64_t start) {
    return nb::make_tuple(made.first, start + made.second);
  }

  // The object of a file or a refusal, and where torch.load would leave the file's position.
  template <class Read>
  std::pair<nb::object, std::uint64_t> make(bool anywhere, const Read& read) const {
    const Own<SavedFile> own;
    SavedFile& file = *own;
    const char* reason = nullptr;
    {
      const GilReleased released;
      reason = read(file);
    }
    if (reason != nullptr) return {refuse(reason, file.objects().detail()), 0};
    if (!anywhere)
      for (const PickledStorage& storage : file.objects().storages())
        if (!storage.cpu) return {refuse("it holds a tensor of another device", {}), 0};
    try {
      return {Making(makers_, file).result(), file.end()};
    } catch (nb::python_error& error) {  // torch.load has the same error, or a better one
      if (!error.matches(PyExc_Exception)) throw;  // Ctrl-C
      return {refuse("its objects cannot be made", {}), 0};
    }
  }

  nb::object refuse(const char* reason, const std::string& detail) const {
    if (detail.empty()) return makers_.refused(reason);
    std::string text("it holds ");
    text += detail.substr(0, kLongestName);
    nb::object message = nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
    if (!message.is_valid()) throw nb::python_error();
    return makers_.refused(message);
  }

  Makers makers_;
};

}  // namespace

void bind_torch_load(nb::module_& m) {
  nb::class_<TorchLoader>(m, "TorchLoader")
      .def(nb::init<nb::object, std::vector<nb::object>, nb::object, nb::object, nb::object, nb::object, nb::object,
                    nb::object>(),
           "api"_a, "dtypes"_a, "view"_a, "parameter"_a, "size"_a, "ordered_dict"_a, "increment_version"_a, "refused"_a)
      .def("path", &TorchLoader::path, "path"_a, "anywhere"_a)
      .def("descriptor", &TorchLoader::descriptor, "fd"_a, "start"_a, "anywhere"_a)
      .def("bytes", &TorchLoader::bytes, "bytes"_a, "start"_a, "anywhere"_a)
      .def("parts", &TorchLoader::parts, "fd"_a, "start"_a, "asked"_a);
}

}  // namespace penstock
