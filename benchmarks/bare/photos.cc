// The bare limit of RandomResizedCrop on JPEG files: read the file, decode only the crop (no resize, no flip).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <random>

#include <jpeglib.h>

#include "gather.h"

namespace {

struct Errors {
    jpeg_error_mgr base;
    std::jmp_buf back;
};

struct Box {
    unsigned left, top, width, height;
};

// torchvision's RandomResizedCrop.get_params with its default scale and ratio; a centre crop after 10 misses.
Box draw(std::mt19937_64& random, unsigned width, unsigned height) {
    std::uniform_real_distribution<double> scale(0.08, 1.0);
    std::uniform_real_distribution<double> log_ratio(std::log(3.0 / 4.0), std::log(4.0 / 3.0));
    for (int attempt = 0; attempt < 10; ++attempt) {
        const double area = scale(random) * width * height;
        const double ratio = std::exp(log_ratio(random));
        const auto w = static_cast<unsigned>(std::lround(std::sqrt(area * ratio)));
        const auto h = static_cast<unsigned>(std::lround(std::sqrt(area / ratio)));
        if (w == 0 || h == 0 || w > width || h > height) continue;
        return {std::uniform_int_distribution<unsigned>(0, width - w)(random),
                std::uniform_int_distribution<unsigned>(0, height - h)(random), w, h};
    }
    const unsigned side = std::min(width, height);
    return {(width - side) / 2, (height - side) / 2, side, side};
}

// Decodes the box's rows into `line`, one after the other; false when libjpeg refuses the file.
bool decode(std::vector<std::uint8_t>& bytes, std::size_t size, std::vector<std::uint8_t>& line,
            std::mt19937_64& random) {
    jpeg_decompress_struct jpeg;
    Errors errors;
    jpeg.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = [](j_common_ptr common) { std::longjmp(reinterpret_cast<Errors*>(common->err)->back, 1); };
    errors.base.output_message = [](j_common_ptr) {};
    jpeg_create_decompress(&jpeg);
    if (setjmp(errors.back)) {
        jpeg_destroy_decompress(&jpeg);
        return false;
    }
    jpeg_mem_src(&jpeg, bytes.data(), size);
    jpeg_read_header(&jpeg, TRUE);
    jpeg.out_color_space = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&jpeg);
    const Box box = draw(random, jpeg.output_width, jpeg.output_height);
    JDIMENSION left = box.left, width = box.width;
    jpeg_crop_scanline(&jpeg, &left, &width);
    const std::size_t row = static_cast<std::size_t>(jpeg.output_width) * jpeg.output_components;
    line.resize(std::max(line.size(), row * box.height));
    if (box.top > 0) jpeg_skip_scanlines(&jpeg, box.top);
    std::uint8_t* out = line.data();
    for (unsigned y = 0; y < box.height; ++y, out += row) jpeg_read_scanlines(&jpeg, &out, 1);
    jpeg_abort_decompress(&jpeg);
    jpeg_destroy_decompress(&jpeg);
    return true;
}

}  // namespace

// paths: n C strings of `stride` bytes each, below `folder`. Gives the photos decoded, -1 when the folder cannot be opened.
// The boxes that are drawn vary with the order.
extern "C" long photos(const std::int64_t* order, long n, long batch, long threads, const char* folder,
                       const char* paths, long stride) {
    static bare::Buffers buffers;
    const int root = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) return -1;
    struct Scratch {
        std::vector<std::uint8_t> bytes, line;
        std::mt19937_64 random;
    };
    std::vector<Scratch> scratch(static_cast<std::size_t>(threads));
    for (long t = 0; t < threads; ++t) scratch[t].random.seed(static_cast<std::uint64_t>(order[0] + t));
    const long done = bare::run(buffers, n, batch, 1, threads, [&](long thread, long i, std::uint8_t*) {
        Scratch& mine = scratch[thread];
        const int file = openat(root, paths + order[i] * stride, O_RDONLY | O_CLOEXEC);
        if (file < 0) return false;
        struct stat facts;
        ssize_t got = -1;
        if (fstat(file, &facts) == 0) {
            mine.bytes.resize(std::max(mine.bytes.size(), static_cast<std::size_t>(facts.st_size)));
            got = read(file, mine.bytes.data(), static_cast<std::size_t>(facts.st_size));
        }
        close(file);
        return got > 0 && decode(mine.bytes, static_cast<std::size_t>(got), mine.line, mine.random);
    });
    close(root);
    return done;
}
