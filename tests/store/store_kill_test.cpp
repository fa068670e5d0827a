// A store on the machine's own disk whose writer is killed at random times, again and again over one folder: what was
// reported durable is there with its bytes, what was removed is not, and whatever else is there is a record that was put,
// whole. (That bytes survive the power, too, is store_crash_test.cpp's business: a kill leaves the page cache.)
//
// DSV41_TEST_KILLS=n: how many.
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "store/store_fixture.h"
#include "support/killed_child.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using store::LockMode;
using store::Store;
using store::StoreOptions;

enum class What : uint32_t { kOpened, kBegun, kDurable, kPinned, kRemoving, kRemoved, kCompacted };

struct Report {
  What what = What::kOpened;
  uint32_t round = 0;
  uint64_t number = 0;  // of the conversation within its round
};

// What writer `round` puts: conversations on top of a page of its own, of few sectors or of many.
struct Conversation {
  Conversation(uint32_t round, uint64_t number) {
    RecordMaker make;
    make.payload_bytes = number % 5 == 4 ? 30000 : 700;
    records.push_back(RecordMaker().page(nullptr, round));
    for (uint64_t i = 0; i <= number % 3; ++i) records.push_back(make.page(&records.back(), 4 * number + i));
    records.push_back(make.state(&records.back(), number, 1 + number % 127));
  }
  const TestRecord& own_page() const { return records[1]; }

  std::vector<TestRecord> records;  // the page that all of its round share is first
};

StoreOptions store_options(const std::string& folder, LockMode lock) {
  StoreOptions options;
  options.folder = folder;
  options.lock = lock;
  options.segment_bytes = 1 << 16;
  return options;
}

void require_or_exit(bool holds) {
  if (!holds) ::_exit(5);
}

// The writer's life. Small segments: it ends, begins and compacts some of them.
void write_for_ever(const std::string& folder, uint32_t round, const Teller<Report>& teller) {
  Result<std::shared_ptr<Store>> opened = Store::open(store_options(folder, LockMode::kWriter));
  require_or_exit(opened.ok());
  Store& store = *opened.value();
  teller.tell({What::kOpened, round, 0});
  for (uint64_t number = 0;; ++number) {
    const Conversation conversation(round, number);
    teller.tell({What::kBegun, round, number});
    for (const TestRecord& record : conversation.records) require_or_exit(store.put(record.draft, nullptr).ok());
    require_or_exit(store.flush(nullptr).ok());
    teller.tell({What::kDurable, round, number});
    if (number % 4 == 1) {
      require_or_exit(store.pin(conversation.own_page().key(), "kept").ok());
      teller.tell({What::kPinned, round, number});
    }
    if (number % 4 == 3) {
      teller.tell({What::kRemoving, round, number - 1});
      require_or_exit(store.remove(Conversation(round, number - 1).own_page().key()).ok());
      teller.tell({What::kRemoved, round, number - 1});
    }
    if (number % 8 == 7) {
      require_or_exit(store.gc(UINT64_MAX, nullptr).ok());
      teller.tell({What::kCompacted, round, number});
    }
  }
}

// What may and must be in the store, by what was told.
class Expected {
 public:
  void hear(const Report& report) {
    if (report.what == What::kOpened || report.what == What::kCompacted) return;
    const Conversation conversation(report.round, report.number);
    for (const TestRecord& record : conversation.records) {
      const bool is_shared = &record == &conversation.records.front();
      Fate& fate = fates_[{record.key().high, record.key().low}];
      fate.payload = record.payload();
      if (report.what == What::kDurable) {
        fate.must = true;
        fate.round = report.round;
        fate.number = report.number;
        ++n_durable_;
      }
      if (report.what == What::kRemoving && !is_shared) fate.must = false;
      if (report.what == What::kRemoved && !is_shared) fate.may = false;
      if (report.what == What::kPinned && &record == &conversation.own_page()) fate.is_pinned = true;
    }
    n_removed_ += report.what == What::kRemoved;
  }

