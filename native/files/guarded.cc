#include "files/guarded.h"

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PENSTOCK_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PENSTOCK_SANITIZED 1
#endif
#endif

namespace penstock {
namespace {

constexpr std::array kSignals = {SIGSEGV, SIGBUS};

// The Guard that this thread works under.
thread_local Guard* guard_here = nullptr;
// This thread is in a handler that was there before ours: if that one comes back to ours, nobody takes the fault.
thread_local bool handed_on = false;

// What was there before our handlers, one a signal. Never freed: a handler may be reading it.
std::array<std::atomic<const struct sigaction*>, kSignals.size()> before{};

void to_default(int signal) noexcept {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
}

void handle(int signal, siginfo_t* info, void* context) noexcept {
  const bool fault = info != nullptr && info->si_code > 0;  // of this thread's own; not sent by kill()
  Guard* const guard = guard_here;
  if (fault && guard != nullptr && guard->expects(info->si_addr)) {
    // Signals that are blocked here only because a handler runs: whoever called this one may have asked for that.
    pthread_sigmask(SIG_SETMASK, &static_cast<const ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(guard->landing, 1);
  }
  const struct sigaction* const old = before[signal == SIGSEGV ? 0 : 1].load(std::memory_order_acquire);
  const bool handler = old != nullptr && ((old->sa_flags & SA_SIGINFO) != 0 ||
                                          (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN));
  if (handler && !handed_on) {
    handed_on = true;
    if ((old->sa_flags & SA_SIGINFO) != 0) {
      old->sa_sigaction(signal, info, context);
    } else {
      old->sa_handler(signal);
    }
    handed_on = false;
    return;
  }
  if (!fault && !handler && old != nullptr && old->sa_handler == SIG_IGN) return;
  to_default(signal);
  if (!fault) raise(signal);  // a fault comes again by itself
}

#if defined(PENSTOCK_SANITIZED)
// Reports of what is read here would be reports of what the Guard is for. A loop of volatile reads stays a loop.
__attribute__((noinline, no_sanitize("address", "thread", "undefined"))) void bare_copy(void* to, const void* from,
                                                                                         std::size_t bytes) noexcept {
  auto* out = static_cast<volatile std::uint8_t*>(to);
  const auto* in = static_cast<const volatile std::uint8_t*>(from);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = in[i];
}
#else
inline void bare_copy(void* to, const void* from, std::size_t bytes) noexcept { std::memcpy(to, from, bytes); }
#endif

}  // namespace

#if defined(PENSTOCK_SANITIZED)
const bool Guard::kReads = false;
#else
const bool Guard::kReads = true;
#endif

void guard_faults() noexcept {
  static std::mutex& one_at_a_time = *new std::mutex;  // never destroyed: threads may be at work when the process ends
  const std::unique_lock hold(one_at_a_time, std::try_to_lock);  // another thread, perhaps before a fork, installs them
  if (!hold) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction now {};
    if (sigaction(kSignals[i], nullptr, &now) != 0) continue;
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &handle) continue;
    auto* const kept = new (std::nothrow) struct sigaction(now);
    if (kept == nullptr) continue;
    before[i].store(kept, std::memory_order_release);
    struct sigaction ours {};
    ours.sa_sigaction = &handle;
    // The signal is not blocked while it is handled, so that a jump out of the handler has no mask to restore.
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&ours.sa_mask);
    sigaction(kSignals[i], &ours, nullptr);
  }
}

void Guard::enter() noexcept { guard_here = this; }

void Guard::leave() noexcept { guard_here = nullptr; }

void Guard::copy(void* to, const void* from, std::size_t bytes) noexcept {
  expect(from, bytes);
  bare_copy(to, from, bytes);
  expect_nothing();
}

}  // namespace penstock
