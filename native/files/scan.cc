#include "files/scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "files/unique_fd.h"

namespace penstock {
namespace {

// --- Order of names ----------------------------------------------------------------------------------

// The code point at `at`, as os.fsdecode gives it: a byte that is not UTF-8 is U+DC00 + byte.
char32_t next_code_point(std::string_view text, std::size_t& at) noexcept {
  const auto byte = [&](std::size_t k) {
    return k < text.size() ? static_cast<unsigned char>(text[k]) : static_cast<unsigned char>(0);
  };
  const auto tail = [](unsigned char b) { return (b & 0xC0u) == 0x80u; };
  const unsigned char a = byte(at), b = byte(at + 1), c = byte(at + 2), d = byte(at + 3);
  if (a < 0x80) return ++at, a;
  if (a >= 0xC2 && a <= 0xDF && tail(b)) return at += 2, (a & 0x1Fu) << 6 | (b & 0x3Fu);
  if (a >= 0xE0 && a <= 0xEF && tail(b) && tail(c) && !(a == 0xE0 && b < 0xA0) && !(a == 0xED && b > 0x9F))
    return at += 3, (a & 0x0Fu) << 12 | (b & 0x3Fu) << 6 | (c & 0x3Fu);
  if (a >= 0xF0 && a <= 0xF4 && tail(b) && tail(c) && tail(d) && !(a == 0xF0 && b < 0x90) &&
      !(a == 0xF4 && b > 0x8F))
    return at += 4, (a & 0x07u) << 18 | (b & 0x3Fu) << 12 | (c & 0x3Fu) << 6 | (d & 0x3Fu);
  return ++at, 0xDC00u + a;
}

// Whether Python sorts str(a) before str(b). Bytes decide as long as the first difference is ASCII.
bool sorts_before(std::string_view a, std::string_view b) noexcept {
  const std::size_t common = std::min(a.size(), b.size());
  const auto [x, y] = std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(common), b.begin());
  const bool high_a = x != a.end() && static_cast<unsigned char>(*x) >= 0x80;
  const bool high_b = y != b.end() && static_cast<unsigned char>(*y) >= 0x80;
  if (!high_a && !high_b) {
    if (x == a.end() || y == b.end()) return a.size() < b.size();
    return *x < *y;
  }
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const char32_t p = next_code_point(a, i), q = next_code_point(b, k);
    if (p != q) return p < q;
    if (i >= a.size() || k >= b.size()) return i >= a.size() && k < b.size();
  }
  return a.empty() && !b.empty();
}

// Sorts names that have a NUL after each.
template <class Before>
void sort_names(std::string& names, Before before) {
  std::vector<std::string_view> views;
  for (std::size_t at = 0; at < names.size(); at += views.back().size() + 1) views.emplace_back(names.data() + at);
  std::sort(views.begin(), views.end(), before);
  std::string sorted;
  sorted.reserve(names.size());
  for (const std::string_view view : views) sorted.append(view).push_back('\0');
  names = std::move(sorted);
}

// --- Reading one folder ------------------------------------------------------------------------------

FolderStamp stamp_of(const struct stat& st) noexcept {
  if (!S_ISDIR(st.st_mode)) return {};
  const auto ns = [](const timespec& t) { return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; };
  return {ns(st.st_mtim), ns(st.st_ctim), st.st_ino, st.st_dev};
}

enum class Kind : std::uint8_t { file, folder, link, other };  // link: to anything but a folder

// What an entry is when symbolic links are followed; many network file systems give no d_type.
Kind kind_of(int folder, const char* name, unsigned char type) noexcept {
  struct stat st {};
  if (type == DT_UNKNOWN) {
    if (::fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return Kind::other;
    type = static_cast<unsigned char>(IFTODT(st.st_mode));
  }
  if (type == DT_DIR) return Kind::folder;
  if (type == DT_REG) return Kind::file;
  if (type != DT_LNK) return Kind::other;
  return ::fstatat(folder, name, &st, 0) == 0 && S_ISDIR(st.st_mode) ? Kind::folder : Kind::link;
}

struct CloseDir {
  void operator()(DIR* dir) const noexcept { ::closedir(dir); }
};

// One open folder and its stamp of before any entry was read.
class Folder {
 public:
  [[nodiscard]] Outcome open(int at, const char* path) noexcept {
    UniqueFd fd;
    do fd.reset(::openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK));
    while (!fd && errno == EINTR);
    struct stat st {};
    if (!fd || ::fstat(fd.get(), &st) != 0) return Outcome::io_error(errno, "open");
    stamp = stamp_of(st);
    dir_.reset(::fdopendir(fd.get()));
    if (!dir_) return Outcome::io_error(errno, "fdopendir");
    fd_ = fd.release();  // dir_ closes it
    return Outcome::success();
  }

  // Calls visit(name, d_type) for each entry but '.' and '..'.
  template <class Visit>
  [[nodiscard]] Outcome list(Visit&& visit) {
    while (true) {
      errno = 0;
      const dirent* entry = ::readdir(dir_.get());
      if (entry == nullptr) return errno == 0 ? Outcome::success() : Outcome::io_error(errno, "readdir");
      const char* name = entry->d_name;
      if (std::strcmp(name, ".") != 0 && std::strcmp(name, "..") != 0) visit(name, entry->d_type);
    }
  }

  [[nodiscard]] int fd() const noexcept { return fd_; }
  FolderStamp stamp;

 private:
  std::unique_ptr<DIR, CloseDir> dir_;
  int fd_ = -1;
};

