// The machine's own file system, in a folder for temporary files.
#include "base/file_system.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <random>

#include "base/file.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using Bytes = std::vector<std::byte>;
using Mode = FileSystem::Mode;

FileSystem& files() { return system_file_system(); }

Bytes bytes_of(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

std::string text_of(const std::string& path) { return read_file(path, 1 << 20).value(); }

// Runs as another user while it lives, where the tests run as root: permissions do not bind root.
class OrdinaryUser {
 public:
  OrdinaryUser() : was_root_(::geteuid() == 0) {
    if (was_root_) REQUIRE(::seteuid(65534) == 0);
  }
  ~OrdinaryUser() {
    if (was_root_) CHECK(::seteuid(0) == 0);
  }

 private:
  const bool was_root_;
};

TEST_SUITE("base/file_system") {
  TEST_CASE("what is written is read back, up to the end of the file") {
    const TempFolder folder;
    const std::string path = folder.file("f");
    {
      const std::unique_ptr<File> file = files().open(path, Mode::kCreate).value();
      CHECK(file->write_at(3, bytes_of("abc")).ok());
      CHECK(file->write_at(0, bytes_of("xy")).ok());
      CHECK(file->write_at(0, {}).ok());
      CHECK(file->sync_data().ok());
      CHECK(file->size().value() == 6);
      Bytes out(4);
      CHECK(file->read_at(4, out).value() == 2);
      CHECK(out[1] == std::byte{'c'});
      CHECK(file->read_at(100, out).value() == 0);
      CHECK(file->resize(4).ok());
      CHECK(file->resize(5).ok());
    }
    CHECK(text_of(path) == std::string("xy\0a\0", 5));
    const std::unique_ptr<File> again = files().open(path, Mode::kReadWrite).value();
    CHECK(again->write_at(0, bytes_of("z")).ok());
    CHECK(text_of(path)[0] == 'z');
  }

  TEST_CASE("a file open for reading cannot be changed") {
    const TempFolder folder;
    const std::unique_ptr<File> file = files().open(folder.write("f", "old"), Mode::kRead).value();
    const Status failed = file->write_at(0, bytes_of("new"));
    CHECK(failed.code() == Code::kIO);
    CHECK(failed.os_error() == EBADF);
    CHECK_FALSE(file->resize(0).ok());
    CHECK(text_of(folder.file("f")) == "old");
  }

  TEST_CASE("a file written past the page cache and beside it in any order holds what a plain buffer holds") {
    const TempFolder folder;
    const std::unique_ptr<File> file = files().open(folder.file("f"), Mode::kCreateDirect).value();
    constexpr size_t kMost = 1 << 20, kPage = 4096;
    const std::unique_ptr<std::byte[], void (*)(std::byte*)> memory(
        static_cast<std::byte*>(::operator new (kMost + kPage, std::align_val_t{kPage})),
        [](std::byte* p) { ::operator delete (p, std::align_val_t{kPage}); });
    const std::span<std::byte> source(memory.get(), kMost + kPage);
    std::mt19937 random(7);
    for (std::byte& b : source) b = static_cast<std::byte>(random());
    Bytes expected;
    for (int i = 0; i < 200; ++i) {
      CAPTURE(i);
      // Half of the writes with all three aligned, the rest with any of them not.
      const auto place = [&](size_t most) {
        return random() % 4 == 0 ? random() % most : random() % most / kPage * kPage;
      };
      const size_t offset = place(kMost), n = 1 + place(kMost) + kPage - 1, begin = place(2 * kPage) % kPage;
      const size_t n_bytes = std::min(n, kMost);
      const std::span<const std::byte> bytes = source.subspan(begin, n_bytes);
      REQUIRE(file->write_at(offset, bytes).ok());
      expected.resize(std::max(expected.size(), offset + n_bytes));
      std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<ptrdiff_t>(offset));
      if (i % 20 != 0) continue;
      Bytes back(expected.size() + 1);
      REQUIRE(file->read_at(0, back).value() == expected.size());
      back.pop_back();
      REQUIRE(back == expected);
    }
    CHECK(file->sync_data().ok());
    CHECK(file->size().value() == expected.size());
  }

  TEST_CASE("reads past the page cache give the bytes of the others, whether they lie in it or not") {
    const TempFolder folder;
    constexpr size_t kPage = 4096, kFileBytes = (3 << 20) + 777;
    const std::string path = folder.file("f");
    Bytes bytes(kFileBytes);
    std::mt19937 random(8);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    {
      const std::unique_ptr<File> file = files().open(path, Mode::kCreate).value();
      REQUIRE(file->write_at(0, bytes).ok());
      REQUIRE(file->sync_data().ok());
    }
    const std::unique_ptr<std::byte[], void (*)(std::byte*)> memory(
        static_cast<std::byte*>(::operator new (kFileBytes + 2 * kPage, std::align_val_t{kPage})),
        [](std::byte* p) { ::operator delete (p, std::align_val_t{kPage}); });
    const std::unique_ptr<File> file = files().open(path, Mode::kReadDirect).value();
    CHECK(!file->write_at(0, std::span(bytes).first(1)).ok());
    for (const bool cached : {true, false}) {
      if (!cached) {
        const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        REQUIRE(::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) == 0);
        ::close(descriptor);
      }
      for (const size_t offset :
           {size_t{0}, kPage, kPage + 1, size_t{2} << 20, size_t{3} << 20, kFileBytes, kFileBytes + 1}) {
        for (const size_t n : {kPage, size_t{64} << 10, size_t{1} << 20, (kFileBytes + kPage) / kPage * kPage}) {
          CAPTURE(cached);
          CAPTURE(offset);
          CAPTURE(n);
          const std::span<std::byte> out(memory.get(), n);
          const size_t n_there = offset < kFileBytes ? std::min(n, kFileBytes - offset) : 0;
          REQUIRE(file->read_at(offset, out).value() == n_there);
          CHECK(std::equal(out.begin(), out.begin() + static_cast<ptrdiff_t>(n_there),
                           bytes.begin() + static_cast<ptrdiff_t>(std::min(offset, kFileBytes))));
        }
      }
    }
  }

  TEST_CASE("only regular files are opened, and nothing waits for the other end of a pipe") {
    const TempFolder folder;
    const std::string fifo = folder.file("fifo"), link = folder.file("link");
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    REQUIRE(::symlink(fifo.c_str(), link.c_str()) == 0);
    for (const std::string& path : {fifo, link, folder.path(), std::string("/dev/null")}) {
      for (const Mode mode : {Mode::kRead, Mode::kReadDirect, Mode::kReadWrite}) {
        CAPTURE(path);
        const Status status = files().open(path, mode).status();
        CHECK(status.code() == Code::kINVALID_ARG);
        CHECK(status.message().starts_with(path));
      }
      CHECK(files().open(path, Mode::kCreate).status().code() == Code::kEXISTS);
      CHECK(files().lock(path).status().code() == Code::kINVALID_ARG);
    }
  }

  TEST_CASE("what cannot be done is named with the path, the reason and the OS error") {
    const TempFolder folder;
    const std::string file = folder.write("file", "x"), absent = folder.file("absent"), below = file + "/below";
    struct Row {
      const char* name;
      Status status;
      Code code;
      int64_t os_error;
    };
    const Row rows[] = {
        {"read absent", files().open(absent, Mode::kRead).status(), Code::kNOT_FOUND, ENOENT},
        {"write absent", files().open(absent, Mode::kReadWrite).status(), Code::kNOT_FOUND, ENOENT},
        {"read below", files().open(below, Mode::kRead).status(), Code::kNOT_FOUND, ENOTDIR},
        {"create", files().open(file, Mode::kCreate).status(), Code::kEXISTS, EEXIST},
        {"create direct", files().open(file, Mode::kCreateDirect).status(), Code::kEXISTS, EEXIST},
        {"create in absent", files().open(absent + "/f", Mode::kCreate).status(), Code::kNOT_FOUND, ENOENT},
        {"rename", files().rename(absent, file), Code::kNOT_FOUND, ENOENT},
        {"unlink", files().unlink(absent), Code::kNOT_FOUND, ENOENT},
        {"list absent", files().list(absent).status(), Code::kNOT_FOUND, ENOENT},
        {"list file", files().list(file).status(), Code::kNOT_FOUND, ENOTDIR},
        {"sync absent", files().sync_folder(absent), Code::kNOT_FOUND, ENOENT},
        {"sync file", files().sync_folder(file), Code::kNOT_FOUND, ENOTDIR},
        {"folder over file", files().create_folder(file), Code::kEXISTS, EEXIST},
        {"folder below file", files().create_folder(below), Code::kNOT_FOUND, ENOTDIR},
        {"folder of no name", files().create_folder(""), Code::kNOT_FOUND, ENOENT},
        {"lock in absent", files().lock(absent + "/l").status(), Code::kNOT_FOUND, ENOENT},
        {"long name", files().open(folder.file(std::string(300, 'x')), Mode::kCreate).status(), Code::kIO,
         ENAMETOOLONG},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      CAPTURE(row.status.message());
      CHECK(row.status.code() == row.code);
      CHECK(row.status.os_error() == row.os_error);
      CHECK((row.status.message().starts_with(folder.path()) || std::string(row.name) == "folder of no name"));
    }
    CHECK(text_of(file) == "x");
  }

  TEST_CASE("a path with a zero byte in it is refused, for the system would see its front only") {
    const TempFolder folder;
    const std::string file = folder.write("f", "x");
    const std::string path = file + std::string("\0x", 2);
    CHECK(files().open(path, Mode::kRead).status().code() == Code::kINVALID_ARG);
    CHECK(files().rename(path, folder.file("g")).code() == Code::kINVALID_ARG);
    CHECK(files().rename(file, path).code() == Code::kINVALID_ARG);
    CHECK(files().unlink(path).code() == Code::kINVALID_ARG);
    CHECK(files().create_folder(path).code() == Code::kINVALID_ARG);
    CHECK(files().list(path).status().code() == Code::kINVALID_ARG);
    CHECK(files().sync_folder(path).code() == Code::kINVALID_ARG);
    CHECK(files().lock(path).status().code() == Code::kINVALID_ARG);
    CHECK(text_of(file) == "x");
  }

  TEST_CASE("what the user may not do is told apart") {
    const TempFolder folder;
    const std::string file = folder.write("f", "x");
    REQUIRE(::chmod(file.c_str(), 0400) == 0);
    REQUIRE(::chmod(folder.path().c_str(), 0500) == 0);
    {
      const OrdinaryUser user;
      CHECK(files().open(file, Mode::kReadWrite).status().code() == Code::kPERMISSION);
      CHECK(files().open(folder.file("g"), Mode::kCreate).status().code() == Code::kPERMISSION);
      CHECK(files().create_folder(folder.file("d")).code() == Code::kPERMISSION);
      CHECK(files().unlink(file).code() == Code::kPERMISSION);
      CHECK(files().lock(file).status().code() == Code::kPERMISSION);
    }
    CHECK(::chmod(folder.path().c_str(), 0700) == 0);
  }

  TEST_CASE("a write that the system cuts short and then refuses is a failure") {
    const TempFolder folder;
    const std::unique_ptr<File> file = files().open(folder.file("f"), Mode::kCreate).value();
    rlimit before = {};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit low = {1000, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
    const Status status = file->write_at(0, Bytes(3000, std::byte{'x'}));
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    ::signal(SIGXFSZ, handler);
    CHECK(status.code() == Code::kIO);
    CHECK(status.os_error() == EFBIG);
    CHECK(file->size().value() == 1000);
  }

  TEST_CASE("rename replaces, unlink removes, and an open file outlives its name") {
    const TempFolder folder;
    const std::string a = folder.write("a", "new"), b = folder.write("b", "old");
    const std::unique_ptr<File> old = files().open(b, Mode::kRead).value();
    CHECK(files().rename(a, b).ok());
    CHECK(text_of(b) == "new");
    Bytes out(3);
    CHECK(old->read_at(0, out).value() == 3);
    CHECK(out == bytes_of("old"));
    CHECK(files().unlink(b).ok());
    CHECK(files().list(folder.path()).value().empty());
    CHECK(files().sync_folder(folder.path()).ok());
  }

  TEST_CASE("folders are made with those above them, and may be there already") {
    const TempFolder folder;
    const std::string deep = folder.file("a/b/c");
    CHECK(files().create_folder(deep).ok());
    CHECK(files().create_folder(deep).ok());
    CHECK(files().create_folder(folder.file("d//e/")).ok());
    CHECK(files().create_folder("/").ok());
    CHECK(files().create_folder(".").ok());
    CHECK(std::filesystem::is_directory(deep));
    CHECK(std::filesystem::is_directory(folder.file("d/e")));
    const std::string link = folder.file("link");
    REQUIRE(::symlink(deep.c_str(), link.c_str()) == 0);
    CHECK(files().create_folder(link).ok());
  }

  TEST_CASE("a listing is in order and tells folders from files, also behind a link") {
    const TempFolder folder;
    for (const char* name : {"b", "a", "B", ".hidden"}) folder.write(name, "");
    REQUIRE(files().create_folder(folder.file("c")).ok());
    REQUIRE(::symlink(folder.file("c").c_str(), folder.file("d").c_str()) == 0);
    REQUIRE(::symlink("nowhere", folder.file("e").c_str()) == 0);
    std::string names, folders;
    const std::vector<FolderEntry> entries = files().list(folder.path()).value();
    for (const FolderEntry& entry : entries) {
      names += entry.name + " ";
      folders += entry.is_folder ? entry.name : "";
    }
    CHECK(names == ".hidden B a b c d e ");
    CHECK(folders == "cd");
  }

  TEST_CASE("a lock has one holder in this process") {
    const TempFolder folder;
    const std::string path = folder.file("lock");
    {
      const std::unique_ptr<FileLock> lock = files().lock(path).value();
      const Status status = files().lock(path).status();
      CHECK(status.code() == Code::kLOCKED);
      CHECK(status.message().starts_with(path));
      CHECK(files().lock(folder.file("other")).ok());
      CHECK(files().open(path, Mode::kRead).ok());  // the file itself is open to all
    }
    CHECK(files().lock(path).ok());
  }

  TEST_CASE("a lock keeps other processes out and is free when its holder was killed") {
    const TempFolder folder;
    const std::string path = folder.file("lock");
    int ready[2];
    REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const Result<std::unique_ptr<FileLock>> lock = files().lock(path);
      const char answer = lock.ok() ? 'y' : 'n';
      if (::write(ready[1], &answer, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char answer = 0;
    CHECK(::read(ready[0], &answer, 1) == 1);
    CHECK(answer == 'y');
    CHECK(files().lock(path).status().code() == Code::kLOCKED);
    CHECK(::kill(child, SIGKILL) == 0);
    CHECK(::waitpid(child, nullptr, 0) == child);
    CHECK(files().lock(path).ok());
    ::close(ready[0]);
    ::close(ready[1]);
  }

  TEST_CASE("programs that are started inherit no file and no lock") {
    const TempFolder folder;
    const std::unique_ptr<File> file = files().open(folder.file("f"), Mode::kCreateDirect).value();
    const std::unique_ptr<FileLock> lock = files().lock(folder.file("l")).value();
    size_t n_ours = 0;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), gone);
      if (gone || !target.string().starts_with(folder.path())) continue;
      ++n_ours;
      CHECK((::fcntl(std::stoi(entry.path().filename()), F_GETFD) & FD_CLOEXEC) != 0);
    }
    CHECK(n_ours >= 2);
  }

  TEST_CASE("the folder of a path is what stands before its name") {
    const std::pair<std::string, std::string> rows[] = {
        {"a", "."}, {"a/b", "a"}, {"/a", "/"}, {"/a/b", "/a"}, {"a/b/", "a"}, {"a//b", "a"},
        {"/", "/"}, {"//", "/"},  {"", "."},   {"//a", "/"},   {"./a", "."},  {"../a/b.c", "../a"},
    };
    for (const auto& [path, folder] : rows) {
      CAPTURE(path);
      CHECK(folder_of(path) == folder);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
