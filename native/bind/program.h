// The fillers of a plan for Python, and those that reader threads may need for longer than the plan is there.
//
// Threads: any that holds Python's lock. Memory: a PyProgram keeps the Python objects whose memory its fillers read.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "pool/pool.h"

namespace penstock {

class PyProgram {
 public:
  explicit PyProgram(nanobind::list sources) : held_(sources) {
    auto program = std::make_shared<Program>();
    for (nanobind::handle source : sources) {
      Program::Fillers fillers;
      for (nanobind::handle filler : nanobind::cast<nanobind::list>(source))
        fillers.push_back(nanobind::cast<std::shared_ptr<Filler>>(filler));
      if (!program->sources.empty() && fillers.size() != program->fields)
        throw nanobind::value_error("all sources of a program have the same number of fields");
      program->fields = fillers.size();
      program->sources.push_back(std::move(fillers));
    }
    if (program->sources.empty()) throw nanobind::value_error("a program has at least one source");
    program_ = std::move(program);
  }

  [[nodiscard]] const std::shared_ptr<const Program>& program() const { return program_; }

 private:
  nanobind::list held_;
  std::shared_ptr<const Program> program_;
};

// The programs of readers that did not come back from a read when their owner ended. They hold Python's objects,
// which those threads cannot release.
class LeftBehind {
 public:
  static LeftBehind& instance() {
    static auto& one = *new LeftBehind;  // never destroyed: threads may be reading still when the process ends
    return one;
  }

  void keep(const std::weak_ptr<const void>& readers, nanobind::object program) {
    if (!readers.expired()) programs_.emplace_back(readers, std::move(program));
  }

  // Lets go of those whose readers have ended.
  void forget() {
    std::vector<std::pair<std::weak_ptr<const void>, nanobind::object>> ended;  // may run Python code when it ends
    for (std::size_t i = 0; i < programs_.size();) {
      if (!programs_[i].first.expired()) {
        ++i;
        continue;
      }
      ended.push_back(std::move(programs_[i]));
      programs_.erase(programs_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

 private:
  std::vector<std::pair<std::weak_ptr<const void>, nanobind::object>> programs_;
};

}  // namespace penstock
