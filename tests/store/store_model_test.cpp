// Random operations on a store, against a naive model: a list of records that are there, what they stand on, when they
// were used last. A failure prints its seed; DSV41_TEST_SEED=n replays one, DSV41_TEST_OPERATIONS=n changes how many
// operations each test does.
//
// Without budget and time to live the store must have exactly what the model has. With them it may have less, where the
// model says that it may: nothing that is leased or pinned or has something standing on it, and nothing that was used
// later than a record that could have gone and is still there. Opening it anew may bring back records that were given
// up and still lie on the disk, but never one that was removed for good.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "store/store_fixture.h"
#include "support/sanitizers.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using store::Lease;
using store::PutOutcome;
using store::RecordKind;
using store::Store;
using store::StoreOptions;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* chosen = std::getenv(name);
  return chosen ? std::strtoull(chosen, nullptr, 10) : otherwise;
}

struct Mode {
  const char* name;
  uint64_t budget_bytes = 0;
  uint64_t ttl_ns = 0;
  bool host = false;
  bool in_folder = false;  // a real one; else over memory
  int key_bits = 128;
};

// All records that a run may store: conversations that branch, exact and approximate ones, states.
struct Candidate {
  TestRecord record;
  int parent = -1;
  bool exact = true;
};

std::vector<Candidate> make_candidates(int key_bits) {
  RecordMaker make;
  make.key_bits = key_bits;
  make.payload_bytes = 400;
  std::vector<Candidate> all;
  for (uint64_t root = 0; root < 3; ++root) all.push_back({make.page(nullptr, 10 * root), -1, true});
  for (size_t i = 0; i < all.size() && all.size() < 150; ++i) {
    if (all[i].record.draft.head.kind == RecordKind::kState) continue;
    const int parent = static_cast<int>(i);
    const uint64_t words = 1000 + 7 * all[i].record.draft.head.first_token;
    const bool exact = all[i].exact;
    const Candidate from = all[i];
    for (uint64_t branch = 0; branch < 2; ++branch) {
      if (exact) all.push_back({make.page(&from.record, words + branch), parent, true});
      all.push_back({make.page(&from.record, words + branch, 1), parent, false});
    }
    all.push_back({make.state(&from.record, words, 7 + i % 3), parent, true});
  }
  return all;
}

class ModelRun {
 public:
  ModelRun(const Mode& mode, uint64_t seed) : mode_(mode), all_(make_candidates(mode.key_bits)), random_(seed) {
    memory_.options.folder = mode.host ? "" : mode.in_folder ? folder_.file("store") : "memory";
    memory_.options.budget_bytes = mode.budget_bytes;
    memory_.options.ttl_ns = mode.ttl_ns;
    memory_.options.segment_bytes = 6000;
    open();
  }

  // Empty, or what is wrong.
  std::string operate() {
    memory_.clock.advance(1 + random(kSecondNs));
    now_ = memory_.clock.now();
    may_lose_ = mode_.budget_bytes > 0 || mode_.ttl_ns > 0;
    protected_ = -1;
    const uint64_t what = random(100);
    std::string wrong;
    if (what < 55)
      wrong = put();
    else if (what < 70)
      wrong = match();
    else if (what < 76)
      wrong = read();
    else if (what < 80)
      wrong = hold();
    else if (what < 86)
      wrong = let_go();
    else if (what < 89)
      wrong = pin();
    else if (what < 93)
      wrong = unpin();
    else if (what < 94)
      wrong = remove();
    else if (what < 95)
      wrong = quarantine();
    else if (what < 97)
      wrong = collect();
    else if (what < 99)
      memory_.clock.advance(random(20 * kHourNs));
    else if (mode_.key_bits == 128)
      reopen();
    if (wrong.empty()) wrong = compare();
    if (wrong.empty()) wrong = memory_.fault();
    return wrong;
  }

  size_t n_present() const { return there_.size(); }

 private:
  struct Known {
    uint64_t used = 0;  // when, by the model's count; a use of a record is one of all that it stands on
    uint64_t used_ns = 0;
  };

