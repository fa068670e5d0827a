// Invariant 14 of kv.md section 12, for a whole store: the power goes at each write, sync, rename, ... of a store's
// life, and in every state that the disk may be in then, what could be found before is found, whole, and whatever else
// is found is a record that was stored once and not removed for good. DSV41_TEST_CRASHES=n: how many random states
// each cut is looked at in.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "store/store_fixture.h"
#include "support/crash_file_system.h"

namespace dsv41::test {
namespace {

using store::Lease;
using store::PutOutcome;
using store::Store;

uint64_t n_crashes(uint64_t otherwise) {
  const char* chosen = std::getenv("DSV41_TEST_CRASHES");
  return chosen ? std::strtoull(chosen, nullptr, 10) : otherwise;
}

class CrashLife {
 public:
  // goes_on: operations fail now and then; else the first failure is the power's.
  CrashLife(CrashFileSystem& files, size_t payload_bytes, uint64_t budget_records, bool goes_on)
      : files_(files), goes_on_(goes_on) {
    options_.folder = "/store";
    options_.files = &files;
    options_.background = false;
    options_.clock = clock_.clock();
    RecordMaker make;
    make.payload_bytes = payload_bytes;
    records_ = make.chain(1, 3);
    options_.segment_bytes = 2 * records_[0].record_bytes();
    options_.budget_bytes = budget_records * records_[0].record_bytes();
    rough_ = add(make.page(&records_[0], 50, 1));
    on_rough_ = add(make.page(&records_[rough_], 60, 1));
    exact_ = add(make.page(&records_[0], 50));
    state_ = add(make.state(&records_[2], 70, 9, store::kStateSampler));
    newer_state_ = add(make.state(&records_[2], 70, 9, store::kStateSampler, 1));
    for (uint64_t i = 0; i < 6; ++i) add(make.page(nullptr, 100 + i));
    first_root_ = records_.size() - 6;
  }

  // Until the power goes.
  void lead() {
    open();
    for (size_t i = 0; i < 3; ++i) put(i);
    put(rough_);
    put(on_rough_);
    put(state_);
    step([&] { static_cast<void>(store_->pin(records_[1].key(), "anchor").ok()); });
    put(exact_);
    put(newer_state_);
    close();
    open();
    for (size_t i = first_root_; i < first_root_ + 4; ++i) put(i);
    remove(first_root_);
    remove(first_root_ + 1);
    step([&] { static_cast<void>(store_->gc(UINT64_MAX, nullptr).ok()); });
    step([&] {
      const Lease lease = store_->lease(records_[first_root_ + 2].key());
      if (lease) store_->quarantine(lease, "of no use");
    });
    put(first_root_ + 4);
    close();
    open();
    put(first_root_);
    put(first_root_ + 5);
    step([&] { static_cast<void>(store_->gc(store_->stats().physical_bytes / 2, nullptr).ok()); });
    put(first_root_ + 3);
    close();
  }

  // Opens the store as the cut has left it.
  void check(CrashFileSystem& after) const {
    store::StoreOptions options = options_;
    options.files = &after;
    options.budget_bytes = 0;  // what the cut has left beside them may be more than was there
    Result<std::shared_ptr<Store>> opened = Store::open(options);
    if (!opened.ok() && found_.empty() && gone_.empty()) return;  // it had not been made
    REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    const std::shared_ptr<Store> store = std::move(opened).value();
    std::set<size_t> found;
    for (const store::RecordInfo& info : store->list()) {
      const auto it = std::find_if(records_.begin(), records_.end(),
                                   [&](const TestRecord& one) { return one.payload() == info.head.payload; });
      REQUIRE(it != records_.end());
      const size_t i = static_cast<size_t>(it - records_.begin());
      CAPTURE(i);
      REQUIRE(put_.contains(i));
      REQUIRE_FALSE(gone_.contains(i));
      const Status read = read_and_compare(*store, store->lease(it->key()), *it);
      REQUIRE_MESSAGE(read.ok(), read.message());
      found.insert(i);
    }
    for (const size_t i : found_) {
      CAPTURE(i);
      REQUIRE(found.contains(i));
    }
    REQUIRE(store->check_invariants().message() == "");
    const TestRecord fresh = RecordMaker().page(nullptr, 999);
    REQUIRE(store->put(fresh.draft, nullptr).ok());
    REQUIRE(read_and_compare(*store, store->lease(fresh.key()), fresh).ok());
  }

