// The pool for Python.
//
// Everything that a worker thread may touch is kept alive here: the program (and through its fillers the
// arrays that they read) for as long as the pool lives, and the rows of a batch until it is retired. The
// workers themselves never touch a Python object.
//
// Threads: as pool.h says, each call with Python's lock held, which is released while the pool works or waits. Memory: as
// above; pixels and tensors that Python hands in are borrowed for the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil_released.h"
#include "bind/program.h"
#include "bind/reading.h"
#include "bind/spec.h"
#include "image/image_filler.h"
#include "pool/cpu_share.h"
#include "pool/loop_counter.h"
#include "pool/pool.h"

namespace nb = nanobind;

namespace penstock {
namespace {

using ByteArray = nb::ndarray<nb::numpy, const std::uint8_t, nb::c_contig, nb::device::cpu>;

class PyPool {
 public:
  PyPool(nb::object program, unsigned threads, unsigned readers, std::uint64_t ahead_bytes, bool recorded)
      : program_(std::move(program)),
        native_(nb::cast<PyProgram&>(program_).program()),
        pool_(std::make_unique<Pool>(native_, threads, readers, ahead_bytes, recorded)) {
    LeftBehind::instance().forget();
  }

  ~PyPool() {
    if (pool_ && pool_->abandoned()) {
      // Forked off: locks may be held by threads that do not exist here, so that nothing of the pool can be
      // taken down; it is left as it is, with what it holds.
      static_cast<void>(pool_.release());
      static_cast<void>(program_.release());
      for (auto& [number, rows] : rows_) static_cast<void>(rows.release());
      return;
    }
    const std::weak_ptr<const void> readers = pool_->readers();
    {
      const GilReleased released;
      pool_.reset();
    }
    LeftBehind::instance().keep(readers, std::move(program_));
  }
  PyPool(const PyPool&) = delete;
  PyPool& operator=(const PyPool&) = delete;

  std::shared_ptr<Batch> prepare(std::uint64_t seed, std::uint64_t epoch, const IndexArray& local,
                                 const IndexArray& sample, const IndexArray& position,
                                 const std::optional<Sources>& source, const std::optional<nb::bytes>& names) {
    check_process();
    const std::size_t size = local.shape(0);
    if (size > 0x7fffffff) throw nb::value_error("a batch too large");
    if (sample.shape(0) != size || position.shape(0) != size || (source && source->shape(0) != size))
      throw nb::value_error("local, sample, position and source have different lengths");
    auto batch = std::make_shared<Batch>();
    batch->epoch = epoch_key(seed, epoch);
    batch->local.assign(local.data(), local.data() + size);
    batch->sample.assign(sample.data(), sample.data() + size);
    batch->position.assign(position.data(), position.data() + size);
    check_samples(local, source ? &*source : nullptr, native_->sources.size());
    if (source) batch->source.assign(source->data(), source->data() + size);
    if (names)
      batch->paths = std::make_shared<const PathTable>(std::string(), text_of(*names), std::string(), false);
    if (batch->paths && batch->paths->size() != size) throw nb::value_error("names and local have different lengths");
    batch->program = native_.get();
    pool_->prepare(batch);
    return batch;
  }

  std::uint64_t submit(std::shared_ptr<Batch> batch, nb::list fields, bool staged) {
    check_process();
    if (batch->program != native_.get()) throw nb::value_error("a batch that was prepared for another pool");
    if (std::exchange(batch->submitted, true)) throw nb::value_error("a batch is submitted once");
    const std::size_t size = batch->local.size();
    if (fields.size() != native_->fields) throw nb::value_error("rows for another number of fields");
    for (nb::handle field : fields) {
      // (what holds the memory, address, bytes, Spec)
      const auto address = nb::cast<std::uintptr_t>(field[1]);
      const auto& spec = nb::cast<const TensorSpec&>(field[3]);
      const std::size_t row_bytes = bytes_of(spec);
      std::size_t needed = 0;
      if (__builtin_mul_overflow(row_bytes, size, &needed) || nb::cast<std::size_t>(field[2]) < needed)
        throw nb::value_error("rows too small for the batch");
      batch->fields.push_back({reinterpret_cast<std::uint8_t*>(address), row_bytes, spec});
    }
    const std::uint64_t number = pool_->submit(std::move(batch), staged);
    rows_.emplace(number, fields);
    return number;
  }

