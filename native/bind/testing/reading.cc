// A table of files that is slow, or that opens nothing until it is let, for tests of readers; and the choice of their number.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bind/gil_released.h"
#include "bind/testing/testing.h"
#include "files/path_table.h"
#include "pool/read_depth.h"

namespace nb = nanobind;

namespace penstock {
namespace {

// Another table, each of whose opens takes a time and waits while the gate is shut.
class SlowTable final : public FileTable {
 public:
  SlowTable(std::shared_ptr<const FileTable> table, double seconds)
      : table_(std::move(table)), opened_(table_->size()), delay_(seconds) {}

  [[nodiscard]] std::size_t size() const noexcept override { return table_->size(); }
  [[nodiscard]] std::string_view name(std::size_t i) const noexcept override { return table_->name(i); }
  [[nodiscard]] std::string path(std::size_t i) const override { return table_->path(i); }

  [[nodiscard]] Outcome open(std::size_t i, SampleFile& out) const noexcept override {
    std::chrono::duration<double> delay{};
    {
      std::unique_lock hold(lock_);
      if (i < opened_.size()) ++opened_[i];
      ++inside_;
      deepest_ = std::max(deepest_, inside_);
      ++waiting_;
      gate_.wait(hold, [this] { return !shut_; });
      --waiting_;
      delay = delay_;
    }
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    const Outcome outcome = table_->open(i, out);
    const std::lock_guard hold(lock_);
    --inside_;
    return outcome;
  }

  void set_delay(double seconds) {
    const std::lock_guard hold(lock_);
    delay_ = std::chrono::duration<double>(seconds);
  }
  void set_shut(bool shut) {
    const std::lock_guard hold(lock_);
    shut_ = shut;
    gate_.notify_all();
  }
  [[nodiscard]] std::vector<unsigned> opened() const {
    const std::lock_guard hold(lock_);
    return opened_;
  }
  [[nodiscard]] unsigned waiting() const {
    const std::lock_guard hold(lock_);
    return waiting_;
  }
  [[nodiscard]] unsigned deepest() const {
    const std::lock_guard hold(lock_);
    return deepest_;
  }

 private:
  const std::shared_ptr<const FileTable> table_;
  mutable std::mutex lock_;
  mutable std::condition_variable gate_;
  mutable std::vector<unsigned> opened_;
  mutable unsigned inside_ = 0, deepest_ = 0, waiting_ = 0;
  bool shut_ = false;
  std::chrono::duration<double> delay_;
};

}  // namespace

void bind_reading(nb::module_& m) {
  nb::class_<SlowTable, FileTable>(m, "SlowTable")
      .def(nb::init<std::shared_ptr<const FileTable>, double>(), nb::arg("table"), nb::arg("seconds"))
      .def("__len__", &SlowTable::size)
      .def("set_delay", &SlowTable::set_delay, nb::arg("seconds"))
      .def("shut", [](SlowTable& table) { table.set_shut(true); })
      .def("release", [](SlowTable& table) { table.set_shut(false); })
      .def("opened", &SlowTable::opened)
      .def("waiting", &SlowTable::waiting)
      .def("deepest", &SlowTable::deepest);
  nb::class_<ReadDepth>(m, "ReadDepth")
      .def(nb::init<unsigned>(), nb::arg("most"))
      .def("now", &ReadDepth::now)
      .def("start", &ReadDepth::start)
      .def("judge",
           [](ReadDepth& depth, double seconds, std::uint64_t bytes, std::uint64_t files, std::uint64_t blocked,
              std::uint64_t served, std::uint64_t starved) {
             const ReadSpan span{seconds, bytes, files, files, blocked, served, starved};
             const bool judged = depth.judges(span);
             if (judged) depth.judge(span);
             return judged;
           },
           nb::arg("seconds"), nb::arg("bytes"), nb::arg("files"), nb::arg("blocked"), nb::arg("served"),
           nb::arg("starved"));
}

}  // namespace penstock
