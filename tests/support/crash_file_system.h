// CrashFileSystem: a FileSystem in memory that fails, tears and loses power where a test wants it to, and then shows what
// a disk may hold after the cut (crash_disk.h says which states there are). Any thread.
//
// The usual test of something durable:
//
//   for (uint64_t n = 1;; ++n) {
//     CrashFileSystem files;                       // with what was there before
//     files.power_off_at(n);
//     work(files);                                 // fails somewhere
//     for_each_crash(files, 200, [](CrashFileSystem& after) { check(after); });
//     if (!files.struck()) break;                  // the whole work was done
//   }
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"

namespace dsv41::test {

class CrashFileSystem final : public FileSystem {
 public:
  // Kinds of operations, to be joined with |. File::size counts as none.
  enum Kind : uint32_t {
    kRead = 1,
    kWrite = 2,
    kResize = 4,
    kSync = 8,
    kOpen = 16,    // of a file that exists
    kCreate = 32,  // of a file, through open() or lock()
    kRename = 64,
    kUnlink = 128,
    kSyncFolder = 256,
    kLock = 512,
    kList = 1024,
    kCreateFolder = 2048,
    kAll = 4095,
    kChanges = kWrite | kResize | kSync | kCreate | kRename | kUnlink | kSyncFolder,  // what a power cut can fall into
  };

  CrashFileSystem();
  ~CrashFileSystem() override;
  CrashFileSystem(CrashFileSystem&&) noexcept;

  Result<std::unique_ptr<File>> open(const std::string& path, Mode mode) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status unlink(const std::string& path) override;
  Status create_folder(const std::string& path) override;  // durable at once
  Result<std::vector<FolderEntry>> list(const std::string& path) override;
  Status sync_folder(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> lock(
      const std::string& path) override;  // a file that it creates is durable at once

  // --- Power cuts. This object stays as it is: every state can be taken from the same one. -----------------------------
  size_t n_pending() const;
  // The state in which change i survives when bit i is set. At most 64 changes may be pending.
  CrashFileSystem crash(uint64_t survivors) const;
  CrashFileSystem crash(const std::function<bool(size_t)>& survives) const;
  CrashFileSystem crash_random(uint64_t seed) const;
  std::string describe_pending() const;

  // --- Faults. Operations are counted from now on, from 1; a fault replaces the one before it. -------------------------
  struct Fault {
    uint64_t n = 1;
    Code code = Code::kIO;
    uint32_t kinds = kAll;    // which operations are counted and may fail
    bool for_good = false;    // the n-th and all later ones
    size_t n_torn_bytes = 0;  // so many bytes of a failed write are there all the same
  };
  void fail_after(const Fault& fault);
  // The power goes during the n-th operation of these kinds, which is pending as if it had been done: crash() tells how
  // far it came. From then on every operation fails with IO.
  void power_off_at(uint64_t n, uint32_t kinds = kChanges);
  // The n-th read gives half of its bytes, as if the file ended there.
  void shorten_read(uint64_t n);
  // All files together; a write beyond it fills the rest and fails with NO_SPACE.
  void limit_space(uint64_t bytes);
  // Whether a fault, power cut or short read has come since one was ordered last.
  bool struck() const;

  uint64_t n_operations(uint32_t kinds = kAll) const;

  // --- The bytes themselves: never fails, never counted. Damage is durable. --------------------------------------------
  std::vector<std::string> paths() const;
  std::optional<std::vector<std::byte>> file(const std::string& path) const;
  void put(const std::string& path, std::vector<std::byte> bytes);
  void erase(const std::string& path);
  void flip_bit(const std::string& path, uint64_t bit);

  struct State;

 private:
  explicit CrashFileSystem(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  // open files and locks keep it too
};

// Calls check(CrashFileSystem&) for what may be left after a power cut now: for every state where no more than
// kMostExhaustive changes are pending, else for the two extreme ones and n_random others.
inline constexpr size_t kMostExhaustive = 12;

template <class Check>
void for_each_crash(const CrashFileSystem& files, uint64_t n_random, Check check) {
  const size_t n_pending = files.n_pending();
  const bool exhaustive = n_pending <= kMostExhaustive;
  const uint64_t n_states = exhaustive ? uint64_t{1} << n_pending : n_random + 2;
  for (uint64_t i = 0; i < n_states; ++i) {
    INFO((exhaustive ? "crash with survivors " : "random crash "), i, " of\n", files.describe_pending());
    CrashFileSystem after = exhaustive ? files.crash(i)
                            : i < 2    ? files.crash([&](size_t) { return i == 1; })
                                       : files.crash_random(i);
    check(after);
  }
}

}  // namespace dsv41::test