  uint64_t random(uint64_t n) { return random_() % n; }
  bool is_page(int i) const { return all_[static_cast<size_t>(i)].record.draft.head.kind == RecordKind::kPage; }
  const TestRecord& record(int i) const { return all_[static_cast<size_t>(i)].record; }
  int parent(int i) const { return all_[static_cast<size_t>(i)].parent; }
  bool same_name(int a, int b) const {
    return is_page(a) == is_page(b) && record(a).draft.head.chain == record(b).draft.head.chain;
  }
  // The one of that name that is there; -1: none.
  int namesake(int i) const {
    for (const auto& [j, known] : there_) {
      if (same_name(i, j)) return j;
    }
    return -1;
  }
  bool stands_on(int i, int below) const {
    for (; i >= 0; i = parent(i)) {
      if (i == below) return true;
    }
    return false;
  }
  void drop(int i) {
    std::erase_if(there_, [&](const auto& one) { return stands_on(one.first, i); });
    for (auto it = leases_.begin(); it != leases_.end();) {
      if (stands_on(it->first, i)) stale_.emplace_back(it->first, std::move(it->second));
      it = stands_on(it->first, i) ? leases_.erase(it) : std::next(it);
    }
  }
  void use(int i) {
    ++n_uses_;
    for (; i >= 0; i = parent(i)) there_[i] = {n_uses_, now_};
  }
  bool is_kept(int i) const { return leases_.contains(i) || pins_.contains(key_of(i)); }
  std::string key_of(int i) const { return key_text(record(i).key()); }
  int pick() {
    if (there_.empty()) return -1;
    auto it = there_.begin();
    std::advance(it, static_cast<long>(random(there_.size())));
    return it->first;
  }

  void open() {
    if (mode_.in_folder) {
      Result<std::shared_ptr<Store>> opened = Store::open(memory_.options);
      REQUIRE_MESSAGE(opened.ok(), opened.status().message());
      memory_.store = std::move(opened).value();
    } else {
      memory_.open();
    }
  }

  bool is_key_taken(int i) const {
    size_t n = 0;
    for (const auto& [j, known] : there_) {
      if (!(record(j).key() == record(i).key()) || same_name(i, j)) continue;
      if (!is_page(i) && !is_page(j)) return true;
      if (++n == 8) return true;
    }
    return false;
  }

  std::string put() {
    int i = static_cast<int>(random(all_.size()));
    // Mostly one that can come in.
    for (int tries = 0; tries < 5 && parent(i) >= 0 && !there_.contains(parent(i)); ++tries) {
      i = static_cast<int>(random(all_.size()));
    }
    const int same = namesake(i), below = parent(i);
    const bool on_same = same >= 0 && parent(same) == below;
    const bool exact = all_[static_cast<size_t>(i)].exact;
    PutOutcome expected = PutOutcome::kQueued;
    if (on_same && (!is_page(i) || !exact || all_[static_cast<size_t>(same)].exact)) {
      expected = PutOutcome::kPresent;
    } else if (same >= 0 && (mode_.host || !is_page(i)) && leases_.contains(same)) {
      expected = PutOutcome::kPresent;
    } else if (below >= 0 && !there_.contains(below)) {
      expected = PutOutcome::kParentMissing;
    } else if (is_key_taken(i)) {
      expected = PutOutcome::kNoRoom;
    }
    const PutOutcome outcome = memory_.put(record(i));
    if (outcome == PutOutcome::kNoRoom && mode_.budget_bytes > 0) {
      protected_ = below;
      return "";
    }
    // What has expired, and is still there in the model, was no parent.
    if (outcome == PutOutcome::kParentMissing && mode_.ttl_ns > 0) return "";
    if (outcome != expected && !(mode_.ttl_ns > 0 && expected == PutOutcome::kPresent)) return "put answers otherwise";
    if (outcome == PutOutcome::kPresent) use(same);
    if (outcome != PutOutcome::kQueued) return "";
    if (same >= 0 && same != i) drop(same);
    use(i);
    stored_.insert(i);
    return "";
  }

  std::string match() {
    std::vector<int> path;
    for (int i = static_cast<int>(random(all_.size())); i >= 0; i = parent(i)) {
      if (is_page(i)) path.insert(path.begin(), i);
    }
    std::vector<store::RecordName> names;
    for (const int i : path) names.push_back(record(i).name());
    const std::vector<Lease> found = memory_->match(names, {});
    std::vector<int> expected;
    for (const int i : path) {
      const int same = namesake(i);
      if (same < 0 || parent(same) != (expected.empty() ? -1 : expected.back())) break;
      expected.push_back(same);
    }
    // An object that lost its parent is found again when that is back.
    while (mode_.host && found.size() > expected.size()) {
      const int below = expected.empty() ? -1 : expected.back();
      const auto it = std::find_if(stored_.begin(), stored_.end(), [&](int i) {
        return parent(i) == below && record(i).payload() == found[expected.size()].head().payload;
      });
      if (it == stored_.end()) return "match finds what should not be there";
      expected.push_back(*it);
    }
    if (found.size() != expected.size() && !(may_lose_ && found.size() < expected.size()))
      return "match finds otherwise";
    for (size_t i = 0; i < found.size(); ++i) {
      if (!(found[i].head().payload == record(expected[i]).payload())) return "match finds other pages";
    }
    if (!found.empty()) use(expected[found.size() - 1]);
    return "";
  }

