// A scope in which this thread does not hold Python's lock.
//
// nb::gil_scoped_release takes the lock in its destructor too, but ends the process where the interpreter ends meanwhile:
// before 3.14 it ends a daemon thread that asks for the lock by pthread_exit, whose unwinding must not leave a destructor
// ("terminate called without an active exception"). Such a thread sleeps here until the process is gone, as from 3.14 on.
//
// Threads: any that holds the lock. Memory: owns nothing.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace penstock {

class GilReleased {
 public:
  GilReleased() noexcept : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // the unwinding of pthread_exit, which may not be swallowed
      while (true) pause();
    }
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace penstock