// --- The scan ----------------------------------------------------------------------------------------

// A folder of a class: made and queued under the scanner's lock, filled in by one thread.
struct Node {
  const Node* parent;  // none for a class folder
  std::string path;    // relative to root
  std::size_t label;
  FolderStamp stamp{};
  std::string files{};                 // sorted, a NUL after each
  std::int64_t count = 0;              // of files
  std::vector<std::string> links{};    // paths of symbolic links that are neither files nor folders of the set
};

class Scanner {
 public:
  Scanner(int root, const std::vector<std::string>& extensions) : root_(root), extensions_(extensions) {}

  void add(const Node* parent, std::string path, std::size_t label) {
    todo_.push_back(&nodes_.emplace_back(Node{parent, std::move(path), label}));
    ++unfinished_;
  }

  void run(int threads, const std::function<bool()>& cancelled) {
    std::vector<std::jthread> crew;
    try {
      for (int i = 0; i < threads; ++i) crew.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // no more threads to be had: those that started do the work
      if (crew.empty()) return work();
    }
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(100), [this] { return done(); })) {
      lock.unlock();
      const bool stop = cancelled();
      lock.lock();
      if (stop) fail(Outcome::io_error(EINTR, "scan"), nullptr);
    }
  }

  // After run(). Nodes in the order of the result: by class, then by path.
  std::vector<const Node*> sorted_nodes() const {
    std::vector<const Node*> order;
    order.reserve(nodes_.size());
    for (const Node& node : nodes_) order.push_back(&node);
    std::sort(order.begin(), order.end(), [](const Node* a, const Node* b) {
      return a->label != b->label ? a->label < b->label : sorts_before(a->path, b->path);
    });
    return order;
  }

  // After run().
  Outcome outcome;
  const Node* failed = nullptr;  // the folder that `outcome` is about, if it is about one

 private:
  [[nodiscard]] bool done() const { return unfinished_ == 0 || !outcome.ok(); }

  void fail(const Outcome& reason, const Node* node) noexcept {
    if (outcome.ok()) {
      outcome = reason;
      failed = node;
    }
    changed_.notify_all();
  }

  // Takes folders until none is left or in the making. The newest first: the queue stays short.
  void work() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return done() || !todo_.empty(); });
      if (done()) return;
      Node* node = todo_.back();
      todo_.pop_back();
      lock.unlock();
      std::vector<std::string> below;
      const Outcome read = read_node_safely(*node, below);
      lock.lock();
      if (!read.ok()) return fail(read, node);
      try {
        for (std::string& path : below) add(node, std::move(path), node->label);
      } catch (const std::bad_alloc&) {
        return fail(Outcome::io_error(ENOMEM, "scan"), nullptr);
      }
      --unfinished_;
      if (!below.empty() || unfinished_ == 0) changed_.notify_all();
    }
  }

  Outcome read_node_safely(Node& node, std::vector<std::string>& below) const noexcept {
    try {
      return read_node(node, below);
    } catch (const std::bad_alloc&) {
      return Outcome::io_error(ENOMEM, "scan");
    }
  }

  Outcome read_node(Node& node, std::vector<std::string>& below) const {
    Folder folder;
    if (const Outcome opened = folder.open(root_, node.path.c_str()); !opened.ok()) return opened;
    node.stamp = folder.stamp;
    for (const Node* above = node.parent; above != nullptr; above = above->parent)
      if (above->stamp.inode == node.stamp.inode && above->stamp.device == node.stamp.device)
        return Outcome::success();  // a link back to a folder above
    const Outcome listed = folder.list([&](const char* name, unsigned char type) {
      const Kind kind = kind_of(folder.fd(), name, type);
      if (kind == Kind::folder) {
        below.push_back(node.path + '/' + name);
      } else if (has_extension(name)) {
        node.files.append(name).push_back('\0');
        ++node.count;
      } else if (kind == Kind::link) {
        node.links.push_back(node.path + '/' + name);
      }
    });
    sort_names(node.files, sorts_before);
    return listed;
  }

  // str.lower() makes no ASCII letter of these extensions out of another one but A-Z.
  [[nodiscard]] bool has_extension(std::string_view name) const noexcept {
    const auto same = [](char b, char a) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b; };
    return std::any_of(extensions_.begin(), extensions_.end(), [&](const std::string& extension) {
      return name.size() >= extension.size() &&
             std::equal(extension.rbegin(), extension.rend(), name.rbegin(), same);
    });
  }

  const int root_;
  const std::vector<std::string>& extensions_;
  std::mutex mutex_;  // of all below, outcome and failed
  std::condition_variable changed_;
  std::deque<Node> nodes_;  // addresses stay valid
  std::vector<Node*> todo_;
  std::size_t unfinished_ = 0;
};

