// The rules of the file system that other tests lean on: what it promises after a power cut, what it may lose, and that
// it fails where it is told to.
#include "support/crash_file_system.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <thread>

namespace dsv41::test {
namespace {

using Mode = FileSystem::Mode;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

std::string text_of(const CrashFileSystem& files, const std::string& path) {
  const std::optional<std::vector<std::byte>> bytes = files.file(path);
  if (!bytes) return "(none)";
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

std::unique_ptr<File> opened(CrashFileSystem& files, const std::string& path, Mode mode = Mode::kReadWrite) {
  Result<std::unique_ptr<File>> file = files.open(path, mode);
  REQUIRE_MESSAGE(file.ok(), file.status().message());
  return std::move(file).value();
}

Status write_text(File& file, uint64_t offset, std::string_view text) { return file.write_at(offset, bytes_of(text)); }

// Every content that `path` may have after a power cut now.
std::set<std::string> contents_after_crash(const CrashFileSystem& files, const std::string& path) {
  REQUIRE(files.n_pending() <= kMostExhaustive);
  std::set<std::string> contents;
  for_each_crash(files, 0, [&](const CrashFileSystem& after) { contents.insert(text_of(after, path)); });
  return contents;
}

// Every set of names that may be there after a power cut now, each as "a b ".
std::set<std::string> names_after_crash(const CrashFileSystem& files) {
  std::set<std::string> all;
  for_each_crash(files, 0, [&](const CrashFileSystem& after) {
    std::string names;
    for (const std::string& path : after.paths()) names += path + " ";
    all.insert(names);
  });
  return all;
}

using Texts = std::set<std::string>;

TEST_SUITE("support/crash_file_system") {
  TEST_CASE("what is written is read back, and names behave as names do") {
    CrashFileSystem files;
    {
      const std::unique_ptr<File> file = opened(files, "a", Mode::kCreate);
      CHECK(write_text(*file, 2, "xyz").ok());
      CHECK(file->size().value() == 5);
      std::byte out[8];
      CHECK(file->read_at(1, out).value() == 4);
      CHECK(out[0] == std::byte{0});
      CHECK(out[1] == std::byte{'x'});
      CHECK(file->read_at(9, out).value() == 0);
      CHECK(file->resize(3).ok());
      CHECK(text_of(files, "a") == std::string("\0\0x", 3));
    }
    CHECK(files.open("a", Mode::kCreate).status().code() == Code::kEXISTS);
    CHECK(files.open("b", Mode::kRead).status().code() == Code::kNOT_FOUND);
    CHECK(files.open("no/b", Mode::kCreate).status().code() == Code::kNOT_FOUND);
    CHECK(files.create_folder("f/g").ok());
    CHECK(files.create_folder("f/g/").ok());
    CHECK(files.open("f", Mode::kRead).status().code() == Code::kINVALID_ARG);
    CHECK(files.create_folder("a").code() == Code::kEXISTS);
    files.put("f/z", bytes_of("old"));
    CHECK(files.rename("a", "f/z").ok());
    CHECK(text_of(files, "f/z") == std::string("\0\0x", 3));
    CHECK(files.rename("a", "b").code() == Code::kNOT_FOUND);
    const std::vector<FolderEntry> entries = files.list("f").value();
    REQUIRE(entries.size() == 2);
    CHECK((entries[0].name == "g" && entries[0].is_folder));
    CHECK((entries[1].name == "z" && !entries[1].is_folder));
    CHECK(files.list(".").value().size() == 1);
    CHECK(files.unlink("f/z").ok());
    CHECK(files.unlink("f/z").code() == Code::kNOT_FOUND);
    CHECK(files.list("none").status().code() == Code::kNOT_FOUND);
    CHECK(files.sync_folder("none").code() == Code::kNOT_FOUND);
  }

  TEST_CASE("a file open for reading cannot be changed") {
    CrashFileSystem files;
    files.put("a", bytes_of("old"));
    const std::unique_ptr<File> file = opened(files, "a", Mode::kRead);
    CHECK_FALSE(write_text(*file, 0, "x").ok());
    CHECK_FALSE(file->resize(0).ok());
    CHECK(text_of(files, "a") == "old");
  }

  TEST_CASE("sectors written and not synced survive in any subset") {
    CrashFileSystem files;
    files.put("a", std::vector<std::byte>(1024, std::byte{'0'}));
    const std::unique_ptr<File> file = opened(files, "a");
    const std::string old(512, '0'), fresh(512, '1');
    CHECK(write_text(*file, 0, fresh + fresh).ok());
    CHECK(files.n_pending() == 2);
    CHECK(contents_after_crash(files, "a") == Texts{old + old, old + fresh, fresh + old, fresh + fresh});
    CHECK(text_of(files, "a") == fresh + fresh);  // taking crash states changes nothing
    CHECK(file->sync_data().ok());
    CHECK(files.n_pending() == 0);
    CHECK(contents_after_crash(files, "a") == Texts{fresh + fresh});
  }

  TEST_CASE("a sector written twice may be left as either write left it") {
    CrashFileSystem files;
    files.put("a", bytes_of("0000"));
    const std::unique_ptr<File> file = opened(files, "a");
    CHECK(write_text(*file, 0, "1").ok());
    CHECK(write_text(*file, 1, "2").ok());
    CHECK(contents_after_crash(files, "a") == Texts{"0000", "1000", "1200"});
  }

  TEST_CASE("the size survives or not by itself, and data only as far as the size") {
    CrashFileSystem files;
    files.put("a", bytes_of("old"));
    const std::unique_ptr<File> file = opened(files, "a");
    CHECK(write_text(*file, 3, "new").ok());
    // The sector holds "oldnew": without the size it is cut, without the sector the grown part is zeros.
    CHECK(contents_after_crash(files, "a") == Texts{"old", std::string("old\0\0\0", 6), "oldnew"});
  }

  TEST_CASE("a cut that survives clears what lay beyond it") {
    CrashFileSystem files;
    files.put("a", bytes_of("abcdef"));
    const std::unique_ptr<File> file = opened(files, "a");
    CHECK(file->resize(2).ok());
    CHECK(contents_after_crash(files, "a") == Texts{"abcdef", "ab"});
    CHECK(file->resize(4).ok());
    // Not "abcd": that the file is back at four bytes does not bring the old ones back, unless the cut was lost.
    const std::string cleared("ab\0\0", 4);
    CHECK(contents_after_crash(files, "a") == Texts{"abcdef", "ab", "abcd", cleared});
    CHECK(file->sync_data().ok());
    CHECK(contents_after_crash(files, "a") == Texts{cleared});
  }

  TEST_CASE("a sync that failed promises nothing, also when a later one succeeds") {
    CrashFileSystem files;
    files.put("a", std::vector<std::byte>(1024, std::byte{'0'}));
    const std::unique_ptr<File> file = opened(files, "a");
    const std::string old(512, '0'), fresh(512, '1');
    CHECK(write_text(*file, 0, fresh + fresh).ok());
    files.fail_after({.kinds = CrashFileSystem::kSync});
    CHECK(file->sync_data().code() == Code::kIO);
    CHECK(file->sync_data().ok());
    CHECK(contents_after_crash(files, "a") == Texts{old + old, old + fresh, fresh + old, fresh + fresh});
    CHECK(write_text(*file, 512, fresh).ok());
    CHECK(file->sync_data().ok());
    CHECK(contents_after_crash(files, "a") == Texts{old + fresh, fresh + fresh});
    CHECK(file->resize(100).ok());
    CHECK(file->sync_data().ok());
    CHECK(file->resize(200).ok());
    CHECK(file->sync_data().ok());
    const std::string zeros(100, '\0');
    CHECK(contents_after_crash(files, "a") == Texts{std::string(100, '0') + zeros, std::string(100, '1') + zeros});
    CHECK(file->resize(0).ok());
    CHECK(file->sync_data().ok());
    CHECK(files.n_pending() == 0);
  }

  TEST_CASE("names that were not synced survive in any subset, a rename never without its file") {
    CrashFileSystem files;
    files.put("gone", bytes_of("g"));
    opened(files, "new", Mode::kCreate);
    opened(files, "tmp", Mode::kCreate);
    CHECK(files.rename("tmp", "final").ok());
    CHECK(files.unlink("gone").ok());
    Texts expected;
    for (const std::string gone : {"", "gone "}) {
      for (const std::string fresh : {"", "new "}) {
        for (const std::string tmp : {"", "tmp ", "final "}) {
          expected.insert((tmp == "final " ? tmp : "") + gone + fresh + (tmp == "tmp " ? tmp : ""));
        }
      }
    }
    CHECK(names_after_crash(files) == expected);
    CHECK(files.sync_folder(".").ok());
    CHECK(names_after_crash(files) == Texts{"final new "});
  }

  TEST_CASE("a rename leaves the old file or the new one under the name") {
    CrashFileSystem files;
    files.put("a", bytes_of("old"));
    files.put("b", bytes_of("new"));
    CHECK(files.rename("b", "a").ok());
    CHECK(contents_after_crash(files, "a") == Texts{"old", "new"});
    CHECK(names_after_crash(files) == Texts{"a ", "a b "});
  }

  TEST_CASE("neither does a sync of data keep the name, nor a sync of the folder the data") {
    CrashFileSystem files;
    const std::unique_ptr<File> first = opened(files, "a", Mode::kCreate);
    CHECK(write_text(*first, 0, "x").ok());
    CHECK(first->sync_data().ok());
    CHECK(contents_after_crash(files, "a") == Texts{"(none)", "x"});
    const std::unique_ptr<File> second = opened(files, "b", Mode::kCreate);
    CHECK(write_text(*second, 0, "y").ok());
    CHECK(files.sync_folder(".").ok());
    CHECK(contents_after_crash(files, "a") == Texts{"x"});
    CHECK(contents_after_crash(files, "b") == Texts{"", std::string(1, '\0'), "y"});
  }

  TEST_CASE("a sync of one folder leaves the names of another in doubt") {
    CrashFileSystem files;
    CHECK(files.create_folder("d").ok());
    opened(files, "a", Mode::kCreate);
    opened(files, "d/b", Mode::kCreate);
    CHECK(files.sync_folder("d").ok());
    CHECK(names_after_crash(files) == Texts{"d/b ", "a d/b "});
    CHECK(files.rename("d/b", "b").ok());
    CHECK(files.sync_folder("d").ok());
    CHECK(names_after_crash(files) == Texts{"d/b ", "a d/b ", "b ", "a b "});
    CHECK(files.sync_folder(".").ok());
    CHECK(names_after_crash(files) == Texts{"a b "});
  }

  TEST_CASE("bytes of a file that no crash can show are not pending") {
    CrashFileSystem files;
    const std::unique_ptr<File> file = opened(files, "a", Mode::kCreate);
    CHECK(write_text(*file, 0, std::string(5000, 'x')).ok());
    CHECK(files.unlink("a").ok());
    CHECK(files.n_pending() > 2);
    CHECK(files.sync_folder(".").ok());
    CHECK(files.n_pending() == 0);
    CHECK(file->size().value() == 5000);
  }

  TEST_CASE("a state taken by mask holds the changes of its bits, and random ones come to every state") {
    CrashFileSystem files;
    files.put("a", bytes_of("0"));
    const std::unique_ptr<File> file = opened(files, "a");
    CHECK(write_text(*file, 0, "1").ok());
    CHECK(write_text(*file, 0, "2").ok());
    CHECK(text_of(files.crash(0), "a") == "0");
    CHECK(text_of(files.crash(1), "a") == "1");
    CHECK(text_of(files.crash(2), "a") == "2");
    Texts seen;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      seen.insert(text_of(files.crash_random(seed), "a"));
      CHECK(text_of(files.crash_random(seed), "a") == text_of(files.crash_random(seed), "a"));
    }
    CHECK(seen == Texts{"0", "1", "2"});
    CHECK(files.describe_pending() == "0: a sector 0\n1: a sector 0\n");
  }

  TEST_CASE("what a crash left is a file system of its own, without locks") {
    CrashFileSystem files;
    files.put("a", bytes_of("0"));
    const std::unique_ptr<FileLock> lock = files.lock("lock").value();
    CrashFileSystem after = files.crash(0);
    CHECK(after.lock("lock").ok());
    CHECK(write_text(*opened(after, "a"), 0, "1").ok());
    CHECK(text_of(files, "a") == "0");
    CHECK(files.n_pending() == 0);
    CHECK(after.n_pending() == 1);
  }

  TEST_CASE("a lock has one holder and is free when that is gone") {
    CrashFileSystem files;
    {
      const std::unique_ptr<FileLock> lock = files.lock("lock").value();
      CHECK(files.lock("lock").status().code() == Code::kLOCKED);
      CHECK(files.lock("other").ok());
    }
    CHECK(files.lock("lock").ok());
  }

  TEST_CASE("the n-th operation of a kind fails once or for good") {
    CrashFileSystem files;
    const std::unique_ptr<File> file = opened(files, "a", Mode::kCreate);
    files.fail_after({.n = 2, .code = Code::kNO_SPACE, .kinds = CrashFileSystem::kWrite});
    CHECK(write_text(*file, 0, "1").ok());
    CHECK(file->sync_data().ok());
    CHECK_FALSE(files.struck());
    const Status failed = write_text(*file, 0, "2");
    CHECK(failed.code() == Code::kNO_SPACE);
    CHECK(failed.os_error() == ENOSPC);
    CHECK(failed.message().starts_with("a: "));
    CHECK(files.struck());
    CHECK(text_of(files, "a") == "1");
    CHECK(write_text(*file, 0, "3").ok());
    files.fail_after({.n = 2, .for_good = true});
    CHECK(file->sync_data().ok());
    CHECK(files.unlink("a").code() == Code::kIO);
    CHECK(file->resize(0).code() == Code::kIO);
    CHECK(text_of(files, "a") == "3");
  }

  TEST_CASE("every kind of operation can be made to fail and is counted") {
    CrashFileSystem files;
    CHECK(files.create_folder("d").ok());
    files.put("a", bytes_of("text"));
    const std::unique_ptr<File> file = opened(files, "a");
    std::byte out[1];
    const std::pair<CrashFileSystem::Kind, std::function<Status()>> rows[] = {
        {CrashFileSystem::kRead, [&] { return file->read_at(0, out).status(); }},
        {CrashFileSystem::kWrite, [&] { return write_text(*file, 0, "t"); }},
        {CrashFileSystem::kResize, [&] { return file->resize(4); }},
        {CrashFileSystem::kSync, [&] { return file->sync_data(); }},
        {CrashFileSystem::kOpen, [&] { return files.open("a", Mode::kRead).status(); }},
        {CrashFileSystem::kCreate, [&] { return files.open("b", Mode::kCreate).status(); }},
        {CrashFileSystem::kRename, [&] { return files.rename("b", "c"); }},
        {CrashFileSystem::kUnlink, [&] { return files.unlink("c"); }},
        {CrashFileSystem::kSyncFolder, [&] { return files.sync_folder("d"); }},
        {CrashFileSystem::kLock, [&] { return files.lock("l").status(); }},
        {CrashFileSystem::kList, [&] { return files.list("d").status(); }},
        {CrashFileSystem::kCreateFolder, [&] { return files.create_folder("d"); }},
    };
    uint32_t all = 0;
    for (const auto& [kind, call] : rows) {
      CAPTURE(kind);
      all |= kind;
      const uint64_t before = files.n_operations(kind);
      files.fail_after({.kinds = kind});
      CHECK(call().code() == Code::kIO);
      CHECK(call().ok());
      CHECK(files.n_operations(kind) == before + 2);
    }
    CHECK(all == CrashFileSystem::kAll);
    CHECK(files.n_operations() == 2 * std::size(rows) + 2);
  }

  TEST_CASE("a write that fails may leave the front of its bytes") {
    CrashFileSystem files;
    files.put("a", bytes_of("0000"));
    const std::unique_ptr<File> file = opened(files, "a");
    files.fail_after({.kinds = CrashFileSystem::kWrite, .n_torn_bytes = 3});
    CHECK(write_text(*file, 0, "1111").code() == Code::kIO);
    CHECK(text_of(files, "a") == "1110");
  }

  TEST_CASE("a read can end too soon") {
    CrashFileSystem files;
    files.put("a", bytes_of("0123"));
    const std::unique_ptr<File> file = opened(files, "a");
    files.shorten_read(2);
    std::byte out[4];
    CHECK(file->read_at(0, out).value() == 4);
    CHECK(file->read_at(0, out).value() == 2);
    CHECK(files.struck());
    CHECK(file->read_at(0, out).value() == 4);
  }

  TEST_CASE("a full disk takes what fits") {
    CrashFileSystem files;
    files.put("a", bytes_of("0123"));
    files.limit_space(6);
    const std::unique_ptr<File> file = opened(files, "b", Mode::kCreate);
    CHECK(write_text(*file, 0, "xyz").code() == Code::kNO_SPACE);
    CHECK(text_of(files, "b") == "xy");
    CHECK(write_text(*file, 0, "zz").ok());
    CHECK(write_text(*file, 2, "z").code() == Code::kNO_SPACE);
    CHECK(files.unlink("a").ok());
    CHECK(write_text(*file, 2, "z").ok());
  }

  TEST_CASE("the operation in which the power goes is done, not done or half done") {
    for (uint64_t n = 1; n <= 4; ++n) {
      CAPTURE(n);
      CrashFileSystem files;
      files.put("a", bytes_of("old"));
      const std::unique_ptr<File> file = opened(files, "a");
      files.power_off_at(n);
      const bool ok[] = {write_text(*file, 0, "new").ok(), file->sync_data().ok(), files.rename("a", "b").ok(),
                         files.sync_folder(".").ok()};
      for (uint64_t i = 1; i <= 4; ++i) CHECK(ok[i - 1] == (i < n));
      CHECK(files.struck());
      CHECK_FALSE(files.list(".").ok());  // it stays off
      CHECK_FALSE(file->size().ok());
      CHECK(contents_after_crash(files, "a") == (n <= 2 ? Texts{"old", "new"} : Texts{"new", "(none)"}));
      CHECK(contents_after_crash(files, "b") == (n <= 2 ? Texts{"(none)"} : Texts{"(none)", "new"}));
    }
  }

  TEST_CASE("damage is durable and hits the bit it names") {
    CrashFileSystem files;
    const std::unique_ptr<File> file = opened(files, "a", Mode::kCreate);
    CHECK(write_text(*file, 0, "ab").ok());
    files.flip_bit("a", 9);
    CHECK(contents_after_crash(files, "a") == Texts{"a`"});
    files.erase("a");
    CHECK(names_after_crash(files) == Texts{""});
  }

  TEST_CASE("threads may work in it at once") {
    CrashFileSystem files;
    std::vector<std::thread> threads;
    for (const std::string name : {"a", "b", "c"}) {
      threads.emplace_back([&files, name] {
        for (int i = 0; i < 50; ++i) {
          Result<std::unique_ptr<File>> file = files.open(name, Mode::kCreate);
          if (!file.ok() || !write_text(*file.value(), 0, name).ok() || !file.value()->sync_data().ok()) return;
          if (!files.rename(name, name + std::to_string(i)).ok() || !files.sync_folder(".").ok()) return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(files.paths().size() == 150);
    CHECK(files.n_pending() == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
