#include "support/crash_file_system.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>

#include "support/crash_disk.h"

namespace dsv41::test {
namespace {

int64_t os_error_of(Code code) {
  switch (code) {
    case Code::kNO_SPACE: return ENOSPC;
    case Code::kPERMISSION: return EACCES;
    case Code::kNOT_FOUND: return ENOENT;
    case Code::kEXISTS: return EEXIST;
    case Code::kLOCKED: return EWOULDBLOCK;
    default: return EIO;
  }
}

Status failure(const std::string& path, Code code, const char* text) {
  return Status(code, path + ": " + text, os_error_of(code));
}

std::string without_end_slash(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

}  // namespace

// Everything behind one mutex; functions that do not take it expect it to be held.
struct CrashFileSystem::State {
  // What an operation is to do: perform it, or not, and answer so. A performed one with a failure is the one in which
  // the power goes.
  struct Turn {
    bool perform = true;
    Status answer;
    size_t n_torn_bytes = 0;
  };

  Turn begin(Kind kind, const std::string& path) {
    ++counts[static_cast<size_t>(std::countr_zero(static_cast<uint32_t>(kind)))];
    if (power_is_off) return {false, failure(path, Code::kIO, "the power is off")};
    if (until_power_off > 0 && (power_kinds & kind) != 0 && --until_power_off == 0) {
      power_is_off = struck = true;
      return {true, failure(path, Code::kIO, "the power went off")};
    }
    if (until_fault > 0 && (fault.kinds & kind) != 0) {
      if (until_fault > 1) {
        --until_fault;
      } else {
        struck = true;
        if (!fault.for_good) until_fault = 0;
        return {false, failure(path, fault.code, "failed as the test wants it"), fault.n_torn_bytes};
      }
    }
    return {};
  }

  uint64_t used_bytes() const {
    uint64_t bytes = 0;
    for (const auto& [path, inode] : disk.names()) bytes += inode->view.size();
    return bytes;
  }

  // How much a file of this size may grow.
  uint64_t most_size(uint64_t size) const {
    const uint64_t used = used_bytes();
    return most_bytes <= used ? size : size + (most_bytes - used);
  }

  Status write(const std::string& path, const CrashDisk::InodePtr& inode, uint64_t offset,
               std::span<const std::byte> bytes) {
    const uint64_t most = most_bytes == UINT64_MAX ? UINT64_MAX : most_size(inode->view.size());
    const uint64_t n_fit = most <= offset ? 0 : std::min<uint64_t>(bytes.size(), most - offset);
    disk.write(inode, offset, bytes.first(n_fit));
    return n_fit == bytes.size() ? Status() : failure(path, Code::kNO_SPACE, "no space left");
  }

  mutable std::mutex mutex;
  CrashDisk disk;
  std::set<std::string> locked;
  std::array<uint64_t, 12> counts = {};

  Fault fault;
  uint64_t until_fault = 0;  // 0: none is due
  uint64_t until_power_off = 0;
  uint32_t power_kinds = 0;
  bool power_is_off = false;
  bool struck = false;
  uint64_t until_short_read = 0;
  uint64_t most_bytes = UINT64_MAX;
};

namespace {

using State = CrashFileSystem::State;
using Guard = std::lock_guard<std::mutex>;

class CrashFile final : public File {
 public:
  CrashFile(std::shared_ptr<State> state, std::string path, CrashDisk::InodePtr inode, bool writable)
      : state_(std::move(state)), path_(std::move(path)), inode_(std::move(inode)), writable_(writable) {}

  Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) override {
    const Guard guard(state_->mutex);
    State::Turn turn = state_->begin(CrashFileSystem::kRead, path_);
    if (!turn.answer.ok()) return turn.answer;
    const std::vector<std::byte>& bytes = inode_->view;
    size_t n = offset < bytes.size() ? std::min<size_t>(out.size(), bytes.size() - offset) : 0;
    if (state_->until_short_read > 0 && --state_->until_short_read == 0) {
      n /= 2;
      state_->struck = true;
    }
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(n == 0 ? 0 : offset), n, out.begin());
    return n;
  }

  Status write_at(uint64_t offset, std::span<const std::byte> bytes) override {
    const Guard guard(state_->mutex);
    if (!writable_) return failure(path_, Code::kIO, "is open for reading only");
    State::Turn turn = state_->begin(CrashFileSystem::kWrite, path_);
    if (!turn.perform) {
      static_cast<void>(state_->write(path_, inode_, offset, bytes.first(std::min(bytes.size(), turn.n_torn_bytes))));
      return turn.answer;
    }
    DSV41_TRY(state_->write(path_, inode_, offset, bytes));
    return turn.answer;
  }

  Result<uint64_t> size() override {
    const Guard guard(state_->mutex);
    if (state_->power_is_off) return failure(path_, Code::kIO, "the power is off");
    return static_cast<uint64_t>(inode_->view.size());
  }