  // By name and payload alone, for all of them.
  void check(const Store& store) const {
    std::set<Name> found;
    for (const store::RecordInfo& info : store.list()) {
      const Name name{info.head.key.high, info.head.key.low};
      const auto it = fates_.find(name);
      REQUIRE(it != fates_.end());
      const Fate& fate = it->second;
      CAPTURE(fate.round);
      CAPTURE(fate.number);
      REQUIRE(fate.may);
      REQUIRE(info.head.payload == fate.payload);
      if (fate.is_pinned) REQUIRE(info.n_pins == 1);
      found.insert(name);
    }
    for (const auto& [name, fate] : fates_) {
      CAPTURE(fate.round);
      CAPTURE(fate.number);
      if (fate.must) REQUIRE(found.contains(name));
    }
    REQUIRE(store.check_invariants().message() == "");
  }

  // Byte by byte what one writer has put.
  void compare(Store& store, uint32_t round, uint64_t n_conversations) const {
    for (uint64_t number = 0; number < n_conversations; ++number) {
      for (const TestRecord& record : Conversation(round, number).records) {
        const Fate& fate = fates_.at({record.key().high, record.key().low});
        const store::Lease lease = store.lease(record.key());
        CAPTURE(round);
        CAPTURE(number);
        REQUIRE((lease || !fate.must));
        if (!lease) continue;
        const Status read = read_and_compare(store, lease, record);
        REQUIRE_MESSAGE(read.ok(), read.message());
      }
    }
  }

  uint64_t n_durable() const { return n_durable_; }
  uint64_t n_removed() const { return n_removed_; }

 private:
  using Name = std::pair<uint64_t, uint64_t>;
  struct Fate {
    bool may = true, must = false, is_pinned = false;
    Digest128 payload;
    uint32_t round = 0;
    uint64_t number = 0;
  };
  std::map<Name, Fate> fates_;
  uint64_t n_durable_ = 0, n_removed_ = 0;
};

std::shared_ptr<Store> must_open(const std::string& folder, LockMode lock) {
  Result<std::shared_ptr<Store>> opened = Store::open(store_options(folder, lock));
  REQUIRE_MESSAGE(opened.ok(), opened.status().message());
  return std::move(opened).value();
}

TEST_SUITE("store/store_kill") {
  TEST_CASE("a store whose writer is killed keeps what it has reported, and shows nothing that is not whole") {
    const TempFolder temporary;
    const std::string folder = temporary.file("store");
    std::mt19937_64 random(20261130);
    Expected expected;
    std::vector<uint64_t> n_begun;  // conversations of each round
    const uint64_t n_rounds = n_kills(10);
    for (uint32_t round = 0; round < n_rounds; ++round) {
      CAPTURE(round);
      KillTime<Report> when = random_kill_time<Report>(random);
      // However slow the disk is, some have done this much.
      if (round % 5 == 1) when.is_awaited = [](const Report& report) { return report.what == What::kDurable; };
      if (round % 5 == 3) when.is_awaited = [](const Report& report) { return report.what == What::kCompacted; };
      const std::vector<Report> told =
          run_until_killed(when, [&](const Teller<Report>& teller) { write_for_ever(folder, round, teller); });
      n_begun.push_back(0);
      for (const Report& report : told) {
        expected.hear(report);
        n_begun.back() += report.what == What::kBegun;
      }
      if (told.empty() && expected.n_durable() == 0) continue;  // it may not even have been made
      expected.check(*must_open(folder, LockMode::kReader));
      const std::shared_ptr<Store> store = must_open(folder, LockMode::kWriter);
      const store::StoreVerifyReport report = store->verify(/*deep=*/true, nullptr).value();
      CHECK(report.n_bad == 0);
      expected.check(*store);
      expected.compare(*store, round, n_begun.back());
    }
    CHECK(expected.n_durable() > n_rounds / 5 * 3);
    CHECK(expected.n_removed() >= n_rounds / 5);
    const std::shared_ptr<Store> store = must_open(folder, LockMode::kWriter);
    for (uint32_t round = 0; round < n_rounds; ++round) expected.compare(*store, round, n_begun[round]);
    const store::StoreStats stats = store->stats();
    CHECK(stats.n_quarantined == 0);
    MESSAGE(n_rounds << " kills, " << expected.n_durable() << " records reported durable, " << stats.n_pages
                     << " pages and " << stats.n_states << " states in " << stats.segments << " segments");
  }
}

}  // namespace
}  // namespace dsv41::test
