// A store that is slow: another folder, mounted through /dev/fuse, where each open and each read takes a time, as many of
// them at once as there are threads. Reads bypass the page cache (FOPEN_DIRECT_IO); names and sizes are remembered by
// the kernel. Source: Linux, include/uapi/linux/fuse.h. Needs root; ends with SIGTERM or its parent.
//
//   slow_store FOLDER MOUNTED_AT MILLISECONDS THREADS
#include <dirent.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

constexpr std::size_t kMaxRead = 1 << 20;

struct Store {
    int device = -1;
    int folder = -1;
    std::chrono::milliseconds delay{0};
    std::vector<std::string> names;  // node i + 2 is names[i]; node 1 is the folder
    std::unordered_map<std::string, std::uint64_t> nodes;
};

void reply(const Store& store, const fuse_in_header& asked, int error, const void* data = nullptr, std::size_t size = 0) {
    fuse_out_header head{static_cast<std::uint32_t>(sizeof head + size), -error, asked.unique};
    const iovec parts[2] = {{&head, sizeof head}, {const_cast<void*>(data), size}};
    static_cast<void>(!writev(store.device, parts, size > 0 ? 2 : 1));
}

int attributes(const Store& store, std::uint64_t node, fuse_attr& out) {
    struct stat found {};
    const bool there = node == 1 ? fstat(store.folder, &found) == 0
                                 : fstatat(store.folder, store.names[node - 2].c_str(), &found, 0) == 0;
    if (!there) return errno;
    out = {};
    out.ino = node;
    out.size = static_cast<std::uint64_t>(found.st_size);
    out.blocks = static_cast<std::uint64_t>(found.st_blocks);
    out.mtime = static_cast<std::uint64_t>(found.st_mtime);
    out.mode = found.st_mode;
    out.nlink = 1;
    out.blksize = 4096;
    return 0;
}

void serve(const Store& store) {
    std::vector<char> request(kMaxRead + 65536), data(kMaxRead);
    while (true) {
        const ssize_t got = read(store.device, request.data(), request.size());
        if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) continue;
        if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) return;  // unmounted
        fuse_in_header asked;
        std::memcpy(&asked, request.data(), sizeof asked);
        const char* body = request.data() + sizeof asked;
        switch (asked.opcode) {
            case FUSE_INIT: {
                fuse_init_in in{};
                std::memcpy(&in, body, std::min(sizeof in, static_cast<std::size_t>(got) - sizeof asked));
                fuse_init_out out{};
                out.major = FUSE_KERNEL_VERSION;
                out.minor = FUSE_KERNEL_MINOR_VERSION;
                out.flags = in.flags & (FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES);
                out.max_pages = kMaxRead / 4096;
                out.max_background = 256;
                out.congestion_threshold = 192;
                out.max_write = 4096;
                out.max_readahead = in.max_readahead;
                reply(store, asked, 0, &out, sizeof out);
                break;
            }
            case FUSE_LOOKUP: {
                const auto found = store.nodes.find(body);
                fuse_entry_out out{};
                if (asked.nodeid != 1 || found == store.nodes.end()) {
                    reply(store, asked, ENOENT);
                } else {
                    out.nodeid = found->second;
                    out.entry_valid = out.attr_valid = 3600;
                    const int error = attributes(store, out.nodeid, out.attr);
                    reply(store, asked, error, &out, error == 0 ? sizeof out : 0);
                }
                break;
            }
            case FUSE_GETATTR: {
                fuse_attr_out out{};
                out.attr_valid = 3600;
                const int error = attributes(store, asked.nodeid, out.attr);
                reply(store, asked, error, &out, error == 0 ? sizeof out : 0);
                break;
            }
            case FUSE_OPEN: {
                std::this_thread::sleep_for(store.delay);
                fuse_open_out out{};
                const int file = openat(store.folder, store.names[asked.nodeid - 2].c_str(), O_RDONLY | O_CLOEXEC);
                out.fh = static_cast<std::uint64_t>(file);
                out.open_flags = FOPEN_DIRECT_IO;
                reply(store, asked, file < 0 ? errno : 0, &out, file < 0 ? 0 : sizeof out);
                break;
            }
            case FUSE_READ: {
                std::this_thread::sleep_for(store.delay);
                fuse_read_in in{};
                std::memcpy(&in, body, sizeof in);
                const ssize_t bytes = pread(static_cast<int>(in.fh), data.data(), std::min<std::size_t>(in.size, kMaxRead),
                                            static_cast<off_t>(in.offset));
                reply(store, asked, bytes < 0 ? errno : 0, data.data(), bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
                break;
            }
            case FUSE_RELEASE: {
                fuse_release_in in{};
                std::memcpy(&in, body, sizeof in);
                close(static_cast<int>(in.fh));
                reply(store, asked, 0);
                break;
            }
            case FUSE_FORGET:
            case FUSE_BATCH_FORGET:
            case FUSE_INTERRUPT:
                break;  // they have no answer
            default:
                reply(store, asked, ENOSYS);
        }
    }
}

}  // namespace

int main(int count, char** given) {
    if (count != 5) return 2;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    Store store;
    store.folder = open(given[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    store.device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    store.delay = std::chrono::milliseconds(std::atoi(given[3]));
    DIR* const listing = opendir(given[1]);
    if (store.folder < 0 || store.device < 0 || listing == nullptr) return std::perror("slow_store"), 1;
    while (const dirent* entry = readdir(listing)) {
        if (entry->d_name[0] == '.') continue;
        store.names.emplace_back(entry->d_name);
        store.nodes.emplace(entry->d_name, store.names.size() + 1);
    }
    closedir(listing);
    const std::string options =
        "fd=" + std::to_string(store.device) + ",rootmode=40000,user_id=0,group_id=0,allow_other,max_read=1048576";
    if (mount("slow_store", given[2], "fuse.slow_store", MS_RDONLY | MS_NOSUID | MS_NODEV, options.c_str()) != 0)
        return std::perror("mount"), 1;
    std::puts("mounted");
    std::fflush(stdout);
    std::vector<std::thread> threads;
    for (int i = 0; i < std::atoi(given[4]); ++i) threads.emplace_back(serve, std::cref(store));
    for (std::thread& thread : threads) thread.join();
    return 0;
}