  Status resize(uint64_t bytes) override {
    const Guard guard(state_->mutex);
    if (!writable_) return failure(path_, Code::kIO, "is open for reading only");
    State::Turn turn = state_->begin(CrashFileSystem::kResize, path_);
    if (turn.perform) state_->disk.resize(inode_, bytes);  // sparse: takes no space
    return turn.answer;
  }

  Status sync_data() override {
    const Guard guard(state_->mutex);
    State::Turn turn = state_->begin(CrashFileSystem::kSync, path_);
    if (turn.answer.ok()) {
      state_->disk.sync_data(inode_);
    } else if (!turn.perform) {
      state_->disk.doom(inode_);
    }
    return turn.answer;
  }

 private:
  const std::shared_ptr<State> state_;
  const std::string path_;
  const CrashDisk::InodePtr inode_;
  const bool writable_;
};

class CrashLock final : public FileLock {
 public:
  CrashLock(std::shared_ptr<State> state, std::string path) : state_(std::move(state)), path_(std::move(path)) {}
  ~CrashLock() override {
    const Guard guard(state_->mutex);
    state_->locked.erase(path_);
  }

 private:
  const std::shared_ptr<State> state_;
  const std::string path_;
};

// What open() and lock() ask of a path before anything else.
Status check_place(const CrashDisk& disk, const std::string& path) {
  if (disk.folders().count(path) != 0) return Status(Code::kINVALID_ARG, path + ": is a folder");
  if (disk.folders().count(folder_of(path)) == 0) return failure(path, Code::kNOT_FOUND, "no such folder");
  return {};
}

}  // namespace

CrashFileSystem::CrashFileSystem() : state_(std::make_shared<State>()) {}
CrashFileSystem::CrashFileSystem(std::shared_ptr<State> state) : state_(std::move(state)) {}
CrashFileSystem::CrashFileSystem(CrashFileSystem&&) noexcept = default;
CrashFileSystem::~CrashFileSystem() = default;

Result<std::unique_ptr<File>> CrashFileSystem::open(const std::string& path, Mode mode) {
  const Guard guard(state_->mutex);
  const bool create = mode == Mode::kCreate || mode == Mode::kCreateDirect;
  State::Turn turn = state_->begin(create ? kCreate : kOpen, path);
  if (!turn.perform) return turn.answer;
  CrashDisk::InodePtr inode = state_->disk.find(path);
  if (create && (inode || state_->disk.folders().count(path) != 0)) return failure(path, Code::kEXISTS, "exists");
  DSV41_TRY(check_place(state_->disk, path));
  if (!create && !inode) return failure(path, Code::kNOT_FOUND, "no such file");
  if (create) inode = state_->disk.create(path);
  if (!turn.answer.ok()) return turn.answer;
  const bool writable = mode != Mode::kRead && mode != Mode::kReadDirect;
  return std::unique_ptr<File>(std::make_unique<CrashFile>(state_, path, std::move(inode), writable));
}

Status CrashFileSystem::rename(const std::string& from, const std::string& to) {
  const Guard guard(state_->mutex);
  State::Turn turn = state_->begin(kRename, from);
  if (!turn.perform) return turn.answer;
  if (!state_->disk.find(from)) return failure(from, Code::kNOT_FOUND, "no such file");
  DSV41_TRY(check_place(state_->disk, to));
  state_->disk.rename(from, to);
  return turn.answer;
}

Status CrashFileSystem::unlink(const std::string& path) {
  const Guard guard(state_->mutex);
  State::Turn turn = state_->begin(kUnlink, path);
  if (!turn.perform) return turn.answer;
  if (!state_->disk.find(path)) return failure(path, Code::kNOT_FOUND, "no such file");
  state_->disk.unlink(path);
  return turn.answer;
}

Status CrashFileSystem::create_folder(const std::string& path) {
  const Guard guard(state_->mutex);
  State::Turn turn = state_->begin(kCreateFolder, path);
  if (!turn.perform) return turn.answer;
  for (std::string folder = without_end_slash(path); state_->disk.folders().count(folder) == 0;
       folder = folder_of(folder)) {
    if (state_->disk.find(folder)) return failure(folder, Code::kEXISTS, "is in the way of a folder");
    state_->disk.add_folder(folder);
  }
  return turn.answer;
}

