// The files of a source: one root folder and a compact table of names inside it.
//
// Threads: any number of threads may call every const method at once; what changes is only which folder the
// root is (see refresh()).
// Memory: owns one byte arena with all names (NUL after each), 4 bytes a name of offsets, and one
// descriptor of the root folder, opened at the first open() and closed with the table. open()
// allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/file_table.h"
#include "files/outcome.h"
#include "files/unique_fd.h"

namespace penstock {

class PathTable final : public FileTable {
 public:
  // `names`: each name followed by one NUL. `suffix` is appended to a name when it is opened.
  // beneath = true: `root` is needed, first_bad_name(names) must find nothing, `suffix` holds no '/',
  // and open() refuses what leaves root, through symbolic links too.
  // beneath = false: names are resolved as openat() does; root may be empty, and names are then absolute
  // or relative to the current folder.
  // A relative root is bound to the current folder of this moment. Throws std::invalid_argument.
  PathTable(std::string root, std::string names, std::string suffix, bool beneath);
  ~PathTable() override;

  [[nodiscard]] std::size_t size() const noexcept override { return delta_.size(); }

  // Name i without the suffix, as a view into the table. Needs i < size().
  [[nodiscard]] std::string_view name(std::size_t i) const noexcept override;

  // Opens name i for reading (close-on-exec; does not block on a FIFO, does not take a terminal: the
  // reader must check that it got a regular file). An index past the end is io_error(EINVAL).
  [[nodiscard]] Outcome open(std::size_t i, UniqueFd& out) const noexcept;
  [[nodiscard]] Outcome open(std::size_t i, SampleFile& out) const noexcept override;

  // Looks whether `root` names another folder by now (it was deleted and made anew) and opens that one from
  // here on. Costs two system calls; open() itself keeps to the folder that it knows.
  void refresh() const;

  // root + '/' + name + suffix, joined as os.path.join does: for messages and for Python. Needs i < size().
  [[nodiscard]] std::string path(std::size_t i) const override;

  // The root bound to the current folder of construction: what another process needs.
  [[nodiscard]] const std::string& absolute_root() const noexcept { return absolute_root_; }
  [[nodiscard]] const std::string& names() const noexcept { return names_; }
  [[nodiscard]] const std::string& suffix() const noexcept { return suffix_; }
  [[nodiscard]] bool beneath() const noexcept { return beneath_; }

  // For tests, before the first open(): files are opened as on a kernel without openat2.
  void forgo_openat2() noexcept { openat2_ = false; }

 private:
  // The start of name i is base_[i / kGroup] + delta_[i].
  static constexpr std::size_t kGroup = std::size_t{1} << 16;

  void build_offsets();
  [[nodiscard]] std::size_t begin(std::size_t i) const noexcept { return base_[i / kGroup] + delta_[i]; }
  [[nodiscard]] Outcome root_fd(int& fd) const noexcept;

  std::string root_;           // as given
  std::string absolute_root_;  // what is opened
  std::string names_;
  std::string suffix_;
  bool beneath_;
  bool openat2_ = true;  // where the kernel has it
  std::vector<std::uint64_t> base_;
  std::vector<std::uint32_t> delta_;
  mutable std::atomic<int> root_fd_{-1};  // -1 until the first open(); owned
  mutable std::mutex refresh_lock_;
};

// Index of the first name that is empty, absolute or has a component '..'; nothing when all are good.
// `names`: each name followed by one NUL (a missing last NUL is taken as there).
[[nodiscard]] std::optional<std::size_t> first_bad_name(std::string_view names) noexcept;

}  // namespace penstock
