// Signals are for the threads that Python knows of, but for those that a thread brings upon itself: a fault whose signal
// is blocked ends the process at once, past every handler that the program has (faulthandler's, say).
//
// Threads: made and ended in one thread; threads that it starts meanwhile inherit the mask. Memory: owns nothing.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace penstock {

class BlockSignals {
 public:
  BlockSignals() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, own);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace penstock
