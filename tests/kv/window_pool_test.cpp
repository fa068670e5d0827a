#include "kv/window_pool.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "base/memory_limit.h"

namespace dsv41::test {
namespace {

using kv::kNoPage;
using kv::PageId;
using kv::WindowEntry;
using kv::WindowEntryRef;
using kv::WindowPool;
using kv::WindowPoolOptions;
using kv::WindowPoolStats;
using kv::WindowSave;

constexpr uint64_t kSecond = 1000000000;

struct FakeClock {
  std::atomic<uint64_t> now{5 * kSecond};
  Clock clock() {
    return {[](void* user) { return static_cast<FakeClock*>(user)->now.load(); }, this};
  }
};

kv::PrefixRootRef make_root(const char* salt) {
  static const kv::PrefixKeys keys(kv::KeySeed{});
  return std::make_shared<const kv::PrefixRoot>(keys.root({{}, {}, std::as_bytes(std::span(salt, 1))}));
}

const kv::PrefixRootRef& root() {
  static const kv::PrefixRootRef root = make_root("a");
  return root;
}

struct Where {
  PageId page = 3;
  uint64_t serial = 30;
  std::vector<int32_t> tail;
};

std::shared_ptr<WindowEntry> make_entry(const Where& where, uint64_t memory_bytes = 1000) {
  auto entry = std::make_shared<WindowEntry>();
  entry->root = root();
  entry->chain_end = where.page;
  entry->chain_serial = where.serial;
  entry->tail = where.tail;
  entry->end = static_cast<int64_t>(256 + where.tail.size());
  entry->memory = HostMapping::create(memory_bytes).value();
  return entry;
}

// What make_entry's entries were saved of.
WindowSave make_save(std::vector<int32_t> tail) {
  WindowSave what;
  what.end = static_cast<int64_t>(256 + tail.size());
  what.tail = std::move(tail);
  return what;
}

// Entries of one size: budgets of tests count in them.
const uint64_t kEntryBytes = make_entry({3, 30, {1}})->bytes();

struct Fixture {
  FakeClock time;
  WindowPool pool;
  explicit Fixture(uint64_t n_entries, uint64_t ttl_ns = 0) : pool(options(n_entries * kEntryBytes, ttl_ns)) {}
  ~Fixture() {
    const Status checked = pool.check_invariants();
    CHECK_MESSAGE(checked.ok(), checked.message());
  }
  WindowPoolOptions options(uint64_t budget_bytes, uint64_t ttl_ns) { return {budget_bytes, ttl_ns, time.clock()}; }

