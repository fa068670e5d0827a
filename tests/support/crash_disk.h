// CrashDisk: what a power cut may leave of files: the bytes and names as programs see them, the part of them that is
// durable, and the changes in between, each of which a cut keeps or loses by itself. The machinery of CrashFileSystem;
// knows neither faults nor threads.
//
// Changes that are pending, each one bit of a crash state:
//   a sector     512 bytes of a file as one write left them
//   a size       of a file; data survives only as far as the size, and what has grown without its data reads as zeros
//   a create, a rename or an unlink
// A rename or unlink of a name that does not stand for its file in that state (the create was lost) is lost with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace dsv41::test {

class CrashDisk {
 public:
  static constexpr uint64_t kSectorBytes = 512;

  // A file's content, whatever its name; an open file keeps it.
  struct Inode {
    std::vector<std::byte> view;     // as programs see it
    std::vector<std::byte> durable;  // as it is after a cut that loses everything pending
  };
  using InodePtr = std::shared_ptr<Inode>;
  using Names = std::map<std::string, InodePtr>;

  const Names& names() const { return names_; }
  const std::set<std::string>& folders() const { return folders_; }
  void add_folder(const std::string& path) { folders_.insert(path); }  // durable at once
  InodePtr find(const std::string& path) const;                        // null when there is none

  // Changes of what programs see. The names must exist, or must not, as the words say; `to` may.
  InodePtr create(const std::string& path);
  void rename(const std::string& from, const std::string& to);
  void unlink(const std::string& path);
  void write(const InodePtr& inode, uint64_t offset, std::span<const std::byte> bytes);
  void resize(const InodePtr& inode, uint64_t bytes);

  // Makes a file's bytes and size durable.
  void sync_data(const InodePtr& inode);
  // After a sync that failed: its pending sectors stay pending for good, unless they are written again.
  void doom(const InodePtr& inode);
  // Makes the names in a folder durable, and what they hang on. A rename from one folder to another needs both.
  void sync_folder(const std::string& path);

  // Damage, not work: the file of this name is durable with these bytes (or gone), whatever was pending of it.
  void put(const std::string& path, std::vector<std::byte> bytes);
  void erase(const std::string& path);

  size_t n_pending() const { return pending_.size(); }
  // The disk after a cut that keeps the pending changes for whose number `survives` says so.
  CrashDisk after_crash(const std::function<bool(size_t)>& survives) const;
  bool is_name(size_t pending_idx) const { return pending_[pending_idx].is_name(); }
  // A line for each pending change, for a failed test.
  std::string describe() const;

 private:
  struct Change {
    enum class What : uint8_t { kSector, kSize, kCreate, kRename, kUnlink };
    bool is_name() const { return what >= What::kCreate; }
    What what;
    InodePtr inode;
    uint64_t number = 0;                 // which sector, or the size
    std::vector<std::byte> sector = {};  // kSectorBytes
    bool doomed = false;
    std::string from = {}, to = {};  // kCreate: to; kUnlink: from
    bool from_synced = false, to_synced = false;
  };
  static void apply_name(Names& names, const Change& change);
  static std::vector<std::byte> content_after(const std::vector<std::byte>& durable,
                                              const std::vector<const Change*>& changes);
  static void supersede(std::vector<Change>& doomed, const Change& by);
  void forget_nameless();
  void commit_names(const std::function<bool(Change&)>& is_due);
  void settle(const InodePtr& inode);

  Names names_, durable_names_;
  std::set<std::string> folders_ = {".", "/"};
  std::vector<Change> pending_;  // in the order of the calls
};

}  // namespace dsv41::test
