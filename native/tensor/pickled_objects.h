// The pickle of a torch.save file as a list of objects to be made, read without making or executing anything.
//
// Format: the protocol 2 pickles that torch.save writes for tensors, containers and plain Python values, as
// torch.load(weights_only=True) reads them (torch/_weights_only_unpickler.py). The names in a pickle are compared with
// the known ones and never looked up; a pickle that holds anything else is left to torch.load.
// Threads: a PickledObjects belongs to one thread at a time. Memory: it owns its lists and reuses them from pickle to
// pickle; texts point into the pickle's bytes, which outlive its use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/pickled_view.h"
#include "tensor/zip_directory.h"

namespace penstock {

enum class ObjectKind : std::uint8_t {
  none, yes, no, integer, big_integer, real, complex_number, text, bytes, dtype,
  tuple, size, list, set, dict, ordered_dict, tensor, parameter,
  storage, function, storage_class,  // only within what makes another object
};

inline constexpr std::uint32_t kNoObject = 0xffffffff;

// One object. Which fields count depends on its kind.
struct PickledObject {
  ObjectKind kind = ObjectKind::none;
  bool wanted = false;           // the result holds it
  bool frozen = false;           // of a dict: it has the place of a tensor's hooks and stays empty
  DType dtype = DType::u8;       // of a dtype; of a storage class
  std::uint8_t name = 0;         // of a function; of a storage class: 1 where it is the one without an element type
  std::uint32_t first = 0;       // tuple, size, set, parameter: its parts are children()[first, first + count)
  std::uint32_t count = 0;       //   tensor, storage: `first` is its index in tensors(), storages()
  std::uint32_t change = kNoObject;  // of a container: the last of its changes()
  std::int64_t integer = 0;
  double real = 0, imaginary = 0;
  std::string_view text;         // UTF-8 of a text; of bytes: UTF-8 of the text whose Latin-1 form they are; a big
                                 // integer's bytes, little-endian, in two's complement
};

// What is put into a list (values) or a dict (keys and values in turn): children()[first, first + count).
struct PickledChange {
  std::uint32_t target = 0;
  std::uint32_t first = 0, count = 0;
  std::uint32_t after = 0;                // it comes before the making of objects()[after] and after those before it
  std::uint32_t previous = kNoObject;     // change of the same target
};

class PickledObjects {
 public:
  // nullptr, or why the pickle is left to torch.load (a string with static storage duration); detail() may say more.
  // `records` are sorted (sort_records). Throws std::bad_alloc.
  [[nodiscard]] const char* read(std::string_view pickle, const StorageRecords& records);

  // Forgets the last pickle.
  void clear() noexcept;

  // The name of what is not read natively: "PIL.Image.Image".
  [[nodiscard]] const std::string& detail() const { return detail_; }

  [[nodiscard]] std::uint32_t result() const { return result_; }
  // In the order in which they are made; so are changes().
  [[nodiscard]] const std::vector<PickledObject>& objects() const { return objects_; }
  [[nodiscard]] const std::vector<PickledChange>& changes() const { return changes_; }
  [[nodiscard]] const std::vector<std::uint32_t>& children() const { return children_; }
  [[nodiscard]] const std::vector<PickledView>& tensors() const { return tensors_; }
  // In the order in which torch.load reads them.
  [[nodiscard]] const std::vector<PickledStorage>& storages() const { return storages_; }

 private:
  class Machine;  // pickle_machine.cc

  const char* run(std::string_view pickle, const StorageRecords& records);
  const char* mark_wanted();

  std::vector<PickledObject> objects_;
  std::vector<PickledChange> changes_;
  std::vector<std::uint32_t> children_;
  std::vector<PickledView> tensors_;
  std::vector<PickledStorage> storages_;
  std::vector<std::uint32_t> stack_, marks_, memo_, found_;  // found_: by record, the storage made of it
  std::string detail_;
  std::uint32_t result_ = 0;
};

}  // namespace penstock
