// A store whose n-th allocation, or n-th call of its volume, fails, for n = 1, 2, 3, ... until nothing fails any more.
// Whatever fails, the store stays in order, what a put or flush has reported is there when it is opened anew, and every
// record that can be read is the one that was stored.
#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <new>

#include "store/store_fixture.h"
#include "support/allocation_fault.h"

namespace dsv41::test {
namespace {

using store::Lease;
using store::PutOutcome;
using store::RecordKind;
using store::Store;

// What the store's life is made of. `step` does a part of it, and knows what may go wrong.
class Life {
 public:
  explicit Life(bool host, bool background, uint64_t budget_bytes = 0) : t_(background) {
    if (host) t_.options.folder = "";
    t_.options.segment_bytes = 5000;
    t_.options.budget_bytes = budget_bytes;
    t_.options.read_deadline_ns = background ? 3600 * kSecondNs : 0;
    const RecordMaker make;
    chain_ = make.chain(1, 4);
    rough_ = make.page(&chain_[0], 50, 1);
    on_rough_ = make.page(&rough_, 60, 1);
    exact_ = make.page(&chain_[0], 50);
    state_ = make.state(&chain_[3], 70, 9);
    for (uint64_t i = 0; i < 6; ++i) roots_.push_back(make.page(nullptr, 100 + i));
  }

  MemoryStore& store() { return t_; }

  // All of it, with whatever fails; the store may be closed in the end.
  void lead(const std::function<void(const std::function<void()>&)>& step) {
    step([&] { open(); });
    if (!t_.store) return;
    for (const TestRecord& page : chain_) step([&] { put(page); });
    step([&] { put(rough_); });
    step([&] { put(on_rough_); });
    step([&] { put(state_); });
    step([&] { flush(); });
    step([&] { static_cast<void>(t_->match(names(chain_), {}).size()); });
    step([&] { static_cast<void>(t_.read(state_).ok()); });
    step([&] { static_cast<void>(t_->states(chain_[3].key(), chain_[3].payload(), state_.draft.ids, {}).size()); });
    step([&] { static_cast<void>(t_->pin(chain_[1].key(), "a reason that is long enough to need memory").ok()); });
    step([&] { put(exact_); });
    for (const TestRecord& root : roots_) step([&] { put(root); });
    step([&] { flush(); });
    step([&] {
      forget({&roots_[0]});
      static_cast<void>(t_->remove(roots_[0].key()).ok());
    });
    step([&] {
      const Lease lease = t_->lease(roots_[1].key());
      forget({&roots_[1]});
      if (lease) t_->quarantine(lease, "a reason that is long enough to need memory");
    });
    step([&] { static_cast<void>(t_->unpin(chain_[1].key()).ok()); });
    step([&] { static_cast<void>(t_->gc(UINT64_MAX, nullptr).ok()); });
    step([&] { static_cast<void>(t_->verify(true, nullptr).ok()); });
    step([&] { static_cast<void>(t_->list().size()); });
    step([&] { static_cast<void>(t_->refresh().ok()); });
    step([&] { t_.close(); });
  }

  // Nothing fails any more: what was promised is there, and all there is is as it was stored.
  void check() {
    if (t_.store) {
      REQUIRE(t_.fault() == "");
      REQUIRE(t_->stats().n_leased == 0);
      t_.close();
    }
    t_.open();
    REQUIRE(t_.fault() == "");
    std::map<std::string, const TestRecord*> all;
    for (const TestRecord* record : everything())
      all[key_text(record->key()) + std::to_string(record->draft.hits.size())] = record;
    for (const store::RecordInfo& info : t_->list()) {
      const auto it = all.find(key_text(info.head.key) + std::to_string(info.head.n_hits));
      REQUIRE(it != all.end());
      REQUIRE(t_.read(*it->second).ok());
    }
    for (const TestRecord* record : promised_) {
      CAPTURE(key_text(record->key()));
      REQUIRE(t_.has(*record));
    }
    REQUIRE(t_->gc(0, nullptr).ok());
    REQUIRE(t_->stats().n_pages == (t_->stats().n_pinned ? 2 : 0));
  }

