// Memory for the bytes of files that is used again: taken from the system anew, the kernel would clear each page.
//
// Threads: any thread may call any method. Memory: owns at most kMostKept bytes that nobody uses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace penstock {

class FileMemory {
 public:
  struct Piece {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;
  };

  FileMemory() { kept_.reserve(kMostPieces); }

  // At least so many bytes; none where there is no memory.
  Piece take(std::size_t size) {
    if (Piece piece = kept(size); fits(piece, size)) return piece;
    size = (size + kRounding - 1) / kRounding * kRounding;
    Piece piece{std::unique_ptr<std::uint8_t[]>(new (std::nothrow) std::uint8_t[size]), size};
    return piece.bytes ? std::move(piece) : Piece{};
  }

  void give_back(Piece piece) {
    const std::lock_guard hold(lock_);
    if (kept_bytes_ + piece.size > kMostKept || kept_.size() == kept_.capacity()) return;
    kept_bytes_ += piece.size;
    kept_.push_back(std::move(piece));
  }

 private:
  static bool fits(const Piece& piece, std::size_t size) { return piece.size >= size && piece.size / 2 <= size; }

  // The last of the kept pieces that is large enough, of the last few; else the last one, which is too small or too
  // large for the files that are read now.
  Piece kept(std::size_t size) {
    const std::lock_guard hold(lock_);
    if (kept_.empty()) return {};
    const std::size_t few = std::min(kept_.size(), kFew);
    const auto end = kept_.rbegin() + static_cast<std::ptrdiff_t>(few);
    const auto found = std::find_if(kept_.rbegin(), end, [size](const Piece& piece) { return fits(piece, size); });
    if (found != end) std::swap(*found, kept_.back());
    Piece piece = std::move(kept_.back());
    kept_.pop_back();
    kept_bytes_ -= piece.size;
    return piece;
  }

  static constexpr std::size_t kMostKept = std::size_t{16} << 20, kMostPieces = 1024, kRounding = 4096, kFew = 8;

  std::mutex lock_;
  std::vector<Piece> kept_;
  std::size_t kept_bytes_ = 0;
};

}  // namespace penstock