  std::string read() {
    const int i = pick();
    if (i < 0 || mode_.key_bits < 128) return "";
    const Lease lease = memory_->lease(record(i).key());
    if (!lease) return may_lose_ ? "" : "a record that is there is not leased";
    const Status status = read_and_compare(*memory_.store, lease, record(i));
    return status.ok() ? "" : "read: " + std::string(status.message());
  }

  std::string hold() {
    const int i = pick();
    if (i < 0 || mode_.key_bits < 128 || leases_.size() > 4) return "";
    Lease lease = memory_->lease(record(i).key());
    if (lease) leases_.emplace(i, std::move(lease));
    return "";
  }

  std::string let_go() {
    if (!stale_.empty()) {
      // It has left the index; a page of a segment can still be read.
      const auto& [i, lease] = stale_.back();
      const Status status = read_and_compare(*memory_.store, lease, record(i));
      if (!status.ok() && !mode_.host && is_page(i)) return "read of a stale lease: " + std::string(status.message());
      stale_.pop_back();
    }
    if (leases_.empty()) return "";
    auto it = leases_.begin();
    std::advance(it, static_cast<long>(random(leases_.size())));
    const int i = it->first;
    const Status status = read_and_compare(*memory_.store, it->second, record(i));
    if (!status.ok()) return "read of a leased record: " + std::string(status.message());
    leases_.erase(it);
    return "";
  }

  std::string pin() {
    const int i = pick();
    if (i < 0 || mode_.key_bits < 128 || pins_.size() > 3) return "";
    const Status status = memory_->pin(record(i).key(), "test");
    if (status.ok()) ++pins_[key_of(i)];
    return status.ok() || may_lose_ ? "" : "pin fails";
  }

  std::string unpin() {
    const int i = pick();
    if (i < 0) return "";
    const auto pins = pins_.find(key_of(i));
    const Code code = memory_->unpin(record(i).key()).code();
    if (code != (pins == pins_.end() ? Code::kSTATE : Code::kOK)) return "unpin answers otherwise";
    if (pins != pins_.end() && --pins->second == 0) pins_.erase(pins);
    return "";
  }

  std::string remove() {
    const int i = pick();
    if (i < 0 || mode_.key_bits < 128) return "";
    bool kept = false;
    for (const auto& [j, known] : there_) kept = kept || (stands_on(j, i) && is_kept(j));
    const Code code = memory_->remove(record(i).key()).code();
    if (code == Code::kNOT_FOUND && may_lose_) return "";
    if (code != (kept ? Code::kBUSY : Code::kOK)) return "remove answers otherwise";
    if (kept) return "";
    drop(i);
    // Whatever has this page in its history, by name.
    std::erase_if(stored_, [&](int j) {
      for (; j >= 0; j = parent(j)) {
        if (same_name(i, j)) return true;
      }
      return false;
    });
    return "";
  }

  std::string quarantine() {
    const int i = pick();
    if (i < 0 || mode_.key_bits < 128) return "";
    {
      const Lease lease = memory_->lease(record(i).key());
      if (!lease) return may_lose_ ? "" : "a record that is there is not leased";
      memory_->quarantine(lease, "test");
    }
    drop(i);
    return "";
  }

  std::string collect() {
    const uint64_t target = random(2) ? UINT64_MAX : memory_->stats().physical_bytes / 2;
    may_lose_ = may_lose_ || target != UINT64_MAX;
    if (!memory_->gc(target, nullptr).ok()) return "a collection fails";
    if (target != UINT64_MAX || mode_.ttl_ns == 0) return "";
    for (const auto& [i, known] : there_) {
      if (now_ - known.used_ns <= mode_.ttl_ns) continue;
      bool kept = false;
      for (const auto& [j, other] : there_) kept = kept || (stands_on(j, i) && is_kept(j));
      if (!kept && memory_->lease(record(i).key())) return "a record has expired and is still there";
    }
    return "";
  }

  void reopen() {
    leases_.clear();
    stale_.clear();
    memory_.close();
    open();
    if (mode_.host) pins_.clear();      // the host has no place for pins,
    revived_ = revived_ || mode_.host;  // nor for times of use
    // What was given up may be there again; it counts as used when it was written, before all that was there.
    const std::map<int, Known> before = there_;
    for (const store::RecordInfo& info : memory_->list()) {
      for (const int i : stored_) {
        if (record(i).payload() == info.head.payload && !there_.contains(i)) there_[i] = {0, info.used_unix_ns};
      }
    }
    for (auto& [i, known] : there_) {
      if (before.contains(i)) continue;
      for (int below = parent(i); below >= 0; below = parent(below)) {
        there_[below].used_ns = std::max(there_[below].used_ns, known.used_ns);
      }
    }
    revived_ = revived_ || there_.size() > before.size();
  }

