#include "files/path_table.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

namespace penstock {
namespace {

constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
constexpr int kFolderFlags = O_PATH | O_DIRECTORY | O_CLOEXEC;

// openat2(2) as Linux defines it since 5.6, spelled out because build images with older headers lack it.
constexpr long kOpenat2 = 437;
constexpr std::uint64_t kResolveNoSymlinks = 0x04;
constexpr std::uint64_t kResolveBeneath = 0x08;
struct OpenHow {
  std::uint64_t flags = 0;
  std::uint64_t mode = 0;
  std::uint64_t resolve = 0;
};

using PathBuffer = std::array<char, PATH_MAX>;

int openat_retrying(int folder, const char* path, int flags) noexcept {
  int fd;
  do fd = ::openat(folder, path, flags);
  while (fd < 0 && errno == EINTR);
  return fd;
}

// folder + '/' + name into the buffer with a NUL; false when it does not fit.
bool join_into(PathBuffer& buffer, std::string_view folder, std::string_view name) noexcept {
  if (folder.size() >= buffer.size() || name.size() >= buffer.size() - folder.size() - 1) return false;
  char* end = std::copy(folder.begin(), folder.end(), buffer.data());
  *end++ = '/';
  end = std::copy(name.begin(), name.end(), end);
  *end = '\0';
  return true;
}

// --- Opening beneath a folder. Each function returns 0 and the descriptor, or an errno. ---------------

int openat2_retrying(int root, const char* path, std::uint64_t resolve, UniqueFd& out) noexcept {
  OpenHow how;
  how.flags = kOpenFlags;
  how.resolve = resolve;
  // EAGAIN: a rename or mount elsewhere raced with a '..' of a symbolic link; the kernel asks to retry.
  for (int attempt = 0; attempt < 16;) {
    const long fd = ::syscall(kOpenat2, root, path, &how, sizeof how);
    if (fd >= 0) {
      out.reset(static_cast<int>(fd));
      return 0;
    }
    if (errno == EAGAIN) ++attempt;
    else if (errno != EINTR) return errno;
  }
  return EAGAIN;
}

// Whether the kernel and the sandbox know openat2 (Linux 5.6; older container runtimes answer EPERM).
bool have_openat2() noexcept {
  static const bool known = [] {
    OpenHow how;
    how.flags = O_PATH | O_CLOEXEC;
    const long fd = ::syscall(kOpenat2, AT_FDCWD, "/", &how, sizeof how);
    if (fd < 0) return errno != ENOSYS && errno != EPERM;
    UniqueFd(static_cast<int>(fd)).reset();
    return true;
  }();
  return known;
}

// Opens one component at a time and follows no symbolic link: ELOOP where there is one, EXDEV for '..'
// and absolute paths.
int open_components(int root, const char* path, UniqueFd& out) noexcept {
  if (*path == '/') return EXDEV;
  std::array<char, NAME_MAX + 1> part;
  UniqueFd folder;
  while (true) {
    const std::size_t length = std::strcspn(path, "/");
    if (length >= part.size()) return ENAMETOOLONG;
    std::copy_n(path, length, part.data());
    part[length] = '\0';
    path += length;
    path += std::strspn(path, "/");
    if (std::strcmp(part.data(), "..") == 0) return EXDEV;
    const int at = folder ? folder.get() : root;
    const bool last = *path == '\0';
    UniqueFd next(openat_retrying(at, part.data(), (last ? kOpenFlags : kFolderFlags) | O_NOFOLLOW));
    // With O_DIRECTORY a symbolic link answers ENOTDIR: resolving the whole path tells it from a file.
    if (!next) return !last && errno == ENOTDIR ? ELOOP : errno;
    (last ? out : folder) = std::move(next);
    if (last) return 0;
  }
}

// For names on whose way is a symbolic link that the quick ways refuse, such as an absolute link to
// a place inside root. What is opened in the end is a path without symbolic links beneath the root
// descriptor: a link changed in between can make this fail, never leave root.
Outcome open_resolved(int root, const std::string& root_path, const char* path, bool openat2, UniqueFd& out) noexcept {
  PathBuffer joined;
  PathBuffer real_root;
  PathBuffer real;
  if (!join_into(joined, root_path, path)) return Outcome::io_error(ENAMETOOLONG, "open");
  if (::realpath(root_path.c_str(), real_root.data()) == nullptr) return Outcome::io_error(errno, "realpath");
  if (::realpath(joined.data(), real.data()) == nullptr) return Outcome::io_error(errno, "realpath");
  std::string_view inside(real.data());
  std::string_view prefix(real_root.data());
  if (prefix == "/") prefix = {};
  if (!inside.starts_with(prefix) || (inside.size() > prefix.size() && inside[prefix.size()] != '/'))
    return Outcome::escape("a symbolic link leads out of the root folder");
  inside.remove_prefix(std::min(prefix.size() + 1, inside.size()));
  const char* rest = inside.empty() ? "." : inside.data();  // ends where `real` ends: with its NUL
  const int error = openat2 ? openat2_retrying(root, rest, kResolveBeneath | kResolveNoSymlinks, out)
                            : open_components(root, rest, out);
  return error == 0 ? Outcome::success() : Outcome::io_error(error, "open");
}

Outcome open_beneath(int root, const std::string& root_path, const char* path, bool openat2, UniqueFd& out) noexcept {
  if (std::strchr(path, '/') == nullptr && std::strcmp(path, "..") != 0) {
    // A name directly in root that is not a link cannot lead out of it: the quickest way, on any kernel.
    out = UniqueFd(openat_retrying(root, path, kOpenFlags | O_NOFOLLOW));
    if (out) return Outcome::success();
    if (errno != ELOOP) return Outcome::io_error(errno, "open");
  }
  int error = ENOSYS;
  if (openat2) error = openat2_retrying(root, path, kResolveBeneath, out);
  if (error == ENOSYS) error = open_components(root, path, out);
  if (error == 0) return Outcome::success();
  if (error == EXDEV || error == ELOOP || error == EAGAIN) return open_resolved(root, root_path, path, openat2, out);
  return Outcome::io_error(error, "open");
}

std::string make_absolute(const std::string& root) {
  if (root.empty() || root.front() == '/') return root;
  PathBuffer here;
  if (::getcwd(here.data(), here.size()) == nullptr) return root;  // a removed folder: open() will say so
  return std::string(here.data()) + '/' + root;
}

// Whether a name is empty, absolute or has a component '..'.
bool is_bad(std::string_view name) noexcept {
  if (name.empty() || name.front() == '/') return true;
  for (std::size_t at = name.find(".."); at != name.npos; at = name.find("..", at + 1))
    if ((at == 0 || name[at - 1] == '/') && (at + 2 == name.size() || name[at + 2] == '/')) return true;
  return false;
}

}  // namespace

std::optional<std::size_t> first_bad_name(std::string_view names) noexcept {
  for (std::size_t i = 0; !names.empty(); ++i) {
    const std::size_t end = std::min(names.find('\0'), names.size());
    if (is_bad(names.substr(0, end))) return i;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return std::nullopt;
}

PathTable::PathTable(std::string root, std::string names, std::string suffix, bool beneath)
    : root_(std::move(root)),
      absolute_root_(make_absolute(root_)),
      names_(std::move(names)),
      suffix_(std::move(suffix)),
      beneath_(beneath) {
  if (root_.find('\0') != std::string::npos) throw std::invalid_argument("root holds a NUL byte");
  if (suffix_.find('\0') != std::string::npos) throw std::invalid_argument("suffix holds a NUL byte");
  if (!names_.empty() && names_.back() != '\0')
    throw std::invalid_argument("names must end with a NUL byte: each name is followed by one");
  if (beneath_) {
    if (root_.empty()) throw std::invalid_argument("root is empty: a table beneath a root needs one");
    if (suffix_.find('/') != std::string::npos) throw std::invalid_argument("suffix holds a '/'");
    if (const auto bad = first_bad_name(names_))
      throw std::invalid_argument("name " + std::to_string(*bad) + " is empty, absolute or has a component '..'");
  }
  build_offsets();
}

PathTable::~PathTable() { UniqueFd(root_fd_.load()).reset(); }

void PathTable::build_offsets() {
  const auto count = static_cast<std::size_t>(std::count(names_.begin(), names_.end(), '\0'));
  delta_.resize(count);
  base_.reserve((count + kGroup - 1) / kGroup);
  std::size_t start = 0;
  for (std::size_t i = 0; i < count; ++i, start = names_.find('\0', start) + 1) {
    if (i % kGroup == 0) base_.push_back(start);
    if (start - base_.back() > std::numeric_limits<std::uint32_t>::max())
      throw std::invalid_argument("65,536 names in a row take more than 4 GiB");
    delta_[i] = static_cast<std::uint32_t>(start - base_.back());
  }
}

std::string_view PathTable::name(std::size_t i) const noexcept {
  const std::size_t first = begin(i);
  const std::size_t next = i + 1 < size() ? begin(i + 1) : names_.size();
  return {names_.data() + first, next - 1 - first};
}

std::string PathTable::path(std::size_t i) const {
  const std::string_view tail = name(i);
  std::string joined;
  joined.reserve(root_.size() + 1 + tail.size() + suffix_.size());
  if (!tail.starts_with('/')) joined = root_;
  if (!joined.empty() && joined.back() != '/') joined += '/';
  joined += tail;
  joined += suffix_;
  return joined;
}

// A failure is not kept: a root that is mounted later is found later.
Outcome PathTable::root_fd(int& fd) const noexcept {
  fd = root_fd_.load(std::memory_order_acquire);
  if (fd >= 0) return Outcome::success();
  UniqueFd opened(openat_retrying(AT_FDCWD, absolute_root_.c_str(), kFolderFlags));
  if (!opened) return Outcome::io_error(errno, "open of the root folder");
  if (root_fd_.compare_exchange_strong(fd, opened.get(), std::memory_order_acq_rel)) fd = opened.release();
  return Outcome::success();
}

void PathTable::refresh() const {
  const std::lock_guard hold(refresh_lock_);
  const int known = root_fd_.load(std::memory_order_acquire);
  struct stat held {}, named {};
  if (known < 0 || ::fstat(known, &held) != 0 || ::stat(absolute_root_.c_str(), &named) != 0) return;
  if (held.st_dev == named.st_dev && held.st_ino == named.st_ino) return;
  const UniqueFd opened(openat_retrying(AT_FDCWD, absolute_root_.c_str(), kFolderFlags));
  if (!opened) return;
  // The number stays, and means the new folder from one moment to the next: a thread that is about to use it opens
  // its file in either. Where that fails, the known folder is kept.
  while (::dup3(opened.get(), known, O_CLOEXEC) < 0 && (errno == EINTR || errno == EBUSY)) {
  }
}

Outcome PathTable::open(std::size_t i, UniqueFd& out) const noexcept {
  if (i >= size()) return Outcome::io_error(EINVAL, "open");
  PathBuffer buffer;
  const char* path = names_.data() + begin(i);  // ends with its NUL
  if (!suffix_.empty()) {
    const std::string_view stem = name(i);
    if (stem.size() >= buffer.size() || suffix_.size() >= buffer.size() - stem.size())
      return Outcome::io_error(ENAMETOOLONG, "open");
    char* end = std::copy(stem.begin(), stem.end(), buffer.data());
    *std::copy(suffix_.begin(), suffix_.end(), end) = '\0';
    path = buffer.data();
  }
  int folder = AT_FDCWD;
  if (!root_.empty())
    if (const Outcome outcome = root_fd(folder); !outcome.ok()) return outcome;
  if (beneath_) return open_beneath(folder, absolute_root_, path, openat2_ && have_openat2(), out);
  UniqueFd fd(openat_retrying(folder, path, kOpenFlags));
  if (!fd) return Outcome::io_error(errno, "open");
  out = std::move(fd);
  return Outcome::success();
}

Outcome PathTable::open(std::size_t i, SampleFile& out) const noexcept {
  UniqueFd file;
  const Outcome outcome = open(i, file);
  if (outcome.ok()) out = SampleFile(std::move(file));
  return outcome;
}

}  // namespace penstock
