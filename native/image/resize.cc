#include "image/resize.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "image/resize_kernels.h"
#include "image/resize_tables.h"

namespace penstock {
namespace {

// ATen takes its channels-last kernel, which rounds nearest-exact differently, up to this output height + width.
constexpr int kSmallOutput = 128;
// Bytes of one scratch buffer.
constexpr std::size_t kMaxScratch = std::size_t{1} << 30;

// The resize as asked, per axis.
struct Task {
  Axis x, y;
  Box window;

  [[nodiscard]] bool resamples_x() const { return x.in != x.out; }
  [[nodiscard]] bool resamples_y() const { return y.in != y.out; }
  // Resample.c of Pillow 13; everything else is horizontal first.
  [[nodiscard]] bool vertical_first() const {
    return x.arithmetic == Arithmetic::pillow && resamples_x() && y.in > y.out && y.in - y.out > 2 * (x.in - x.out);
  }
};

[[nodiscard]] bool in_extent(int value) { return value >= 1 && value <= Resizer::kMaxExtent; }

[[nodiscard]] bool order_depends_on_version(const Task& task) {
  return task.x.arithmetic == Arithmetic::pillow_12 && !is_nearest(task.x.filter) && task.resamples_x() &&
         task.y.in > 100 * std::int64_t{task.x.in} && task.y.out < task.y.in;
}

// torch itself fails on a single pixel ("INTERNAL ASSERT FAILED").
[[nodiscard]] bool torch_fails(const Task& task) {
  return task.x.arithmetic == Arithmetic::torch_u8 && !is_nearest(task.x.filter) && task.x.out == 1 && task.y.out == 1;
}

[[nodiscard]] bool valid(const Task& task) {
  const Box& w = task.window;
  return in_extent(task.x.in) && in_extent(task.y.in) && in_extent(task.x.out) && in_extent(task.y.out) &&
         w.x0 >= 0 && w.y0 >= 0 && w.x0 < w.x1 && w.y0 < w.y1 && w.x1 <= task.x.out && w.y1 <= task.y.out &&
         Resizer::supported(task.x.filter, task.x.arithmetic, task.x.antialias) && !order_depends_on_version(task) &&
         !torch_fails(task);
}

[[nodiscard]] bool valid(const ImagePart& src) {
  return src.data != nullptr && (src.channels == 1 || src.channels == 3) && src.width >= 1 && src.height >= 1 &&
         src.x0 >= 0 && src.y0 >= 0 && in_extent(src.full_width) && in_extent(src.full_height) &&
         src.width <= src.full_width - src.x0 && src.height <= src.full_height - src.y0;
}

[[nodiscard]] bool holds(const ImagePart& src, Span x, Span y) {
  return x.first >= src.x0 && x.first + x.count <= src.x0 + src.width && y.first >= src.y0 &&
         y.first + y.count <= src.y0 + src.height;
}

[[nodiscard]] Task make_task(int full_width, int full_height, int out_width, int out_height, Filter filter,
                             Arithmetic arithmetic, bool antialias, Box window) {
  const bool small = std::int64_t{out_width} + out_height <= kSmallOutput;
  return {{full_width, out_width, window.x0, window.x1, filter, arithmetic, antialias, small},
          {full_height, out_height, window.y0, window.y1, filter, arithmetic, antialias, small},
          window};
}

// Source pixels that an axis of the task reads.
[[nodiscard]] Span source_span(const Axis& axis) {
  if (axis.in == axis.out) return {axis.begin, axis.end - axis.begin};
  if (!is_nearest(axis.filter)) return axis_reach(axis);
  std::vector<int> index;
  build_nearest_index(axis, index);
  return {index.front(), index.back() + 1 - index.front()};
}

// Rows of interleaved samples, what one pass reads: the pixels columns x rows of the virtual image, or of the
// image between the passes. `beyond` bytes after the last row may be read too.
struct View {
  const std::uint8_t* data;
  std::ptrdiff_t stride;
  Span columns, rows;
  int channels;
  std::size_t beyond;

  [[nodiscard]] std::size_t row_bytes() const {
    return static_cast<std::size_t>(columns.count) * static_cast<std::size_t>(channels);
  }
  [[nodiscard]] const std::uint8_t* row(int i) const { return data + i * stride; }

