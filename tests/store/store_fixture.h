// Records of conversations for the tests of Store, a store over memory, and a clock that a test sets.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/store.h"
#include "support/memory_volume.h"

namespace dsv41::test {

constexpr uint64_t kSecondNs = 1'000'000'000, kHourNs = 3600 * kSecondNs;

class FakeClock {
 public:
  WallClock clock() {
    return {[](void* self) { return static_cast<FakeClock*>(self)->now_.load(); }, this};
  }
  void set(uint64_t unix_ns) { now_ = unix_ns; }
  void advance(uint64_t ns) { now_ += ns; }
  uint64_t now() const { return now_; }

 private:
  std::atomic<uint64_t> now_{1'700'000'000 * kSecondNs};
};

// A record as a session would make it: its name, payload and all else follow from what it stands on and from `words`.
struct TestRecord {
  store::RecordDraft draft;
  store::RecordName name() const { return {draft.head.key, draft.head.chain}; }
  const store::RecordKey& key() const { return draft.head.key; }
  const Digest128& payload() const { return draft.head.payload; }
  uint64_t record_bytes() const;  // stored without compression
};

struct RecordMaker {
  int key_bits = 128;
  size_t payload_bytes = 1000;

  // n_hits > 0: approximate. Equal words with another variant: other bytes under the same name.
  TestRecord page(const TestRecord* parent, uint64_t words, size_t n_hits = 0, uint64_t variant = 0) const;
  TestRecord state(const TestRecord* parent, uint64_t words, size_t n_ids, uint32_t parts = store::kStateEncoderWindows,
                   uint64_t variant = 0) const;
  // A conversation of so many pages.
  std::vector<TestRecord> chain(uint64_t words, size_t n_pages, size_t n_hits = 0) const;

 private:
  TestRecord make(store::RecordKind kind, const TestRecord* parent, uint64_t words, size_t n_ids, size_t n_hits,
                  uint64_t variant) const;
};

std::vector<store::RecordName> names(const std::vector<TestRecord>& records);

// A store over a MemoryDisk. Its threads, if any, are its own.
struct MemoryStore {
  explicit MemoryStore(bool background = false) {
    options.folder = "memory";
    options.background = background;
    options.compress = false;
    options.clock = clock.clock();
  }
  void open(bool read_only = false);
  void close() { store.reset(); }
  void reopen() {
    close();
    open();
  }
  store::Store* operator->() const { return store.get(); }

  store::PutOutcome put(const TestRecord& record);
  size_t put_all(const std::vector<TestRecord>& records);  // how many came in, up to the first that did not
  size_t n_found(const std::vector<TestRecord>& pages, const store::Wanted& wanted = {});
  bool has(const TestRecord& record) const { return static_cast<bool>(store->lease(record.key())); }
  Status read(const TestRecord& record);  // and compare
  std::string fault() const { return std::string(store->check_invariants().message()); }

  FakeClock clock;
  store::StoreOptions options;
  MemoryVolumeOptions volume;
  std::shared_ptr<MemoryDisk> disk = std::make_shared<MemoryDisk>();
  std::shared_ptr<store::Store> store;
};

// Reads the leased record and compares it.
Status read_and_compare(store::Store& store, const store::Lease& lease, const TestRecord& record,
                        const CancelFlag* cancel = nullptr);

}  // namespace dsv41::test