 private:
  size_t add(TestRecord record) {
    records_.push_back(std::move(record));
    return records_.size() - 1;
  }

  bool has_power() const { return goes_on_ || !files_.struck(); }
  bool is_alive() const { return store_ && has_power(); }

  // Notes what could be found when the step was over, or when the power went.
  template <class Step>
  void step(Step step) {
    if (!is_alive()) return;
    clock_.advance(kSecondNs);
    step();
    found_.clear();
    for (const store::RecordInfo& info : store_->list()) {
      for (size_t i = 0; i < records_.size(); ++i) {
        if (records_[i].payload() == info.head.payload && !doubtful_.contains(i)) found_.insert(i);
      }
    }
  }

  void put(size_t i) {
    if (!is_alive()) return;
    put_.insert(i);
    gone_.erase(i);
    // While another record takes its place, and when that fails, either may be there afterwards.
    if (i == exact_) doubtful_.insert({rough_, on_rough_});
    if (i == newer_state_) doubtful_.insert(state_);
    step([&] {
      if (store_->put(records_[i].draft, nullptr).ok()) doubtful_.erase(i);
    });
  }

  void remove(size_t i) {
    if (!is_alive()) return;
    doubtful_.insert(i);
    step([&] {
      if (store_->remove(records_[i].key()).ok()) gone_.insert(i);
    });
  }

  void open() {
    if (!has_power()) return;
    Result<std::shared_ptr<Store>> opened = Store::open(options_);
    if (opened.ok()) store_ = std::move(opened).value();
    step([] {});
  }
  void close() { store_.reset(); }

  CrashFileSystem& files_;
  const bool goes_on_;
  FakeClock clock_;
  store::StoreOptions options_;
  std::vector<TestRecord> records_;
  size_t rough_ = 0, on_rough_ = 0, exact_ = 0, state_ = 0, newer_state_ = 0, first_root_ = 0;
  std::shared_ptr<Store> store_;
  std::set<size_t> put_, found_, gone_, doubtful_;
};

// Records of a few sectors: every state of each cut is looked at. Of many sectors: n_random of them.
void cut_everywhere(size_t payload_bytes, uint64_t budget_records, uint64_t n_random) {
  bool struck = true;
  uint64_t n = 1;
  for (; struck; ++n) {
    CAPTURE(n);
    CrashFileSystem files;
    files.power_off_at(n);
    CrashLife life(files, payload_bytes, budget_records, /*goes_on=*/false);
    life.lead();
    struck = files.struck();
    for_each_crash(files, n_random, [&](CrashFileSystem& after) { life.check(after); });
  }
  CHECK(n > 100);
}

// Then the disk works again, or the power goes.
void fail_everywhere(uint64_t budget_records, Code code, bool for_good) {
  bool struck = true;
  uint64_t n = 1;
  for (; struck; ++n) {
    CAPTURE(n);
    CrashFileSystem files;
    files.fail_after(
        {.n = n, .code = code, .kinds = CrashFileSystem::kChanges, .for_good = for_good, .n_torn_bytes = 700});
    CrashLife life(files, 1000, budget_records, /*goes_on=*/true);
    life.lead();
    struck = files.struck();
    files.fail_after({.n = UINT64_MAX});
    for_each_crash(files, 2, [&](CrashFileSystem& after) { life.check(after); });
    life.check(files);
  }
  CHECK(n > 100);
}

TEST_SUITE("store/store_crash") {
  TEST_CASE("a store finds after a power cut what it found before") { cut_everywhere(1000, 0, 6); }

  TEST_CASE("a store on a disk that fails now and then keeps what it has reported") {
    for (const Code code : {Code::kNO_SPACE, Code::kIO}) {
      for (const bool for_good : {false, true}) {
        CAPTURE(code);
        CAPTURE(for_good);
        fail_everywhere(0, code, for_good);
        fail_everywhere(6, code, for_good);
      }
    }
  }

  TEST_CASE("a store with a budget finds after a power cut what it found before") { cut_everywhere(1000, 6, 6); }

  TEST_CASE("large records are found after a power cut, whole or not at all") {
    cut_everywhere(9000, 0, n_crashes(4));
    cut_everywhere(9000, 6, n_crashes(4));
  }
}

}  // namespace
}  // namespace dsv41::test
