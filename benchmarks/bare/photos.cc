// The bare limit of RandomResizedCrop on JPEG files: read the file, decode only the crop (no resize, no flip).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "gather.h"
#include "libjpeg.h"

namespace {

using bare::Box;

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
        const auto drawn = [&](unsigned width, unsigned height) { return draw(mine.random, width, height); };
        return got > 0 && bare::decode(mine.bytes.data(), static_cast<std::size_t>(got), mine.line, drawn);
    });
    close(root);
    return done;
}
