#include "image/convert.h"

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace penstock {
namespace {

// ---- runs of one row: `count` source pixels, in order or reversed, to one place a channel ----

template <class T, int C, bool Reversed>
void lookup_planes(const std::uint8_t* src, int count, const T* table, const Planes<T>& dst) {
  for (int i = 0; i < count; ++i, src += C) {
    const int at = Reversed ? count - 1 - i : i;
    for (std::size_t c = 0; c < C; ++c) dst[c][at] = table[256 * c + src[c]];
  }
}

template <class T, int C, bool Reversed>
void lookup_pixels(const std::uint8_t* src, int count, const T* table, T* dst) {
  for (int i = 0; i < count; ++i, src += C) {
    T* const pixel = dst + std::ptrdiff_t{C} * (Reversed ? count - 1 - i : i);
    for (int c = 0; c < C; ++c) pixel[c] = table[256 * c + src[c]];
  }
}

// ---- a picture ----

// The elements of T in the output of one picture, or (C = 1) of its channel `first` in a planar output.
template <class T, int C>
class Writer {
 public:
  Writer(const Output& output, const ImagePart& part, const AxisMap& x, const AxisMap& y, std::uint8_t* row,
         int first = 0)
      : output_(output),
        part_(part),
        x_(x),
        y_(y),
        width_(x.size()),
        height_(y.size()),
        first_column_(x.sources(0, x.size()).from),
        planar_(output.layout == Layout::chw || C == 1),
        first_(static_cast<std::size_t>(first)),
        row_(reinterpret_cast<T*>(row) + std::ptrdiff_t{first} * width_ * height_),
        table_(reinterpret_cast<const T*>(output.table.data()) + (output.copy ? 0 : 256 * first_)) {}

  void affine() const {
    const bool edges = x_.before() > 0 || x_.after() > 0;
    // Narrow edges cost less when everything is filled first than one by one.
    const bool first = edges && width_ <= kNarrow && y_.count() > 0;
    if (first) fill_rows(0, height_, x_.before() > 0 ? x_.fill_before() : x_.fill_after());
    const bool uniform = !edges || fills_agree();
    if constexpr (std::is_same_v<T, std::uint8_t> && C == 1) {
      if (output_.copy && width_ >= NarrowPlane::kLeast && width_ <= NarrowPlane::kMost && fills_agree() && narrow())
        return;
    }
    for (int i = 0; i < height_; ++i) {
      const int source = y_.at(i);
      if (source < 0) {
        if (!first || !uniform) fill_row(i, -1 - source);
        continue;
      }
      if (edges && (!first || !uniform)) {
        fill_run(i, 0, x_.before(), x_.fill_before());
        fill_run(i, x_.before() + x_.count(), width_, x_.fill_after());
      }
      if (x_.count() > 0) run(source, i);
    }
  }

  void indexed(Indices& indices) const {
    indices.x.resize(static_cast<std::size_t>(width_));
    for (int j = 0; j < width_; ++j) indices.x[static_cast<std::size_t>(j)] = x_.at(j);
    for (int i = 0; i < height_; ++i) {
      const int source = y_.at(i);
      const std::uint8_t* const line = source < 0 ? nullptr : pixel(source, part_.x0);
      for (int j = 0; j < width_; ++j) {
        const int column = indices.x[static_cast<std::size_t>(j)];
        if (source < 0 || column < 0) {
          put_fill(i, j, std::max(source < 0 ? -1 - source : 0, column < 0 ? -1 - column : 0));
        } else {
          put_pixel(i, j, line + std::ptrdiff_t{C} * (column - part_.x0));
        }
      }
    }
  }

 private:
  static constexpr int kNarrow = 128;

  // All of a narrow plane at once; false where this processor cannot.
  [[nodiscard]] bool narrow() const {
    const bool rows = y_.count() > 0, columns = x_.count() > 0;
    const int k = x_.before() > 0 ? x_.fill_before() : x_.after() > 0 ? x_.fill_after()
                : y_.before() > 0 ? y_.fill_before() : y_.fill_after();
    const bool filled = width_ > x_.count() || height_ > y_.count();
    const int first_row = y_.count() > 0 ? y_.at(y_.before()) : part_.y0;
    const NarrowPlane plane{x_.before(), columns ? x_.count() : 0, x_.after(),
                            y_.before(), rows && columns ? y_.count() : 0, y_.after(),
                            x_.reversed(), filled ? static_cast<std::uint8_t>(fill(k, 0)) : std::uint8_t{0},
                            columns ? pixel(first_row, first_column_) : part_.data,
                            y_.reversed() ? -part_.row_stride : part_.row_stride,
                            part_.data, part_.data + part_.row_stride * (part_.height - 1) + part_.width};
    return rows && columns && copy_narrow(plane, row_);
  }

  // Whether all edges hold one fill.
  [[nodiscard]] bool fills_agree() const {
    const int fill = x_.before() > 0  ? x_.fill_before()
                     : x_.after() > 0 ? x_.fill_after()
                     : y_.before() > 0 ? y_.fill_before()
                                       : y_.fill_after();
    return (x_.after() == 0 || x_.fill_after() == fill) && (y_.before() == 0 || y_.fill_before() == fill) &&
           (y_.after() == 0 || y_.fill_after() == fill);
  }

  [[nodiscard]] const std::uint8_t* pixel(int y, int x) const {
    return part_.data + part_.row_stride * (y - part_.y0) + std::ptrdiff_t{C} * (x - part_.x0);
  }

  [[nodiscard]] T* place(int c, int i, int j) const {
    if (planar_) return row_ + (std::ptrdiff_t{c} * height_ + i) * width_ + j;
    return row_ + (std::ptrdiff_t{i} * width_ + j) * C + c;
  }

  [[nodiscard]] T fill(int k, int c) const {
    T value;
    std::memcpy(&value, &output_.fills[static_cast<std::size_t>(k)].element[first_ + static_cast<std::size_t>(c)],
                sizeof value);
    return value;
  }

  void put_fill(int i, int j, int k) const {
    for (int c = 0; c < C; ++c) *place(c, i, j) = fill(k, c);
  }

  void put_pixel(int i, int j, const std::uint8_t* source) const {
    for (int c = 0; c < C; ++c)
      *place(c, i, j) = output_.copy ? static_cast<T>(source[c]) : table_[256 * c + source[c]];
  }

  // Positions [from, to) of output row i become fill k.
  void fill_run(int i, int from, int to, int k) const {
    if (from >= to) return;
    if (planar_) {
      for (int c = 0; c < C; ++c) std::fill_n(place(c, i, from), to - from, fill(k, c));
    } else {
      for (int j = from; j < to; ++j) put_fill(i, j, k);
    }
  }

  void fill_rows(int from, int to, int k) const {
    if (planar_) {
      for (int c = 0; c < C; ++c) std::fill_n(place(c, from, 0), std::ptrdiff_t{to - from} * width_, fill(k, c));
    } else {
      for (int i = from; i < to; ++i) fill_run(i, 0, width_, k);
    }
  }

  // A row above or below the picture, in fill k of the y axis: of two fills the later operation's lies on top.
  void fill_row(int i, int k) const {
    fill_run(i, 0, x_.before(), std::max(k, x_.fill_before()));
    fill_run(i, x_.before(), x_.before() + x_.count(), k);
    fill_run(i, x_.before() + x_.count(), width_, std::max(k, x_.fill_after()));
  }

  // Output row i from source row y.
  void run(int y, int i) const {
    if (x_.reversed()) {
      run_in_order<true>(pixel(y, first_column_), i);
    } else {
      run_in_order<false>(pixel(y, first_column_), i);
    }
  }

  template <bool Reversed>
  void run_in_order(const std::uint8_t* src, int i) const {
    const int count = x_.count();
    if (!planar_) {
      T* const dst = place(0, i, x_.before());
      if constexpr (std::is_same_v<T, float> && C == 3) {
        if (output_.standard && count >= Standard::kLeastPixels) return output_.standard->pixels(src, count, Reversed, dst);
      }
      if (!output_.copy) return lookup_pixels<T, C, Reversed>(src, count, table_, dst);
      if constexpr (std::is_same_v<T, std::uint8_t> && !Reversed) {
        std::memcpy(dst, src, static_cast<std::size_t>(count) * C);
        return;
      }
      for (int j = 0; j < count; ++j)
        for (int c = 0; c < C; ++c) dst[C * (Reversed ? count - 1 - j : j) + c] = static_cast<T>(src[C * j + c]);
      return;
    }
    Planes<T> dst{};
    for (int c = 0; c < C; ++c) dst[static_cast<std::size_t>(c)] = place(c, i, x_.before());
    if constexpr (std::is_same_v<T, std::uint8_t>) {
      if (output_.copy) return split_planes(src, count, C, Reversed, dst);
    }
    if constexpr (std::is_same_v<T, float>) {
      if (output_.standard && count >= Standard::kLeast)
        return (C == 1 ? output_.standards[first_] : *output_.standard).planes(src, count, C, Reversed, dst);
    }
    lookup_planes<T, C, Reversed>(src, count, table_, dst);
  }

  const Output& output_;
  const ImagePart& part_;
  const AxisMap& x_;
  const AxisMap& y_;
  const int width_, height_;
  const int first_column_;  // the leftmost source position of an affine map
  const bool planar_;
  const std::size_t first_;
  T* const row_;
  const T* const table_;
};

template <class T>
void write_as(const Output& output, const ImagePart& part, const AxisMap& x, const AxisMap& y, std::uint8_t* row,
              Indices& indices) {
  const bool affine = x.affine() && y.affine();
  if (output.channels == 3) {
    const Writer<T, 3> writer(output, part, x, y, row);
    affine ? writer.affine() : writer.indexed(indices);
  } else {
    const Writer<T, 1> writer(output, part, x, y, row);
    affine ? writer.affine() : writer.indexed(indices);
  }
}

template <class T>
void write_planes_as(const Output& output, ImagePart part, std::ptrdiff_t plane_stride, const AxisMap& x,
                     const AxisMap& y, std::uint8_t* row, Indices& indices) {
  const bool affine = x.affine() && y.affine();
  for (int c = 0; c < output.channels; ++c, part.data += plane_stride) {
    const Writer<T, 1> writer(output, part, x, y, row, c);
    affine ? writer.affine() : writer.indexed(indices);
  }
}

// Calls write with a value of the type that holds one element.
template <class F>
void by_element(DType dtype, F write) {
  switch (info(dtype).size) {
    case 1: return write(std::uint8_t{});
    case 2: return write(std::uint16_t{});
    case 4: return dtype == DType::f32 ? write(float{}) : write(std::uint32_t{});
    default: return write(std::uint64_t{});
  }
}

}  // namespace

void find_standard(Output& output) {
  output.standard.reset();
  if (output.copy || output.dtype != DType::f32) return;
  std::vector<float> table(output.table.size() / sizeof(float));
  std::memcpy(table.data(), output.table.data(), output.table.size());
  if (Standard standard; standard.fit(table, output.channels)) {
    output.standard = standard;
    for (int c = 0; c < output.channels; ++c) output.standards[static_cast<std::size_t>(c)] = standard.of_channel(c);
  }
}

void write_output(const Output& output, const ImagePart& part, const AxisMap& x, const AxisMap& y, std::uint8_t* row,
                  Indices& indices) {
  by_element(output.dtype, [&](auto element) { write_as<decltype(element)>(output, part, x, y, row, indices); });
}

void write_planes(const Output& output, const ImagePart& part, std::ptrdiff_t plane_stride, const AxisMap& x,
                  const AxisMap& y, std::uint8_t* row, Indices& indices) {
  by_element(output.dtype, [&](auto element) {
    write_planes_as<decltype(element)>(output, part, plane_stride, x, y, row, indices);
  });
}

void interleave(const ImagePart& part, std::ptrdiff_t plane_stride, int channels, Box box, std::uint8_t* dst,
                std::ptrdiff_t dst_stride) {
  const int width = box.x1 - box.x0;
  for (int i = box.y0; i < box.y1; ++i, dst += dst_stride) {
    const std::uint8_t* const line = part.data + part.row_stride * (i - part.y0) + (box.x0 - part.x0);
    for (int c = 0; c < channels; ++c)
      for (int j = 0; j < width; ++j) dst[std::ptrdiff_t{channels} * j + c] = line[plane_stride * c + j];
  }
}

void close_up(const ImagePart& part, int spacing, Box box, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const int width = box.x1 - box.x0;
  for (int i = box.y0; i < box.y1; ++i, dst += dst_stride) {
    const std::uint8_t* line = part.data + part.row_stride * (i - part.y0) + std::ptrdiff_t{spacing} * (box.x0 - part.x0);
    std::uint8_t* pixel = dst;
    // Four bytes at a time: the next pixel is written over the fourth.
    for (int j = 0; j + 1 < width; ++j, line += spacing, pixel += 3) std::memcpy(pixel, line, 4);
    std::memcpy(pixel, line, 3);
  }
}

void materialise(const std::vector<Fill>& fills, const ImagePart& part, const AxisMap& x, const AxisMap& y, Box box,
                 std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const int channels = part.channels;
  for (int i = box.y0; i < box.y1; ++i, dst += dst_stride) {
    const int source = y.at(i);
    const std::uint8_t* const line = source < 0 ? nullptr : part.data + part.row_stride * (source - part.y0);
    std::uint8_t* pixel = dst;
    for (int j = box.x0; j < box.x1; ++j, pixel += channels) {
      const int column = x.at(j);
      const bool outside = source < 0 || column < 0;
      const int k = std::max(source < 0 ? -1 - source : 0, column < 0 ? -1 - column : 0);
      const std::uint8_t* const from =
          outside ? fills[static_cast<std::size_t>(k)].pixel.data() : line + std::ptrdiff_t{channels} * (column - part.x0);
      for (int c = 0; c < channels; ++c) pixel[c] = from[c];
    }
  }
}

void to_grayscale(const ImagePart& part, Box box, int out_channels, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const int width = box.x1 - box.x0;
  for (int i = box.y0; i < box.y1; ++i, dst += dst_stride) {
    const std::uint8_t* src =
        part.data + part.row_stride * (i - part.y0) + std::ptrdiff_t{part.channels} * (box.x0 - part.x0);
    std::uint8_t* pixel = dst;
    for (int j = 0; j < width; ++j, src += part.channels, pixel += out_channels) {
      std::uint8_t luma = src[0];
      if (part.channels == 3)
        luma = static_cast<std::uint8_t>((src[0] * 19595u + src[1] * 38470u + src[2] * 7471u + 0x8000u) >> 16);
      for (int c = 0; c < out_channels; ++c) pixel[c] = luma;
    }
  }
}

}  // namespace penstock