  // The store has what the model has, or less where it may.
  std::string compare() {
    std::set<int> found;
    for (const store::RecordInfo& info : memory_->list()) {
      const auto it = std::find_if(there_.begin(), there_.end(),
                                   [&](const auto& one) { return record(one.first).payload() == info.head.payload; });
      if (it == there_.end()) return "a record is there that should not be";
      found.insert(it->first);
    }
    std::vector<int> lost;
    uint64_t lost_last = 0;
    for (const auto& [i, known] : there_) {
      if (found.contains(i)) continue;
      const bool expired = mode_.ttl_ns > 0 && memory_.clock.now() - known.used_ns > mode_.ttl_ns;
      if (!may_lose_ && !expired) return "a record is not there that should be";
      if (is_kept(i)) return "a record was given up that is kept";
      for (const int j : found) {
        if (j != i && stands_on(j, i)) return "a record was given up that another one stands on";
      }
      if (mode_.ttl_ns > 0 && mode_.budget_bytes == 0 && !expired) continue;
      lost_last = std::max(lost_last, known.used);
      lost.push_back(i);
    }
    for (const int i : found) {
      bool leaf = !is_kept(i) && i != protected_;
      for (const int j : found) leaf = leaf && (j == i || !stands_on(j, i));
      // Times of what was brought back are those of writing, which the model does not follow.
      if (leaf && !revived_ && mode_.ttl_ns == 0 && there_[i].used < lost_last)
        return "a record went before an older one";
    }
    std::erase_if(there_, [&](const auto& one) { return !found.contains(one.first); });
    if (mode_.budget_bytes > 0 && memory_->stats().physical_bytes > mode_.budget_bytes + kFixedBytes) {
      return "the store is over its budget";
    }
    return "";
  }

  static constexpr uint64_t kFixedBytes = 16384;  // the file `store`, the catalogue, heads of segments

  const Mode mode_;
  const std::vector<Candidate> all_;
  std::mt19937_64 random_;
  TempFolder folder_;
  MemoryStore memory_;
  std::map<int, Known> there_;
  std::map<int, Lease> leases_;               // destroyed before the store
  std::vector<std::pair<int, Lease>> stale_;  // of records that are not there any more
  std::map<std::string, int> pins_;
  std::set<int> stored_;  // ever, and not removed for good since
  uint64_t n_uses_ = 0, now_ = 0;
  bool may_lose_ = false, revived_ = false;
  int protected_ = -1;
};

void run(const Mode& mode, int64_t n_operations) {
  if (DSV41_ADDRESS_SANITIZER || DSV41_THREAD_SANITIZER) n_operations /= 4;
  const uint64_t seed = from_environment("DSV41_TEST_SEED", 20261130);
  n_operations = static_cast<int64_t>(from_environment("DSV41_TEST_OPERATIONS", static_cast<uint64_t>(n_operations)));
  if (mode.in_folder) n_operations /= 10;  // each of them waits for the disk
  const std::string name = mode.name;
  CAPTURE(name);
  CAPTURE(seed);
  ModelRun model(mode, seed);
  size_t most = 0;
  for (int64_t i = 0; i < n_operations; ++i) {
    CAPTURE(i);
    const std::string wrong = model.operate();
    REQUIRE_MESSAGE(wrong.empty(), wrong);
    most = std::max(most, model.n_present());
  }
  CHECK(most > 5);
}

TEST_SUITE("store/store_model") {
  TEST_CASE("a store has what the model has") { run({.name = "memory"}, 4000); }

  TEST_CASE("a store of the host's objects has what the model has") { run({.name = "host", .host = true}, 4000); }

  TEST_CASE("a store with a budget gives up what the model allows") {
    run({.name = "budget", .budget_bytes = 24000}, 4000);
    run({.name = "budget, host", .budget_bytes = 24000, .host = true}, 4000);
  }

  TEST_CASE("a store forgets what has expired and nothing else") { run({.name = "ttl", .ttl_ns = 24 * kHourNs}, 4000); }

  TEST_CASE("a store whose keys collide has what the model has") { run({.name = "keys", .key_bits = 3}, 3000); }

  TEST_CASE("a store in a folder has what the model has") {
    run({.name = "folder", .in_folder = true}, 10000);
    run({.name = "folder, budget", .budget_bytes = 24000, .in_folder = true}, 10000);
  }
}

}  // namespace
}  // namespace dsv41::test
