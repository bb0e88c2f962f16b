// Reading memory that is not ours: a user's tensors and arrays, and files that are mapped. Their owner may free them,
// exchange them or truncate them at any time, from any thread, and no reference keeps them. A read that faults becomes
// a call of `faulted`, where it would end the process.
//
// What is read may also be the content of memory that was freed and is used for something else: whoever hands the copy
// out looks, afterwards, whether the memory still is where it was (src/penstock/executors/native.py).
//
// THE RULE: a fault jumps (siglongjmp) from Guard::copy or Guard::read to each_guarded, over all frames between them.
// No object with a destructor that does anything may be alive there meanwhile, and no lock be held.
//
// Threads: a Guard belongs to one thread at a time. guard_faults() may be called from any thread; the handlers that it
// installs are the process's. The threads that copy must not block SIGSEGV and SIGBUS: the kernel would end the process.
// Memory: borrows all.
#pragma once

#include <setjmp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace penstock {

// Installs the handlers of SIGSEGV and SIGBUS, unless they are the ones in place. A fault that no Guard expects goes to
// the handler that was there before.
void guard_faults() noexcept;

class Guard {
 public:
  // Copies memory that may not be there. Only within each_guarded.
  void copy(void* to, const void* from, std::size_t bytes) noexcept;

  // Calls reader(), which may read memory that may not be there. Only within each_guarded, and where kReads.
  template <class Reader>
  auto read(const void* from, std::size_t bytes, const Reader& reader) noexcept {
    expect(from, bytes);
    const auto result = reader();
    expect_nothing();
    return result;
  }
  // False where a sanitizer would report such reads: copy() is the only one that it does not look at.
  static const bool kReads;

  // Of each_guarded, and the signal handler.
  sigjmp_buf landing;
  void enter() noexcept;
  void leave() noexcept;
  [[nodiscard]] bool expects(const void* address) const noexcept { return address >= begin_ && address < end_; }
  void land() noexcept { end_ = begin_; }

 private:
  void expect(const void* from, std::size_t bytes) noexcept {
    begin_ = static_cast<const std::uint8_t*>(from);
    end_ = static_cast<const std::uint8_t*>(from) + bytes;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  void expect_nothing() noexcept {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    end_ = begin_;
  }

  // What is being read; empty while nothing is.
  const std::uint8_t* volatile begin_ = nullptr;
  const std::uint8_t* volatile end_ = nullptr;
};

// Calls step(i) for each i from begin to end, and faulted(i) where step(i) ended in a fault.
template <class Step, class Faulted>
void each_guarded(Guard& guard, std::uint32_t begin, std::uint32_t end, const Step& step, const Faulted& faulted) {
  struct Within {  // of this frame, which no jump leaves
    Guard& guard;
    explicit Within(Guard& given) : guard(given) { guard.enter(); }
    ~Within() { guard.leave(); }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;
  } const within(guard);
  volatile std::uint32_t at = begin;  // volatile: it is read after a jump
  if (sigsetjmp(guard.landing, 0) != 0) {  // without the signal mask, a system call: the handler sees to it
    guard.land();
    faulted(at);
    at = at + 1;
  }
  while (at < end) {
    step(at);
    at = at + 1;
  }
}

}  // namespace penstock