std::int64_t wall_clock_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void collect(const std::vector<const Node*>& nodes, Scan& scan) {
  const auto add_folder = [&](const std::string& path, const FolderStamp& stamp) {
    scan.folders.append(path).push_back('\0');
    scan.stamps.push_back(stamp);
  };
  std::size_t bytes = 0;
  for (const Node* node : nodes)
    bytes += node->files.size() + static_cast<std::size_t>(node->count) * (node->path.size() + 1);
  scan.names.reserve(bytes);
  for (const Node* node : nodes) {
    scan.counts[node->label] += node->count;
    add_folder(node->path, node->stamp);
    for (const std::string& link : node->links) add_folder(link, {});
    for (std::size_t at = 0; at < node->files.size();) {
      const std::string_view file(node->files.data() + at);
      scan.names.append(node->path).append(1, '/').append(file).push_back('\0');
      at += file.size() + 1;
    }
  }
}

}  // namespace

Scan scan_image_folder(const std::string& root, const std::vector<std::string>& extensions, int threads,
                       const std::function<bool()>& cancelled) {
  Scan scan;
  scan.started_ns = wall_clock_ns();
  Folder top;
  std::string links;
  scan.outcome = top.open(AT_FDCWD, root.c_str());
  if (scan.outcome.ok()) {
    scan.folders.assign(1, '.').push_back('\0');
    scan.stamps.push_back(top.stamp);
    scan.outcome = top.list([&](const char* name, unsigned char type) {
      const Kind kind = kind_of(top.fd(), name, type);
      if (kind == Kind::folder) scan.classes.append(name).push_back('\0');
      if (kind == Kind::link) links.append(name).push_back('\0');
    });
  }
  if (!scan.outcome.ok()) {
    scan.where = root;
    return scan;
  }
  scan.stamps.resize(1 + static_cast<std::size_t>(std::count(links.begin(), links.end(), '\0')));
  scan.folders += links;
  sort_names(scan.classes, sorts_before);

  Scanner scanner(top.fd(), extensions);
  for (std::size_t at = 0; at < scan.classes.size(); at += std::strlen(scan.classes.data() + at) + 1) {
    scanner.add(nullptr, scan.classes.data() + at, scan.counts.size());
    scan.counts.push_back(0);
  }
  scanner.run(std::max(threads, 1), cancelled);
  scan.outcome = scanner.outcome;
  if (scan.outcome.ok())
    collect(scanner.sorted_nodes(), scan);
  else
    scan.where = scanner.failed == nullptr ? root : root + '/' + scanner.failed->path;
  return scan;
}

bool folders_unchanged(const std::string& root, std::string_view folders, std::span<const FolderStamp> stamps,
                       int threads) {
  constexpr std::size_t kChunk = 64;
  if (folders.empty() || folders.back() != '\0') return false;
  std::vector<const char*> paths;
  paths.reserve(stamps.size());
  for (std::size_t at = 0; at < folders.size(); at += std::strlen(folders.data() + at) + 1) {
    if (paths.size() == stamps.size()) return false;
    paths.push_back(folders.data() + at);
  }
  if (paths.size() != stamps.size()) return false;
  UniqueFd top(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top) return false;

  std::atomic<std::size_t> next{0};
  std::atomic<bool> same{true};
  const auto work = [&] {
    for (std::size_t first; same && (first = next.fetch_add(kChunk)) < paths.size();) {
      for (std::size_t i = first; i < std::min(first + kChunk, paths.size()); ++i) {
        struct stat st {};
        const bool found = ::fstatat(top.get(), paths[i], &st, 0) == 0;
        if ((found ? stamp_of(st) : FolderStamp{}) != stamps[i]) same = false;
      }
    }
  };
  std::vector<std::jthread> crew;
  const std::size_t helpers = std::min(static_cast<std::size_t>(std::max(threads, 1)), paths.size() / kChunk + 1) - 1;
  try {
    for (std::size_t i = 0; i < helpers; ++i) crew.emplace_back(work);
  } catch (const std::system_error&) {  // this thread does the rest
  }
  work();
  crew.clear();
  return same;
}

Listing list_folder(const std::string& root, std::string_view suffix) {
  Listing listing;
  Folder folder;
  listing.outcome = folder.open(AT_FDCWD, root.c_str());
  if (!listing.outcome.ok()) return listing;
  listing.outcome = folder.list([&](const char* entry, unsigned char type) {
    const std::string_view name(entry);
    if (name.size() <= suffix.size() || !name.ends_with(suffix)) return;
    const Kind kind = kind_of(folder.fd(), entry, type);
    if (kind == Kind::file || kind == Kind::link)
      listing.names.append(name.substr(0, name.size() - suffix.size())).push_back('\0');
  });
  sort_names(listing.names, std::less<std::string_view>());
  return listing;
}

}  // namespace penstock