Result<std::vector<FolderEntry>> CrashFileSystem::list(const std::string& path) {
  const Guard guard(state_->mutex);
  State::Turn turn = state_->begin(kList, path);
  if (!turn.answer.ok()) return turn.answer;
  const std::string folder = without_end_slash(path);
  if (state_->disk.folders().count(folder) == 0) return failure(path, Code::kNOT_FOUND, "no such folder");
  std::vector<FolderEntry> entries;
  const auto add = [&](const std::string& entry, bool is_folder) {
    if (entry == "." || entry == "/" || folder_of(entry) != folder) return;
    entries.push_back({entry.substr(entry.rfind('/') + 1), is_folder});
  };
  for (const auto& [name, inode] : state_->disk.names()) add(name, false);
  for (const std::string& name : state_->disk.folders()) add(name, true);
  std::sort(entries.begin(), entries.end(), [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
  return entries;
}

Status CrashFileSystem::sync_folder(const std::string& path) {
  const Guard guard(state_->mutex);
  State::Turn turn = state_->begin(kSyncFolder, path);
  if (!turn.answer.ok()) return turn.answer;
  const std::string folder = without_end_slash(path);
  if (state_->disk.folders().count(folder) == 0) return failure(path, Code::kNOT_FOUND, "no such folder");
  state_->disk.sync_folder(folder);
  return {};
}

Result<std::unique_ptr<FileLock>> CrashFileSystem::lock(const std::string& path) {
  const Guard guard(state_->mutex);
  State::Turn turn = state_->begin(kLock, path);
  if (!turn.answer.ok()) return turn.answer;
  DSV41_TRY(check_place(state_->disk, path));
  if (!state_->disk.find(path)) state_->disk.put(path, {});
  if (!state_->locked.insert(path).second) return failure(path, Code::kLOCKED, "is locked");
  return std::unique_ptr<FileLock>(std::make_unique<CrashLock>(state_, path));
}

// --- Power cuts ---------------------------------------------------------------------------------------------------------

size_t CrashFileSystem::n_pending() const {
  const Guard guard(state_->mutex);
  return state_->disk.n_pending();
}

CrashFileSystem CrashFileSystem::crash(const std::function<bool(size_t)>& survives) const {
  std::shared_ptr<State> after = std::make_shared<State>();
  const Guard guard(state_->mutex);
  after->disk = state_->disk.after_crash(survives);
  return CrashFileSystem(std::move(after));
}

CrashFileSystem CrashFileSystem::crash(uint64_t survivors) const {
  if (n_pending() > 64) throw std::logic_error("more pending changes than a mask has bits");
  return crash([&](size_t i) { return (survivors >> i & 1) != 0; });
}

// Names and bytes survive with two probabilities of their own, so that all of the one and none of the other comes up.
CrashFileSystem CrashFileSystem::crash_random(uint64_t seed) const {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-0.2, 1.2);
  const double names = uniform(random), bytes = uniform(random);
  std::uniform_real_distribution<double> draw(0.0, 1.0);
  return crash([&](size_t i) { return draw(random) < (state_->disk.is_name(i) ? names : bytes); });
}

std::string CrashFileSystem::describe_pending() const {
  const Guard guard(state_->mutex);
  return state_->disk.describe();
}

// --- Faults -------------------------------------------------------------------------------------------------------------

void CrashFileSystem::fail_after(const Fault& fault) {
  const Guard guard(state_->mutex);
  state_->fault = fault;
  state_->until_fault = fault.n;
  state_->struck = false;
}

void CrashFileSystem::power_off_at(uint64_t n, uint32_t kinds) {
  const Guard guard(state_->mutex);
  state_->until_power_off = n;
  state_->power_kinds = kinds;
  state_->struck = false;
}

void CrashFileSystem::shorten_read(uint64_t n) {
  const Guard guard(state_->mutex);
  state_->until_short_read = n;
  state_->struck = false;
}

void CrashFileSystem::limit_space(uint64_t bytes) {
  const Guard guard(state_->mutex);
  state_->most_bytes = bytes;
}

bool CrashFileSystem::struck() const {
  const Guard guard(state_->mutex);
  return state_->struck;
}

uint64_t CrashFileSystem::n_operations(uint32_t kinds) const {
  const Guard guard(state_->mutex);
  uint64_t n = 0;
  for (size_t i = 0; i < state_->counts.size(); ++i) n += (kinds >> i & 1) != 0 ? state_->counts[i] : 0;
  return n;
}

// --- The bytes themselves -----------------------------------------------------------------------------------------------

std::vector<std::string> CrashFileSystem::paths() const {
  const Guard guard(state_->mutex);
  std::vector<std::string> paths;
  for (const auto& [path, inode] : state_->disk.names()) paths.push_back(path);
  return paths;
}

std::optional<std::vector<std::byte>> CrashFileSystem::file(const std::string& path) const {
  const Guard guard(state_->mutex);
  const CrashDisk::InodePtr inode = state_->disk.find(path);
  if (!inode) return std::nullopt;
  return inode->view;
}

void CrashFileSystem::put(const std::string& path, std::vector<std::byte> bytes) {
  const Guard guard(state_->mutex);
  state_->disk.put(path, std::move(bytes));
}

void CrashFileSystem::erase(const std::string& path) {
  const Guard guard(state_->mutex);
  state_->disk.erase(path);
}

void CrashFileSystem::flip_bit(const std::string& path, uint64_t bit) {
  const Guard guard(state_->mutex);
  const CrashDisk::InodePtr inode = state_->disk.find(path);
  if (!inode || bit / 8 >= inode->view.size()) throw std::logic_error(path + ": has no such bit");
  std::vector<std::byte> bytes = inode->view;
  bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  state_->disk.put(path, std::move(bytes));
}

}  // namespace dsv41::test
