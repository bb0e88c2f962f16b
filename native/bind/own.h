// A reader that each thread keeps from call to call.
//
// Threads: each has its own. Memory: freed when the thread ends.
#pragma once

#include <memory>
#include <utility>

namespace penstock {

// The Reader of this thread, which is trimmed afterwards. It is taken out while it is used: Python code that runs
// meanwhile in the same thread, a destructor say, may need one too. Throws std::bad_alloc.
template <class Reader>
class Own {
 public:
  Own() : reader_(std::move(idle_)) {
    if (!reader_) reader_ = std::make_unique<Reader>();
  }
  ~Own() {
    reader_->trim();
    idle_ = std::move(reader_);
  }
  Own(const Own&) = delete;
  Own& operator=(const Own&) = delete;

  Reader& operator*() const { return *reader_; }

 private:
  std::unique_ptr<Reader> reader_;
  static inline thread_local std::unique_ptr<Reader> idle_;
};

}  // namespace penstock