  // Whether `reach` bytes may be read from the start of row i.
  [[nodiscard]] bool reaches(int i, std::size_t reach) const {
    if (reach <= row_bytes()) return true;
    if (stride <= 0) return false;
    const auto below = static_cast<std::size_t>(rows.count - 1 - i);
    return below * static_cast<std::size_t>(stride) + row_bytes() + beyond >= reach;
  }
};

[[nodiscard]] View view_of(const ImagePart& src, Span columns, Span rows) {
  const std::ptrdiff_t right = static_cast<std::ptrdiff_t>(columns.first - src.x0) * src.channels;
  const std::uint8_t* data = src.data + (rows.first - src.y0) * src.row_stride + right;
  // Bytes of the part to the right of and below the last row of the view.
  const int below = src.y0 + src.height - rows.first - rows.count;
  std::size_t beyond = static_cast<std::size_t>(src.x0 + src.width - columns.first - columns.count) *
                       static_cast<std::size_t>(src.channels);
  if (src.row_stride > 0) beyond += static_cast<std::size_t>(below) * static_cast<std::size_t>(src.row_stride);
  return {data, src.row_stride, columns, rows, src.channels, beyond};
}

template <class T>
T* grown(std::vector<T>& scratch, std::size_t size) {
  if (size > kMaxScratch / sizeof(T)) throw std::bad_alloc();
  if (scratch.size() < size) scratch.resize(size);
  return scratch.data();
}

}  // namespace

// One axis of the last resize and its tables; crops of a new size every time recompute them.
struct CachedAxis {
  Axis key{};
  AxisTable table;

  bool prepare(const Axis& axis) {
    if (key == axis) return true;
    key = {};
    if (!build_axis_table(axis, table)) return false;
    key = axis;
    return true;
  }
};

struct Resizer::State {
  explicit State(bool want_simd) {
#if defined(__x86_64__)
    simd = want_simd && __builtin_cpu_supports("avx2");
#else
    (void)want_simd;
#endif
  }

  bool simd = false;
  CachedAxis across, down;
  std::vector<int> index_x, index_y;
  std::vector<std::uint8_t> between, padded;
  std::vector<const std::uint8_t*> rows;
#if defined(__x86_64__)
  LanePlan lanes;
  RowPlan row_plan;
#endif