 private:
  void open() {
    t_.volume.segment_bytes = t_.options.segment_bytes;
    t_.volume.all_named = t_.options.folder.empty();
    Result<std::shared_ptr<Store>> opened = Store::open(t_.options, std::make_shared<MemoryVolume>(t_.disk, t_.volume));
    if (opened.ok()) t_.store = std::move(opened).value();
  }

  void put(const TestRecord& record) {
    const bool replaces = &record == &exact_;
    // From here on it may be the one that is there after a crash.
    if (replaces) forget({&rough_, &on_rough_});
    const Result<PutOutcome> outcome = t_->put(record.draft, nullptr);
    if (!outcome.ok() || outcome.value() > PutOutcome::kPresent || t_.options.budget_bytes > 0) return;
    (t_.options.background ? queued_ : promised_).push_back(&record);
  }

  void flush() {
    const bool ok = t_->flush(nullptr).ok();
    if (ok) promised_.insert(promised_.end(), queued_.begin(), queued_.end());
    queued_.clear();
  }

  void forget(std::initializer_list<const TestRecord*> records) {
    for (const TestRecord* record : records) {
      std::erase(promised_, record);
      std::erase(queued_, record);
    }
  }

  std::vector<const TestRecord*> everything() const {
    std::vector<const TestRecord*> all = {&rough_, &on_rough_, &exact_, &state_};
    for (const std::vector<TestRecord>* list : {&chain_, &roots_}) {
      for (const TestRecord& record : *list) all.push_back(&record);
    }
    return all;
  }

  MemoryStore t_;
  std::vector<TestRecord> chain_, roots_;
  TestRecord rough_, on_rough_, exact_, state_;
  std::vector<const TestRecord*> promised_, queued_;
};

struct Row {
  const char* name;
  bool host, background;
  uint64_t budget_bytes;
};
constexpr Row kRows[] = {
    {"folder", false, false, 0},
    {"host", true, false, 0},
    {"folder with a thread", false, true, 0},
    {"folder with a budget", false, false, 9000},
    {"host with a budget", true, false, 9000},
};

TEST_SUITE("store/store_fault") {
  TEST_CASE("a store stays in order whichever allocation fails") {
    for (const Row& row : kRows) {
      const std::string name = row.name;
      CAPTURE(name);
      int64_t n = 0;
      for (bool struck = true; struck;) {
        ++n;
        CAPTURE(n);
        struck = false;
        Life life(row.host, row.background, row.budget_bytes);
        life.lead([&](const std::function<void()>& part) {
          // Only what the store does counts, so each part has its own share of the allocations.
          static int64_t left = 0;
          if (!life.store().store) left = n;
          if (left > 0) fail_allocation(left);
          try {
            part();
          } catch (const std::bad_alloc&) {
          }
          const int64_t now_left = end_failing_allocations();
          if (left > 0 && now_left <= 0) struck = true;
          left = left > 0 ? now_left : 0;
        });
        life.check();
      }
      CHECK(n > 200);
    }
  }

  TEST_CASE("a store stays in order whichever call of its volume fails, once or for good") {
    for (const Row& row : kRows) {
      const std::string name = row.name;
      CAPTURE(name);
      for (const bool for_good : {false, true}) {
        for (const Code code : {Code::kNO_SPACE, Code::kIO}) {
          CAPTURE(for_good);
          CAPTURE(code);
          uint64_t n = 0;
          for (bool struck = true; struck;) {
            ++n;
            CAPTURE(n);
            Life life(row.host, row.background, row.budget_bytes);
            life.store().disk->fail(n, code, MemoryDisk::kAll & ~uint32_t{MemoryDisk::kReadCatalogue}, for_good);
            life.lead([](const std::function<void()>& part) { part(); });
            struck = life.store().disk->struck();
            life.store().disk->fail(0);
            life.check();
          }
          CHECK(n > 30);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
