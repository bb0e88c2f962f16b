// What readers and stages have counted, as Python's objects.
//
// Threads: any that holds Python's lock. Memory: the objects are the caller's.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "files/stages.h"
#include "pool/read_ahead.h"

namespace penstock {

inline nanobind::dict dict_of(const ReadCounts& counts) {
  nanobind::dict found;
  found["depth"] = counts.depth;
  found["deepest"] = counts.deepest;
  found["ahead"] = counts.ahead;
  found["awaited"] = counts.awaited;
  found["direct"] = counts.direct;
  found["seen"] = counts.seen;
  found["blocked"] = counts.blocked;
  found["bytes"] = counts.bytes;
  found["most_held"] = counts.most_held;
  return found;
}

// (name, seconds, samples, seconds on a processor, bytes read, seconds ready to run) of each stage that had samples; count: returns those of a
// stage.
template <class CountOf>
nanobind::list list_of(CountOf&& count) {
  nanobind::list found;
  for (std::size_t i = 0; i < kStages.size(); ++i) {
    const StageCounters::Count one = count(static_cast<Stage>(i));
    if (one.samples > 0)
      found.append(nanobind::make_tuple(nanobind::str(kStages[i].data(), kStages[i].size()),
                                        static_cast<double>(one.nanoseconds) / 1e9, one.samples,
                                        one.running_seconds(), one.bytes, one.ready_seconds()));
  }
  return found;
}

}  // namespace penstock