  void run_here(std::uint64_t number) {
    check_process();
    const GilReleased released;
    pool_->run_here(number);
  }

  // Waits in slices, so that Ctrl-C is seen.
  const char* wait(std::uint64_t number, double seconds) {
    check_process();
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kSlice(50);
    const bool forever = seconds <= 0;
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(forever ? 0 : std::min(seconds, 1e9)));
    while (true) {
      Wait result;
      {
        const GilReleased released;
        const auto left = forever ? kSlice : std::min<Clock::duration>(kSlice, end - Clock::now());
        result = pool_->wait(number, left);
      }
      if (result == Wait::done) return "done";
      if (result == Wait::python_needed) return "python";
      if (result == Wait::closed) return "closed";
      if (!forever && Clock::now() >= end) return "timeout";
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  bool at_hand(std::uint64_t number) {
    check_process();
    return pool_->at_hand(number);
  }

  nb::list retire(std::uint64_t number) {
    check_process();
    const auto batch = pool_->retire(number);
    if (!batch) throw nb::key_error("no such batch");
    rows_.erase(number);
    nb::list failures;
    for (const Failure& failure : batch->failures)
      failures.append(nb::make_tuple(failure.position, failure.field, kCodes[static_cast<std::size_t>(failure.outcome.code)],
                                     failure.outcome.error, failure.outcome.reason,
                                     nb::str(info(failure.got.dtype).torch_name.data()), shape_of(failure.got)));
    return failures;
  }

  std::optional<PythonJob> take_python(bool block) {
    check_process();
    const GilReleased released;
    return pool_->take_python(block);
  }

  nb::list busy() {
    check_process();
    std::vector<Busy> found;
    {
      const GilReleased released;
      found = pool_->busy();
    }
    nb::list samples;
    for (const Busy& one : found) samples.append(nb::make_tuple(one.batch, one.position, one.seconds));
    return samples;
  }

  [[nodiscard]] nb::dict reading() const { return dict_of(pool_->read_counts()); }

  void start_readers() {
    check_process();
    pool_->start_readers();
  }

  [[nodiscard]] unsigned read_depth() const { return pool_->read_depth(); }

  [[nodiscard]] nb::list stages() const {
    return list_of([this](Stage stage) { return pool_->stage(stage); });
  }

  // Nothing in a forked child, where a timeline may have been in the middle of a change.
  nb::list take_spans() {
    nb::list found;
    if (pool_->abandoned()) return found;
    for (const ThreadSpans& thread : pool_->take_spans()) {
      const char* const kind = thread.kind == ThreadSpans::reader ? "penstock-read-" : "penstock-native-";
      const std::string name = thread.kind == ThreadSpans::caller ? "calling thread" : kind + std::to_string(thread.number);
      for (const WorkSpan& span : thread.spans) {
        const std::string_view stage = kStages[static_cast<std::size_t>(span.stage)];
        found.append(nb::make_tuple(name.c_str(), nb::str(stage.data(), stage.size()),
                                    static_cast<double>(span.begin) * 1e-9, static_cast<double>(span.end) * 1e-9,
                                    span.samples));
      }
    }
    return found;
  }

  void add_python_server() {
    check_process();
    pool_->add_python_server();
  }

  void finish_tensor(const PythonJob& job, const ByteArray& bytes, const TensorSpec& spec) {
    const FieldRows& rows = job.batch->fields[job.field];
    Outcome outcome;
    if (!(rows.spec == spec)) {
      outcome = Outcome::mismatch("shape or dtype");
    } else {
      if (bytes.size() != rows.row_bytes) throw nb::value_error("bytes and spec do not agree");
      if (rows.row_bytes > 0) std::memcpy(rows.data + rows.row_bytes * job.position, bytes.data(), rows.row_bytes);
    }
    pool_->finish_python(job, outcome, spec);
  }

  // Returns None, or the reason why not even the decoded pixels could be used.
  const char* finish_pixels(const PythonJob& job, const ByteArray& pixels) {
    if (pixels.ndim() != 2 && pixels.ndim() != 3) throw nb::value_error("pixels are height x width (x channels)");
    for (std::size_t d = 0; d < pixels.ndim(); ++d)
      if (pixels.shape(d) > 0x7fffffff) throw nb::value_error("an image too large");
    const GilReleased released;
    const DecodedImage image{pixels.data(), static_cast<int>(pixels.shape(0)), static_cast<int>(pixels.shape(1)),
                             pixels.ndim() == 3 ? static_cast<int>(pixels.shape(2)) : 1};
    TensorSpec got;
    const Outcome outcome = pool_->fill_from_pixels(job, image, got);
    if (outcome.code == Code::python) return outcome.reason;  // the caller fails or finishes the job
    pool_->finish_python(job, outcome, got);
    return nullptr;
  }

  // The error itself stays in Python.
  void fail_python(const PythonJob& job) { pool_->finish_python(job, Outcome::to_python(job.reason), {}); }

  void close() {
    const GilReleased released;
    pool_->close();
  }

  [[nodiscard]] bool abandoned() const { return pool_->abandoned(); }

 private:
  void check_process() const {
    if (pool_->abandoned())
      throw std::runtime_error("this iterator was started in another process; iterate over the loader anew after a fork");
  }

  nb::object program_;
  std::shared_ptr<const Program> native_;
  std::unordered_map<std::uint64_t, nb::list> rows_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace

void bind_pool(nb::module_& m) {
  m.def("count_stages", &Pool::count_stages, nb::arg("enabled"));
  m.def("ready_seconds", [] { return static_cast<double>(ThreadClock::ready_now()) / 1e9; });
  nb::class_<ThreadClock>(m, "ThreadClock")
      .def("__init__", [](ThreadClock* made) { (new (made) ThreadClock())->start(); })
      .def("lap", [](ThreadClock& self, std::uint64_t nanoseconds) {
        const ThreadClock::Lap found = self.lap(nanoseconds);
        return nb::make_tuple(found.running, found.ready, found.bytes);
      }, nb::arg("nanoseconds"));
  nb::class_<CpuShare>(m, "CpuShare")
      .def(nb::init<>())
      .def("look", &CpuShare::look)
      .def_prop_ro("keeps", &CpuShare::keeps);
  nb::class_<LoopCounter>(m, "LoopCounter")
      .def(nb::init<>())
      .def("add", &LoopCounter::add, nb::arg("waited"), nb::arg("worked").none(), nb::arg("in_flight") = 0)
      .def("hand_out", &LoopCounter::hand_out, nb::arg("samples"))
      .def("add_work", &LoopCounter::add_work, nb::arg("seconds"))
      .def("light", &LoopCounter::light, nb::arg("seconds"))
      .def("counts", [](const LoopCounter& self) {
        const LoopCounter::Counts found = self.counts();
        nb::list waits;
        for (const std::uint64_t count : found.waits) waits.append(count);
        return nb::make_tuple(found.batches, found.in_flight, found.waited, found.first_waited, found.worked,
                              found.longest_wait, nb::tuple(waits));
      })
      .def("direct", [](const LoopCounter& self) {
        const LoopCounter::Direct found = self.direct();
        nb::list stages;
        for (const LoopCounter::Stage& one : found.stages) {
          const double running = std::min(one.seconds, one.of_all(one.spent.running) / 1e9);
          const auto bytes = static_cast<std::uint64_t>(one.of_all(one.spent.bytes));
          stages.append(nb::make_tuple(one.seconds, one.samples, running, bytes, one.of_all(one.spent.ready) / 1e9));
        }
        return nb::make_tuple(found.batches, found.samples, nb::tuple(stages));
      });
  nb::class_<WorkClock>(m, "WorkClock")
      .def("__init__", [](WorkClock* made, std::shared_ptr<LoopCounter> counter, std::size_t stage) {
        if (stage >= LoopCounter::kStages) throw nb::value_error("no such stage");
        new (made) WorkClock(std::move(counter), static_cast<LoopCounter::StageName>(stage));
      }, nb::arg("counter"), nb::arg("stage"))
      .def("end", &WorkClock::end, nb::arg("samples"))
      .def_prop_ro("begun", &WorkClock::begun);
  nb::class_<CallerClock>(m, "CallerClock")
      .def(nb::init<std::shared_ptr<LoopCounter>>(), nb::arg("counter"))
      .def("called", &CallerClock::called)
      .def("read", &CallerClock::read)
      .def("made", &CallerClock::made, nb::arg("samples"), nb::arg("iterated") = false)
      .def("handed", &CallerClock::handed, nb::arg("number"), nb::arg("every"), nb::arg("looked"),
           nb::arg("brief"))
      .def("failed", &CallerClock::failed)
      .def("ended", &CallerClock::ended)
      .def("moments", [](const CallerClock& self) {
        const auto found = self.moments();
        return nb::make_tuple(found[0], found[1], found[2]);
      })
      .def_prop_ro("samples", &CallerClock::samples);
  nb::class_<PyProgram>(m, "Program").def(nb::init<nb::list>(), nb::arg("sources"));
  nb::class_<Batch>(m, "PreparedBatch");
  nb::class_<PythonJob>(m, "PythonJob")
      .def_prop_ro("batch", [](const PythonJob& job) { return job.batch->number; })
      .def_prop_ro("sample", [](const PythonJob& job) { return job.batch->sample[job.position]; })
      .def_ro("position", &PythonJob::position)
      .def_ro("field", &PythonJob::field)
      .def_ro("reason", &PythonJob::reason);
  nb::class_<PyPool>(m, "Pool")
      .def(nb::init<nb::object, unsigned, unsigned, std::uint64_t, bool>(), nb::arg("program"), nb::arg("threads"),
           nb::arg("readers") = 0, nb::arg("ahead_bytes") = 0, nb::arg("recorded") = false)
      .def("prepare", &PyPool::prepare, nb::arg("seed"), nb::arg("epoch"), nb::arg("local"), nb::arg("sample"),
           nb::arg("position"), nb::arg("source").none(), nb::arg("names").none())
      .def("submit", &PyPool::submit, nb::arg("batch"), nb::arg("fields"), nb::arg("staged") = false)
      .def("run_here", &PyPool::run_here, nb::arg("number"))
      .def("wait", &PyPool::wait, nb::arg("number"), nb::arg("seconds"))
      .def("at_hand", &PyPool::at_hand, nb::arg("number"))
      .def("retire", &PyPool::retire, nb::arg("number"))
      .def("busy", &PyPool::busy)
      .def("add_python_server", &PyPool::add_python_server)
      .def("take_python", &PyPool::take_python, nb::arg("block"))
      .def("finish_tensor", &PyPool::finish_tensor, nb::arg("job"), nb::arg("data"), nb::arg("spec"))
      .def("finish_pixels", &PyPool::finish_pixels, nb::arg("job"), nb::arg("pixels"))
      .def("fail_python", &PyPool::fail_python, nb::arg("job"))
      .def("close", &PyPool::close)
      .def("stages", &PyPool::stages)
      .def("take_spans", &PyPool::take_spans)
      .def("reading", &PyPool::reading)
      .def("start_readers", &PyPool::start_readers)
      .def_prop_ro("read_depth", &PyPool::read_depth)
      .def_prop_ro("abandoned", &PyPool::abandoned);
}

}  // namespace penstock