  std::vector<WindowEntryRef> find(std::vector<int32_t> tokens) { return pool.find(*root(), {3, 30}, tokens); }
  bool has(int32_t tail) {
    for (const WindowEntryRef& entry : find({tail})) {
      if (entry->tail == std::vector<int32_t>{tail}) return true;
    }
    return false;
  }
  void put(int32_t tail) { pool.put(make_entry({3, 30, {tail}})); }
  bool renew(std::vector<int32_t> tail) { return pool.renew(*root(), {3, 30}, make_save(std::move(tail))); }
};

bool is_mapped(const std::byte* address) {
  unsigned char resident = 0;
  return ::mincore(const_cast<std::byte*>(address), 1, &resident) == 0;
}

TEST_SUITE("kv/window_pool") {
  TEST_CASE("entries are found on their page by the tokens behind it, longest first") {
    Fixture f(10);
    for (const std::vector<int32_t>& tail :
         std::vector<std::vector<int32_t>>{{7, 8}, {}, {7, 8, 9}, {7}, {7, 9}, {8}}) {
      f.pool.put(make_entry({3, 30, tail}));
    }
    const std::vector<WindowEntryRef> found = f.find({7, 8, 5, 6});
    REQUIRE(found.size() == 3);
    CHECK(found[0]->tail == std::vector<int32_t>{7, 8});
    CHECK(found[1]->tail == std::vector<int32_t>{7});
    CHECK(found[2]->tail.empty());
    CHECK(f.find({7, 8, 9}).size() == 4);
    CHECK(f.find({7, 8, 9}).front()->tail.size() == 3);
    CHECK(f.find({}).size() == 1);
    CHECK(f.find({9}).size() == 1);
  }

  TEST_CASE("nothing is found on another page, serial number, root or tail") {
    Fixture f(10);
    f.pool.put(make_entry({3, 30, {1}}));
    const std::vector<int32_t> tokens = {1, 2};
    CHECK(f.pool.find(*root(), {3, 30}, tokens).size() == 1);
    CHECK(f.pool.find(*root(), {4, 30}, tokens).empty());
    CHECK(f.pool.find(*root(), {3, 31}, tokens).empty());
    CHECK(f.pool.find(*root(), {kNoPage, 0}, tokens).empty());
    CHECK(f.pool.find(*make_root("b"), {3, 30}, tokens).empty());
    CHECK(f.pool.find(*make_root("a"), {3, 30}, tokens).size() == 1);  // equal, if not the same object
    CHECK(f.find({2, 1}).empty());
    CHECK(f.find({}).empty());
  }

  TEST_CASE("equal keys of different roots give no entry of the other") {
    Fixture f(10);
    f.pool.put(make_entry({3, 30, {1}}));
    kv::PrefixRoot same_key = *make_root("b");
    same_key.key = root()->key;
    CHECK(f.pool.find(same_key, {3, 30}, std::vector<int32_t>{1}).empty());
    kv::PrefixRoot same_extras = *root();
    same_extras.key.high ^= 1;
    CHECK(f.pool.find(same_extras, {3, 30}, std::vector<int32_t>{1}).empty());
    CHECK_FALSE(f.pool.renew(same_key, {3, 30}, make_save({1})));
  }

  TEST_CASE("entries at the start of a sequence have no page") {
    Fixture f(10);
    f.pool.put(make_entry({kNoPage, 0, {1, 2}}));
    CHECK(f.pool.find(*root(), {}, std::vector<int32_t>{1, 2, 3}).size() == 1);
    CHECK(f.pool.find(*make_root("b"), {}, std::vector<int32_t>{1, 2, 3}).empty());
  }

  TEST_CASE("the budget holds and the least recently used entry goes first") {
    Fixture f(3);
    for (int32_t tail : {1, 2, 3}) f.put(tail);
    CHECK(f.pool.stats().bytes == 3 * kEntryBytes);
    f.put(4);
    CHECK_FALSE(f.has(1));
    f.pool.touch(f.find({2}).front());
    f.put(5);
    CHECK(f.has(2));
    CHECK_FALSE(f.has(3));
    CHECK(f.renew({4}));
    f.put(6);
    CHECK(f.has(4));
    CHECK_FALSE(f.has(2));  // found by has(), which is no use
    const WindowPoolStats stats = f.pool.stats();
    CHECK(stats.n_entries == 3);
    CHECK(stats.bytes == 3 * kEntryBytes);
    CHECK(stats.budget_bytes == 3 * kEntryBytes);
    CHECK(stats.n_put == 6);
    CHECK(stats.n_evicted == 3);
    CHECK(stats.n_found == 1);
    CHECK(stats.n_renewed == 1);
  }

  TEST_CASE("one large entry takes the place of several small ones") {
    Fixture f(4);
    for (int32_t tail : {1, 2, 3, 4}) f.put(tail);
    f.pool.put(make_entry({3, 30, {5}}, 1000 + 2 * kEntryBytes));
    CHECK(f.has(5));
    CHECK(f.has(4));
    CHECK_FALSE(f.has(3));
    CHECK(f.pool.stats().bytes == 4 * kEntryBytes);
  }

  TEST_CASE("an entry larger than the budget is dropped and takes nothing with it") {
    Fixture f(2);
    f.put(1);
    f.put(2);
    f.pool.put(make_entry({3, 30, {3}}, 1001 + kEntryBytes));
    CHECK_FALSE(f.has(3));
    CHECK(f.has(1));
    CHECK(f.has(2));
    f.pool.put(make_entry({3, 30, {4}}, 1000 + kEntryBytes));  // just fits
    CHECK(f.has(4));
    CHECK(f.pool.stats().n_entries == 1);
  }

  TEST_CASE("a pool without a budget keeps nothing") {
    Fixture f(0);
    CHECK_FALSE(f.pool.enabled());
    f.put(1);
    CHECK_FALSE(f.has(1));
    CHECK_FALSE(f.renew({1}));
    CHECK(f.pool.stats().bytes == 0);
    CHECK(Fixture(1).pool.enabled());
  }

  TEST_CASE("an entry expires when nobody used it for its time to live, and each use starts that anew") {
    Fixture f(10, 5 * kSecond);
    for (int32_t tail : {1, 2, 3}) f.put(tail);
    f.time.now += 4 * kSecond;
    CHECK(f.renew({1}));
    f.pool.touch(f.find({2}).front());
    CHECK(f.has(3));  // looking is no use
    f.time.now += kSecond - 1;
    CHECK(f.has(3));
    f.time.now += 1;
    CHECK_FALSE(f.has(3));
    CHECK(f.pool.stats().n_expired == 1);
    f.time.now += 4 * kSecond - 1;
    CHECK(f.has(1));
    CHECK(f.has(2));
    f.time.now += 1;
    CHECK_FALSE(f.renew({1}));
    CHECK_FALSE(f.has(2));
    const WindowPoolStats stats = f.pool.stats();
    CHECK(stats.n_expired == 3);
    CHECK(stats.n_entries == 0);
    CHECK(stats.bytes == 0);
  }

  TEST_CASE("without a time to live nothing expires") {
    Fixture f(10, 0);
    f.put(1);
    f.time.now += uint64_t{1} << 60;
    CHECK(f.has(1));
  }

  TEST_CASE("a clock that runs back neither expires nor keeps for ever") {
    Fixture f(10, 5 * kSecond);
    f.put(1);
    f.time.now -= 3 * kSecond;
    f.put(2);
    CHECK(f.has(1));
    CHECK(f.pool.check_invariants().ok());
    f.time.now += 8 * kSecond;  // the first entry's time and its time to live
    CHECK_FALSE(f.has(1));
    CHECK_FALSE(f.has(2));
  }

  TEST_CASE("memory goes back to the system on expiry, at the next call of any function") {
    using Call = void (*)(Fixture&);
    const std::pair<const char*, Call> calls[] = {
        {"stats", [](Fixture& f) { (void)f.pool.stats(); }},
        {"trim", [](Fixture& f) { (void)f.pool.trim(UINT64_MAX); }},
        {"find elsewhere",
         [](Fixture& f) {
           (void)f.pool.find(*root(), {9, 9}, {});
         }},
        {"renew of another", [](Fixture& f) { (void)f.renew({2}); }},
        {"put of another", [](Fixture& f) { f.put(2); }},
        {"touch of another",
         [](Fixture& f) {
           f.pool.touch(make_entry({3, 30, {2}}));
         }},
    };
    for (const auto& [name, call] : calls) {
      CAPTURE(name);
      Fixture f(2000, 5 * kSecond);
      std::shared_ptr<WindowEntry> entry = make_entry({3, 30, {1}}, 1 << 20);
      const std::byte* memory = entry->memory.data();
      f.pool.put(std::move(entry));
      CHECK(is_mapped(memory));
      f.time.now += 5 * kSecond;
      CHECK(is_mapped(memory));
      call(f);
      CHECK_FALSE(is_mapped(memory));
    }
  }

  TEST_CASE("an entry that somebody holds survives eviction, expiry and the pool") {
    WindowEntryRef held;
    {
      Fixture f(1, 5 * kSecond);
      std::shared_ptr<WindowEntry> entry = make_entry({3, 30, {1}});
      entry->memory.data()[999] = std::byte{42};
      f.pool.put(std::move(entry));
      held = f.find({1}).front();
      f.put(2);
      CHECK_FALSE(f.has(1));
      CHECK(f.pool.stats().bytes == kEntryBytes);
      f.pool.touch(held);  // gone meanwhile: stays so
      CHECK_FALSE(f.has(1));
      CHECK(f.pool.stats().n_found == 1);
    }
    CHECK(held->memory.data()[999] == std::byte{42});
  }

  TEST_CASE("trimming drops least recently used entries down to the target") {
    Fixture f(5);
    for (int32_t tail : {1, 2, 3, 4}) f.put(tail);
    f.pool.touch(f.find({1}).front());
    CHECK(f.pool.trim(4 * kEntryBytes) == 0);
    CHECK(f.pool.trim(4 * kEntryBytes - 1) == kEntryBytes);
    CHECK_FALSE(f.has(2));
    CHECK(f.pool.trim(kEntryBytes) == 2 * kEntryBytes);
    CHECK(f.has(1));
    CHECK(f.pool.trim(0) == kEntryBytes);
    CHECK(f.pool.stats().n_entries == 0);
    CHECK(f.pool.stats().n_evicted == 4);
    f.put(5);
    CHECK(f.has(5));
  }

  TEST_CASE("renewing wants an entry that can stand for what would be saved") {
    struct Row {
      const char* name;
      std::function<void(WindowSave&)> change;
      bool renewed;
    };
    const Row rows[] = {
        {"equal", [](WindowSave&) {}, true},
        {"fewer encoder rows", [](WindowSave& what) { what.encoder.low = 130; }, true},
        {"fewer decoder rows", [](WindowSave& what) { what.decoder.low = 210; }, true},
        {"decoder not wanted", [](WindowSave& what) { what.with_decoder = false; }, true},
        {"decoder not there",
         [](WindowSave& what) {
           what.decoder = {0, 0, false};
         },
         true},
        {"more encoder rows", [](WindowSave& what) { what.encoder.low = 119; }, false},
        {"more decoder rows", [](WindowSave& what) { what.decoder.low = 199; }, false},
        {"another encoder floor", [](WindowSave& what) { what.encoder.floor = 110; }, false},
        {"another decoder floor", [](WindowSave& what) { what.decoder.floor = 0; }, false},
        {"exact", [](WindowSave& what) { what.provenance = nullptr; }, false},
        {"other hits", [](WindowSave& what) { what.provenance = kv::descend(nullptr, 384); }, false},
        {"other hits in the tail", [](WindowSave& what) { what.tail_provenance = kv::descend(nullptr, 384); }, false},
        {"shorter", [](WindowSave& what) { what.tail.pop_back(); }, false},
        {"longer", [](WindowSave& what) { what.tail.push_back(3); }, false},
    };
    Fixture f(10);
    std::shared_ptr<WindowEntry> entry = make_entry({3, 30, {1, 2}});
    entry->encoder = {100, 120, true};
    entry->decoder = {200, 200, true};
    entry->provenance = kv::descend(nullptr, 256);
    f.pool.put(entry);
    WindowSave equal = make_save({1, 2});
    equal.encoder = entry->encoder;
    equal.decoder = entry->decoder;
    equal.provenance = kv::descend(nullptr, 256);
    uint64_t n_renewed = 0;
    for (const Row& row : rows) {
      CAPTURE(row.name);
      WindowSave what = equal;
      row.change(what);
      CHECK(f.pool.renew(*root(), {3, 30}, what) == row.renewed);
      n_renewed += row.renewed;
    }
    CHECK_FALSE(f.pool.renew(*root(), {3, 31}, equal));
    CHECK_FALSE(f.pool.renew(*root(), {4, 30}, equal));
    CHECK_FALSE(f.pool.renew(*make_root("b"), {3, 30}, equal));
    CHECK(f.pool.renew(*make_root("a"), {3, 30}, equal));
    CHECK(f.pool.stats().n_renewed == n_renewed + 1);
  }

  TEST_CASE("an entry without the decoder's rows is renewed only where these are not wanted") {
    Fixture f(10);
    std::shared_ptr<WindowEntry> entry = make_entry({3, 30, {1}});
    entry->decoder.present = false;
    f.pool.put(std::move(entry));
    WindowSave what = make_save({1});
    CHECK_FALSE(f.pool.renew(*root(), {3, 30}, what));
    what.with_decoder = false;
    CHECK(f.pool.renew(*root(), {3, 30}, what));
  }

  TEST_CASE("an entry that is there already is not kept twice") {
    Fixture f(2);
    f.put(1);
    f.put(2);
    f.put(1);
    CHECK(f.pool.stats().n_entries == 2);
    CHECK(f.pool.stats().n_renewed == 1);
    f.put(3);  // the second put of 1 was a use
    CHECK(f.has(1));
    CHECK_FALSE(f.has(2));
  }

  TEST_CASE("an entry with more rows takes the place of one with fewer, never the reverse") {
    Fixture f(10);
    std::shared_ptr<WindowEntry> encoder_only = make_entry({3, 30, {1}}), whole = make_entry({3, 30, {1}});
    encoder_only->decoder.present = false;
    f.pool.put(encoder_only);
    f.pool.put(whole);
    REQUIRE(f.find({1}).size() == 1);
    CHECK(f.find({1}).front() == whole);
    f.pool.put(encoder_only);
    REQUIRE(f.find({1}).size() == 1);
    CHECK(f.find({1}).front() == whole);
  }

  TEST_CASE("entries that were computed otherwise stand side by side, the decoder's first") {
    Fixture f(10);
    std::shared_ptr<WindowEntry> exact = make_entry({3, 30, {1}}), replayed = make_entry({3, 30, {1}}),
                                 full_decoder = make_entry({3, 30, {1}});
    replayed->provenance = kv::descend(nullptr, 256);
    replayed->decoder.present = false;
    exact->decoder = {200, 200, true};
    full_decoder->decoder = {0, 180, true};
    for (const auto& entry : {exact, full_decoder, replayed}) f.pool.put(entry);
    const std::vector<WindowEntryRef> found = f.find({1});
    REQUIRE(found.size() == 3);
    CHECK(found[0] == full_decoder);  // used after `exact`
    CHECK(found[1] == exact);
    CHECK(found[2] == replayed);
    f.time.now += 1;
    f.pool.touch(exact);
    CHECK(f.find({1}).front() == exact);
  }

  TEST_CASE("the default budget is a tenth of the memory that the process may use") {
    CHECK(kv::default_window_budget() == usable_memory_bytes() / 10);
    CHECK(kv::default_window_budget() > 0);
  }

  // A list in the order of use, searched from end to end.
  TEST_CASE("random calls agree with a naive list") {
    struct Naive {
      int32_t tail;
      PageId page;
      uint64_t bytes, used_ns;
    };
    const uint64_t seed = 20261130;
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Fixture f(12, 20);
    const uint64_t budget = 12 * kEntryBytes;
    std::vector<Naive> naive;  // least recently used first
    const auto move_to_end = [&](std::vector<Naive>::iterator at) {
      at->used_ns = f.time.now;
      std::rotate(at, at + 1, naive.end());
    };
    const auto sum = [&] {
      uint64_t bytes = 0;
      for (const Naive& entry : naive) bytes += entry.bytes;
      return bytes;
    };
    for (int i = 0; i < 20000; ++i) {
      CAPTURE(i);
      f.time.now += random() % 3;
      while (!naive.empty() && f.time.now - naive.front().used_ns >= 20) naive.erase(naive.begin());
      const int32_t tail = static_cast<int32_t>(random() % 8);
      const PageId page = static_cast<PageId>(random() % 4);
      const auto there = std::ranges::find_if(naive, [&](const Naive& e) { return e.tail == tail && e.page == page; });
      const std::vector<int32_t> tokens = {tail};
      switch (random() % 5) {
        case 0: {
          const std::shared_ptr<WindowEntry> entry = make_entry({page, page + 1, tokens}, 1 + random() % 4000);
          const uint64_t bytes = entry->bytes();
          f.pool.put(entry);
          if (there != naive.end()) {
            move_to_end(there);
          } else {
            naive.push_back({tail, page, bytes, f.time.now});
            while (sum() > budget) naive.erase(naive.begin());
          }
          break;
        }
        case 1: {
          REQUIRE(f.pool.renew(*root(), {page, page + 1}, make_save(tokens)) == (there != naive.end()));
          if (there != naive.end()) move_to_end(there);
          break;
        }
        case 2: {
          const std::vector<WindowEntryRef> found = f.pool.find(*root(), {page, page + 1}, tokens);
          REQUIRE(found.size() == (there != naive.end() ? 1 : 0));
          if (found.empty()) break;
          REQUIRE(found[0]->bytes() == there->bytes);
          f.pool.touch(found[0]);
          move_to_end(there);
          break;
        }
        case 3: {
          if (random() % 16) break;
          const uint64_t target = random() % budget, before = sum();
          const uint64_t dropped = f.pool.trim(target);
          while (sum() > target) naive.erase(naive.begin());
          REQUIRE(dropped == before - sum());
          break;
        }
        default: {
          const WindowPoolStats stats = f.pool.stats();
          REQUIRE(stats.n_entries == naive.size());
          REQUIRE(stats.bytes == sum());
        }
      }
      if (i % 16 == 0) REQUIRE(f.pool.check_invariants().ok());
    }
  }

  TEST_CASE("eight threads at once leave a pool in order, and entries stay whole while they are held") {
    Fixture f(20, 50);
    std::atomic<int> n_wrong{0};
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937_64 random(thread);
        for (int i = 0; i < 1500; ++i) {
          const int32_t tail = static_cast<int32_t>(random() % 6);
          const PageId page = static_cast<PageId>(random() % 3);
          const std::vector<int32_t> tokens = {tail};
          ++f.time.now;
          switch (random() % 8) {
            case 0:
            case 1:
            case 2: {
              const std::shared_ptr<WindowEntry> entry = make_entry({page, page + 1, tokens}, 1 + random() % 3000);
              std::fill_n(entry->memory.data(), entry->memory.size(), static_cast<std::byte>(tail));
              f.pool.put(entry);
              break;
            }
            case 3: (void)f.pool.renew(*root(), {page, page + 1}, make_save(tokens)); break;
            case 4:
              if (i % 8 == 0) (void)f.pool.trim(random() % (20 * kEntryBytes));
              break;
            case 5:
              if (f.pool.stats().bytes > 20 * kEntryBytes || !f.pool.check_invariants().ok()) ++n_wrong;
              break;
            default:
              for (const WindowEntryRef& entry : f.pool.find(*root(), {page, page + 1}, tokens)) {
                const std::byte* bytes = entry->memory.data();
                const auto whole = [&](std::byte b) { return b == static_cast<std::byte>(tail); };
                if (entry->tail != tokens || !std::all_of(bytes, bytes + entry->memory.size(), whole)) ++n_wrong;
                f.pool.touch(entry);
              }
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(n_wrong == 0);
    f.time.now += 50;
    const WindowPoolStats stats = f.pool.stats();
    CHECK(stats.bytes == 0);
    CHECK(stats.n_entries == 0);
    CHECK(stats.n_put == stats.n_evicted + stats.n_expired);
    CHECK(stats.n_found > 100);
    CHECK(stats.n_evicted > 100);
  }
}

}  // namespace
}  // namespace dsv41::test
