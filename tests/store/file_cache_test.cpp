#include "store/file_cache.h"

#include <doctest/doctest.h>

#include <vector>

#include "support/crash_file_system.h"

namespace dsv41::test {
namespace {

using store::FileCache;

std::byte first_byte(File& file) {
  std::byte byte{};
  REQUIRE(store::read_exactly(file, "f", 0, std::span(&byte, 1)).ok());
  return byte;
}

void put(CrashFileSystem& files, const std::string& path, int value) {
  files.put(path, {static_cast<std::byte>(value), std::byte{0}});
}

// A file system in which something happens while a file is being opened.
class OpeningFileSystem final : public FileSystem {
 public:
  explicit OpeningFileSystem(CrashFileSystem& files) : files(files) {}
  Result<std::unique_ptr<File>> open(const std::string& path, Mode mode) override {
    Result<std::unique_ptr<File>> file = files.open(path, mode);
    if (after_open) std::exchange(after_open, nullptr)();
    return file;
  }
  Status rename(const std::string& from, const std::string& to) override { return files.rename(from, to); }
  Status unlink(const std::string& path) override { return files.unlink(path); }
  Status create_folder(const std::string& path) override { return files.create_folder(path); }
  Result<std::vector<FolderEntry>> list(const std::string& path) override { return files.list(path); }
  Status sync_folder(const std::string& path) override { return files.sync_folder(path); }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override { return files.lock(path); }

  CrashFileSystem& files;
  std::function<void()> after_open;
};

TEST_SUITE("store/file_cache") {
  TEST_CASE("a file is opened once, and the least recently used one is closed for the next") {
    CrashFileSystem files;
    for (int i = 0; i < 4; ++i) put(files, "f" + std::to_string(i), i);
    FileCache cache(files, 3);
    const auto n_opened = [&] { return files.n_operations(CrashFileSystem::kOpen); };
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 3; ++i) {
        CHECK(first_byte(*cache.open("f" + std::to_string(i)).value()) == static_cast<std::byte>(i));
      }
    }
    CHECK(n_opened() == 3);
    REQUIRE(cache.open("f0").ok());
    REQUIRE(cache.open("f3").ok());  // f1 goes
    CHECK(cache.n_files() == 3);
    CHECK(n_opened() == 4);
    for (const char* path : {"f0", "f2", "f3"}) REQUIRE(cache.open(path).ok());
    CHECK(n_opened() == 4);
    REQUIRE(cache.open("f1").ok());
    CHECK(n_opened() == 5);
    CHECK(cache.open("none").status().code() == Code::kNOT_FOUND);
    CHECK(cache.n_files() == 3);
  }

  TEST_CASE("who holds a file keeps it, whatever becomes of the name") {
    CrashFileSystem files;
    put(files, "f", 1);
    FileCache cache(files, 1);
    const std::shared_ptr<File> old = cache.open("f").value();
    files.erase("f");
    put(files, "f", 2);
    CHECK(first_byte(*cache.open("f").value()) == std::byte{1});
    cache.drop("f");
    cache.drop("f");
    CHECK(cache.n_files() == 0);
    CHECK(first_byte(*cache.open("f").value()) == std::byte{2});
    CHECK(first_byte(*old) == std::byte{1});
  }

  TEST_CASE("a file that is dropped while it is being opened is not kept") {
    CrashFileSystem files;
    put(files, "f", 1);
    OpeningFileSystem opening(files);
    FileCache cache(opening, 4);
    opening.after_open = [&] {
      files.erase("f");
      put(files, "f", 2);
      cache.drop("f");
    };
    CHECK(first_byte(*cache.open("f").value()) == std::byte{1});
    CHECK(first_byte(*cache.open("f").value()) == std::byte{2});
  }

  TEST_CASE("of two that open a file at once, both get the same one") {
    CrashFileSystem files;
    put(files, "f", 1);
    OpeningFileSystem opening(files);
    FileCache cache(opening, 4);
    std::shared_ptr<File> other;
    opening.after_open = [&] { other = cache.open("f").value(); };
    CHECK(cache.open("f").value() == other);
    CHECK(cache.n_files() == 1);
  }

  TEST_CASE("fewer bytes than were asked for are told as such") {
    CrashFileSystem files;
    put(files, "f", 1);
    FileCache cache(files, 1);
    const std::shared_ptr<File> file = cache.open("f").value();
    std::vector<std::byte> bytes(2);
    CHECK(store::read_exactly(*file, "f", 0, bytes).ok());
    CHECK(store::read_exactly(*file, "f", 1, bytes).code() == Code::kIO_SHORT);
    CHECK(store::read_exactly(*file, "f", 100, bytes).code() == Code::kIO_SHORT);
  }
}

}  // namespace
}  // namespace dsv41::test
