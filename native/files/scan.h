// Listing folders: the scan behind ImageFolder, the check of its cache, and TensorFolder's listing.
//
// Threads: the functions may be called from any thread; scan_image_folder and folders_unchanged start
// threads and join them before they return. Memory: results own their bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/outcome.h"

namespace penstock {

// What identifies one state of a folder's list of entries; all zero where the path is not a folder. The
// change time is there because a program can set the modification time back, but not the change time.
struct FolderStamp {
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;
  std::uint64_t inode = 0;
  std::uint64_t device = 0;

  friend bool operator==(const FolderStamp&, const FolderStamp&) = default;
};

struct Scan {
  Outcome outcome;             // io: a folder could not be read, and the rest is empty; EINTR: cancelled
  std::string where;           // that folder
  std::string names;           // files relative to root, a NUL after each, in torchvision's order
  std::string classes;         // class folders, a NUL after each, sorted
  std::vector<std::int64_t> counts;  // files of each class; labels follow, as the files are in class order
  // Every folder listed, relative to root ("." is root), a NUL after each. Also each symbolic link that
  // is neither followed nor in `names`: its target can become a folder while its own folder stays the same.
  std::string folders;
  std::vector<FolderStamp> stamps;  // of each of `folders`, taken before it was listed
  std::int64_t started_ns = 0;      // wall clock before the first folder was opened
};

// The files that torchvision.datasets.ImageFolder finds in root, in its order: classes sorted by name;
// in a class, folders sorted by path and files by name, symbolic links followed. Names compare as
// Python strings (os.fsdecode) do. `extensions`: lower case ASCII with the dot. Two differences: a folder
// that cannot be read is an error (os.walk leaves it out), and a folder that is its own ancestor through
// a link is left out (os.walk goes around until ELOOP). `cancelled` is polled from the calling thread.
[[nodiscard]] Scan scan_image_folder(const std::string& root, const std::vector<std::string>& extensions,
                                     int threads, const std::function<bool()>& cancelled);

// True when each of `folders` (as in Scan) has its stamp still. Lists nothing: one stat() a folder.
[[nodiscard]] bool folders_unchanged(const std::string& root, std::string_view folders,
                                     std::span<const FolderStamp> stamps, int threads);

struct Listing {
  Outcome outcome;
  std::string names;  // without the suffix, a NUL after each, sorted by bytes
};

// The regular files and symbolic links of one folder (not of those below it) whose name ends in suffix.
[[nodiscard]] Listing list_folder(const std::string& root, std::string_view suffix);

}  // namespace penstock