  bool prepare(const Task& task);
  void nearest(const Task& task, const View& view, std::uint8_t* dst, std::ptrdiff_t dst_stride);
  void horizontal(const View& view, std::uint8_t* dst, std::ptrdiff_t dst_stride);
  void vertical(const View& view, std::uint8_t* dst, std::ptrdiff_t dst_stride);
  void fixed_point(const Task& task, View view, std::uint8_t* dst, std::ptrdiff_t dst_stride);
};

bool Resizer::State::prepare(const Task& task) {
  return (!task.resamples_x() || across.prepare(task.x)) && (!task.resamples_y() || down.prepare(task.y));
}

void Resizer::State::nearest(const Task& task, const View& view, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  build_nearest_index(task.x, index_x);
  build_nearest_index(task.y, index_y);
  for (int& x : index_x) x = (x - view.columns.first) * view.channels;
  for (std::size_t i = 0; i < index_y.size(); ++i, dst += dst_stride) {
    const std::uint8_t* row = view.row(index_y[i] - view.rows.first);
    std::uint8_t* out = dst;
    if (view.channels == 1) {
      for (const int x : index_x) *out++ = row[x];
      continue;
    }
    for (const int x : index_x) {
      out[0] = row[x];
      out[1] = row[x + 1];
      out[2] = row[x + 2];
      out += 3;
    }
  }
}

// Sums along each row of the view.
void Resizer::State::horizontal(const View& view, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
#if defined(__x86_64__)
  if (simd) {
    build_lane_plan(across.table, view.columns.first, view.channels, lanes);
    const std::size_t room = std::max(lanes.reach, view.row_bytes());
    std::uint8_t* pad = grown(padded, 4 * room);
    for (int i = 0; i < view.rows.count; i += 4) {
      const std::uint8_t* from[4];
      std::uint8_t* to[4];
      for (int r = 0; r < 4; ++r) {
        const int row = std::min(i + r, view.rows.count - 1);  // the last row again where there are fewer than four
        from[r] = view.row(row);
        to[r] = dst + row * dst_stride;
        if (view.reaches(row, lanes.reach)) continue;
        std::uint8_t* copy = pad + static_cast<std::size_t>(r) * room;
        std::memcpy(copy, from[r], view.row_bytes());
        from[r] = copy;
      }
      horizontal_avx2(from, lanes, to);
    }
    return;
  }
#endif
  for (int i = 0; i < view.rows.count; ++i)
    horizontal_scalar(view.row(i), view.columns.first, view.channels, across.table, dst + i * dst_stride);
}

// Sums across the rows of the view.
void Resizer::State::vertical(const View& view, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const AxisTable& table = down.table;
  const std::size_t bytes = view.row_bytes();
  rows.resize(static_cast<std::size_t>(table.taps));
#if defined(__x86_64__)
  const bool wide = simd && bytes >= 32;
  if (wide) build_row_plan(table, row_plan);
#endif
  for (std::size_t i = 0; i < table.span.size(); ++i, dst += dst_stride) {
    const Span& span = table.span[i];
    for (int j = 0; j < span.count; ++j) rows[static_cast<std::size_t>(j)] = view.row(span.first - view.rows.first + j);
#if defined(__x86_64__)
    if (wide) {
      vertical_avx2(rows.data(), span.count, row_plan, i, bytes, dst);
      continue;
    }
#endif
    vertical_scalar(rows.data(), span.count, table.weight.data() + i * static_cast<std::size_t>(table.taps),
                    table.precision, bytes, dst);
  }
}

void Resizer::State::fixed_point(const Task& task, View view, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const Span out_columns{task.window.x0, task.window.width()}, out_rows{task.window.y0, task.window.height()};
  if (task.resamples_x() && task.resamples_y()) {
    // The image between the passes; whole cache lines a row, and enough after the last one for any read.
    View middle = view;
    const bool vertical_first = task.vertical_first();
    (vertical_first ? middle.rows : middle.columns) = vertical_first ? out_rows : out_columns;
    const std::size_t stride = (middle.row_bytes() + 63) / 64 * 64;
    std::uint8_t* out = grown(between, stride * static_cast<std::size_t>(middle.rows.count));
    middle.stride = static_cast<std::ptrdiff_t>(stride);
    middle.data = out;
    middle.beyond = stride - middle.row_bytes();
    if (vertical_first) {
      vertical(view, out, middle.stride);
      horizontal(middle, dst, dst_stride);
    } else {
      horizontal(view, out, middle.stride);
      vertical(middle, dst, dst_stride);
    }
  } else if (task.resamples_x()) {
    horizontal(view, dst, dst_stride);
  } else if (task.resamples_y()) {
    vertical(view, dst, dst_stride);
  } else {
    for (int i = 0; i < view.rows.count; ++i) std::memcpy(dst + i * dst_stride, view.row(i), view.row_bytes());
  }
}

Resizer::Resizer(bool simd) : state_(std::make_unique<State>(simd)) {}
Resizer::~Resizer() = default;

std::size_t Resizer::held() const noexcept { return state_->between.capacity() + state_->padded.capacity(); }

void Resizer::release() noexcept {
  std::vector<std::uint8_t>().swap(state_->between);
  std::vector<std::uint8_t>().swap(state_->padded);
}

bool Resizer::supported(Filter filter, Arithmetic arithmetic, bool) {
  if (is_pillow(arithmetic)) return filter != Filter::nearest_exact;
  if (is_nearest(filter)) return true;
  return arithmetic == Arithmetic::torch_u8 && (filter == Filter::bilinear || filter == Filter::bicubic);
}

Box Resizer::needed(int full_width, int full_height, int out_width, int out_height, Filter filter,
                    Arithmetic arithmetic, bool antialias, Box window) {
  const Task task =
      make_task(full_width, full_height, out_width, out_height, filter, arithmetic, antialias, window);
  if (!valid(task)) return {};
  const Span x = source_span(task.x), y = source_span(task.y);
  return {x.first, y.first, x.first + x.count, y.first + y.count};
}

bool Resizer::resize(const ImagePart& src, int out_width, int out_height, Filter filter, Arithmetic arithmetic,
                     bool antialias, Box window, std::uint8_t* dst, std::ptrdiff_t dst_stride) noexcept {
  try {
    const Task task =
        make_task(src.full_width, src.full_height, out_width, out_height, filter, arithmetic, antialias, window);
    if (!valid(src) || !valid(task) || dst == nullptr) return false;
    const Span columns = source_span(task.x), used = source_span(task.y);
    if (!holds(src, columns, used)) return false;
    const View view = view_of(src, columns, used);
    if (is_nearest(filter)) {
      state_->nearest(task, view, dst, dst_stride);
      return true;
    }
    if (!state_->prepare(task)) return false;
    state_->fixed_point(task, view, dst, dst_stride);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::length_error&) {
    return false;
  }
}

}  // namespace penstock
