// A reader for one call, kept for the next one.
//
// Threads: any that holds Python's lock, both when an Own is made and when it ends. Memory: at most kIdle readers are
// kept, each trimmed, and of those that say what they hold() at most kIdleBytes; they are never freed, as threads may be
// reading still when the process ends.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace penstock {

// Nobody else has the Reader meanwhile: Python code that runs in the same thread, a destructor say, gets another one.
// Throws std::bad_alloc.
template <class Reader>
class Own {
 public:
  Own() {
    if (idle().empty()) {
      reader_ = std::make_unique<Reader>();
    } else {
      reader_ = std::move(idle().back());
      idle().pop_back();
      all_held() -= held();
    }
  }
  ~Own() {
    reader_->trim();
    if (idle().size() == kIdle || all_held() + held() > kIdleBytes) return;
    all_held() += held();
    idle().push_back(std::move(reader_));
  }
  Own(const Own&) = delete;
  Own& operator=(const Own&) = delete;

  Reader& operator*() const { return *reader_; }

 private:
  static constexpr std::size_t kIdle = 32, kIdleBytes = std::size_t{256} << 20;

  [[nodiscard]] std::size_t held() const {
    if constexpr (requires { reader_->held(); }) return reader_->held();
    return 0;
  }
  static std::size_t& all_held() {
    static std::size_t bytes = 0;
    return bytes;
  }

  static std::vector<std::unique_ptr<Reader>>& idle() {
    static auto& all = *[] {
      auto* const made = new std::vector<std::unique_ptr<Reader>>;
      made->reserve(kIdle);  // push_back() does not throw
      return made;
    }();
    return all;
  }

  std::unique_ptr<Reader> reader_;
};

}  // namespace penstock
