// MemoryVolume: a store's volume in memory, over a MemoryDisk that outlives it, so that a test can open it again, look
// at it with a second volume, damage a record, and let the n-th call fail or hang.
//
// As a folder has: pages in segments, states under their names. With all_named as the host's objects are: everything
// under its name, and find() finds it.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "store/volume.h"

namespace dsv41::test {

class MemoryDisk {
 public:
  // Kinds of calls, to be joined with |.
  enum Call : uint32_t {
    kAppend = 1,
    kCommit = 2,
    kRead = 4,
    kRemove = 8,
    kSetAside = 16,
    kReadCatalogue = 32,
    kWriteCatalogue = 64,
    kScan = 128,
    kFind = 256,
    kCloseSegment = 512,
    kRemoveSegment = 1024,
    kAll = 2047,
  };

  MemoryDisk();

  // The n-th call of these kinds from now on (from 1), and all later ones if for_good.
  void fail(uint64_t n, Code code = Code::kIO, uint32_t calls = kAll, bool for_good = false);
  bool struck() const;
  uint64_t n_calls(uint32_t calls = kAll) const;
  // Calls of these kinds wait, from now on, until let_go() or for_good is over.
  void hang(uint32_t calls);
  void let_go();
  size_t n_hanging() const;
  void wait_until_hanging(size_t n) const;

  // Of the record of that kind and key that was written last.
  bool flip_bit(store::RecordKind kind, const store::RecordKey& key, uint64_t bit);
  bool truncate(store::RecordKind kind, const store::RecordKey& key, uint64_t bytes);
  bool erase(store::RecordKind kind, const store::RecordKey& key);
  void swap_records(const store::RecordKey& a, const store::RecordKey& b);  // pages, in place
  bool has(store::RecordKind kind, const store::RecordKey& key) const;
  size_t n_set_aside() const;
  uint64_t bytes_appended() const;
  store::Catalogue catalogue() const;

 private:
  friend class MemoryVolume;
  struct Record {
    std::vector<std::byte> bytes;
    bool committed = false;
  };
  struct Segment {
    std::map<uint64_t, Record> records;
    uint64_t bytes = 64;
    bool ended = false;
  };
  using Name = std::tuple<store::RecordKind, uint64_t, uint64_t>;
  static Name name_of(store::RecordKind kind, const store::RecordKey& key) { return {kind, key.high, key.low}; }
  // Under the lock; waits and fails as the test has ordered.
  Status enter(std::unique_lock<std::mutex>& lock, Call call);
  std::vector<std::byte>* find(store::RecordKind kind, const store::RecordKey& key);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  store::StoreIdentity identity_;
  std::map<uint64_t, Segment> segments_;
  std::map<Name, Record> named_;
  store::Catalogue catalogue_;
  uint64_t next_segment_ = 1;
  size_t n_set_aside_ = 0;
  uint64_t bytes_appended_ = 0;
  std::map<uint32_t, uint64_t> n_calls_;
  uint64_t fail_in_ = 0;
  Code fail_code_ = Code::kIO;
  uint32_t fail_calls_ = 0, hang_calls_ = 0;
  bool fail_for_good_ = false, struck_ = false;
  size_t n_hanging_ = 0;
};

struct MemoryVolumeOptions {
  bool all_named = false;
  bool read_only = false;
  bool can_list = true;  // else scan shows nothing
  uint64_t segment_bytes = uint64_t{64} << 20;
};

class MemoryVolume final : public store::Volume {
 public:
  MemoryVolume(std::shared_ptr<MemoryDisk> disk, const MemoryVolumeOptions& options);

  const store::StoreIdentity& identity() const override { return disk_->identity_; }
  bool read_only() const override { return options_.read_only; }
  store::Catalogue read_catalogue() override;
  Status write_catalogue(const store::Catalogue& catalogue) override;
  Status scan(const std::function<void(store::FoundRecord&&)>& visit, uint64_t* n_damaged) override;
  Result<store::FoundRecord> find(store::RecordKind kind, const store::RecordKey& key) override;
  Result<store::Place> append(const store::RecordHead& head, std::span<const std::byte> record) override;
  Status commit() override;
  Status read(const store::RecordHead& head, const store::Place& place, uint64_t offset,
              std::span<std::byte> out) override;
  Status remove(const store::RecordHead& head, const store::Place& place) override;
  Status set_aside(const store::RecordHead& head, const store::Place& place) override;
  std::vector<Segment> segments() const override;
  Status close_active_segment() override;
  Status remove_segment(uint64_t number) override;
  uint64_t physical_bytes() const override;

 private:
  bool is_named(store::RecordKind kind) const { return options_.all_named || kind == store::RecordKind::kState; }
  void drop_uncommitted();

  const std::shared_ptr<MemoryDisk> disk_;
  const MemoryVolumeOptions options_;
  uint64_t active_ = 0;  // 0: none
  std::vector<store::Place> uncommitted_;
  std::map<MemoryDisk::Name, std::vector<std::byte>> uncommitted_named_;
  std::set<std::pair<uint64_t, uint64_t>> shown_;
  std::map<MemoryDisk::Name, std::vector<std::byte>> shown_named_;
};

}  // namespace dsv41::test
