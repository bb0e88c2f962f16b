#include "tensor/pickled_objects.h"

namespace penstock {

void PickledObjects::clear() noexcept {
  objects_.clear();
  changes_.clear();
  children_.clear();
  tensors_.clear();
  storages_.clear();
  stack_.clear();
  marks_.clear();
  memo_.clear();
  detail_.clear();
}

const char* PickledObjects::read(std::string_view pickle, const StorageRecords& records) {
  clear();
  found_.assign(records.size(), kNoObject);
  if (const char* reason = run(pickle, records)) return reason;
  return mark_wanted();
}

// Marks what the result holds; the arguments of tensors, say, are not made.
const char* PickledObjects::mark_wanted() {
  stack_.assign(1, result_);
  const auto add = [&](std::uint32_t first, std::uint32_t count) {
    stack_.insert(stack_.end(), children_.begin() + first, children_.begin() + first + count);
  };
  while (!stack_.empty()) {
    PickledObject& object = objects_[stack_.back()];
    stack_.pop_back();
    if (object.wanted) continue;
    object.wanted = true;
    switch (object.kind) {
      case ObjectKind::storage: return "it holds a storage without a tensor";
      case ObjectKind::function: case ObjectKind::storage_class: return "it holds a function or a class";
      case ObjectKind::tuple: case ObjectKind::size: case ObjectKind::set: case ObjectKind::parameter: add(object.first, object.count); break;
      case ObjectKind::tensor: {
        const PickledView& view = tensors_[object.first];
        stack_.push_back(view.hooks);
        storages_[view.storage].wanted = true;
        ++storages_[view.storage].users;
        break;
      }
      default: break;
    }
    for (std::uint32_t i = object.change; i != kNoObject; i = changes_[i].previous) add(changes_[i].first, changes_[i].count);
  }
  return nullptr;
}

}  // namespace penstock
