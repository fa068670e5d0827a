// Property tests of pool, prefix tree and sequences. A failure prints its seed; DSV41_TEST_SEED=n replays one seed,
// DSV41_TEST_OPERATIONS=n changes how many operations each test does.
#include <doctest/doctest.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "support/kv_trace.h"
#include "support/sanitizers.h"

namespace dsv41::test {
namespace {

using kv::kPageTokens;
using kv::KvRef;
using kv::PageId;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* chosen = std::getenv(name);
  return chosen ? std::strtoull(chosen, nullptr, 10) : otherwise;
}

uint64_t seed() { return from_environment("DSV41_TEST_SEED", 20261130); }

int64_t n_operations() {
  constexpr uint64_t kOperations = DSV41_ADDRESS_SANITIZER || DSV41_THREAD_SANITIZER ? 20000 : 100000;
  return static_cast<int64_t>(from_environment("DSV41_TEST_OPERATIONS", kOperations));
}

constexpr int64_t kThreads = 8;
constexpr int64_t kCompareAllEvery = 50;

// Eight threads that take turns as a seed says: each operation is done by the thread whose turn it is.
class TurnTable {
 public:
  explicit TurnTable(uint64_t seed) : random_(seed) {}

  // body() is called, under the lock, until it answers false or n calls are done, in all threads together.
  template <class Body>
  void take_turns(int64_t me, int64_t n, Body&& body) {
    std::unique_lock lock(mutex_);
    for (;;) {
      turned_[static_cast<size_t>(me)].wait(lock, [&] { return turn_ == me || done_; });
      if (done_) return;
      done_ = !body() || ++n_done_ == n;
      turn_ = static_cast<int64_t>(random_() % kThreads);
      if (done_) {
        for (std::condition_variable& turned : turned_) turned.notify_one();
      } else {
        turned_[static_cast<size_t>(turn_)].notify_one();
      }
    }
  }

 private:
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::array<std::condition_variable, kThreads> turned_;
  int64_t turn_ = 0, n_done_ = 0;
  bool done_ = false;
};

// Sequences that threads hand to each other.
class Mailbox {
 public:
  struct Letter {
    KvRef ref;
    std::vector<int32_t> ids;
  };
  void put(Letter letter) {
    std::lock_guard lock(mutex_);
    if (letters_.size() < 4) letters_.push_back(std::move(letter));
  }
  bool take(Letter* letter) {
    std::lock_guard lock(mutex_);
    if (letters_.empty()) return false;
    *letter = std::move(letters_.back());
    letters_.pop_back();
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<Letter> letters_;
};

// One free-running thread: sequences of its own and shared ones. All rows are what their ids say.
class FreeRunner {
 public:
  FreeRunner(KvPool& kv, Mailbox& mailbox, uint64_t seed)
      : kv_(kv), mailbox_(mailbox), random_(seed), queue_(kv.backend->create_queue().value()) {}

  // Empty, or what is wrong.
  std::string operate() {
    const uint64_t what = random(100);
    if (own_.empty() || (what < 20 && own_.size() < 3)) return look_up();
    const size_t at = random(own_.size());
    Mailbox::Letter& one = own_[at];
    if (what < 60) return append(one);
    if (what < 70) {
      mailbox_.put({one.ref.share(), one.ids});
    } else if (what < 78) {
      if (Mailbox::Letter letter; own_.size() < 3 && mailbox_.take(&letter)) own_.push_back(std::move(letter));
    } else if (what < 86) {
      one.ids.resize(random(one.ids.size() + 1));
      one.ref.release_beyond(static_cast<int64_t>(one.ids.size()));
    } else if (what < 96) {
      return release_inside_a_step(at);
    } else {
      kv_.pool->trim(random(80));
    }
    return "";
  }

 private:
  uint64_t random(uint64_t n) { return random_() % n; }

  std::string look_up() {
    const std::vector<int32_t>& book = books_[random(books_.size())];
    const PageId page = kv_.pool->match(*kv_.root, std::span(book).first(random(book.size())), 6, false);
    KvRef ref = KvRef::create_on(*kv_.pool, kv_.root, 1024, page);
    std::vector<int32_t> ids(book.begin(), book.begin() + ref->n_sealed() * kPageTokens);
    const bool right = rows_hold(*ref, stamps_of(ids));
    own_.push_back({std::move(ref), std::move(ids)});
    return right ? "" : "a lookup found other rows";
  }

  std::string append(Mailbox::Letter& one) {
    const auto at = static_cast<int64_t>(one.ids.size()),
               n = std::min<int64_t>(1 + static_cast<int64_t>(random(200)), 1024 - at);
    if (n <= 0) return "";
    const Status status = one.ref.make_writable({at, at + n, random(2) == 0}, *queue_);
    if (status.code() == Code::kPOOL_FULL) return "";
    if (!status.ok()) return std::string(status.message());
    const std::vector<int32_t>& book = books_[random(books_.size())];
    one.ids.insert(one.ids.end(), book.begin() + at, book.begin() + at + n);
    const std::vector<uint64_t> stamps = stamps_of(one.ids);
    write_rows(*one.ref, at, std::span(stamps).subspan(static_cast<size_t>(at)));
    const auto sealed = static_cast<size_t>(one.ref->n_sealed() * kPageTokens);
    const Status seal = one.ref.seal(std::span(one.ids).subspan(sealed), nullptr, *queue_);
    if (!seal.ok()) return std::string(seal.message());
    return rows_hold(*one.ref, stamps) ? "" : "rows have changed";
  }

  // What a step reads stays as it is until the step ends, whoever gives it back.
  std::string release_inside_a_step(size_t at) {
    const uint64_t step = kv_.pool->begin_step();
    const Mailbox::Letter one = std::move(own_[at]);
    own_.erase(own_.begin() + static_cast<int64_t>(at));
    const std::vector<PageId> pages(one.ref->pages().begin(), one.ref->pages().end());
    const std::vector<uint64_t> stamps = stamps_of(one.ids);
    const_cast<KvRef&>(one.ref) = KvRef();
    bool right = true;
    for (size_t i = 0; (i + 1) * static_cast<size_t>(kPageTokens) <= stamps.size(); ++i) {
      const auto page =
          std::span(stamps).subspan(i * static_cast<size_t>(kPageTokens), static_cast<size_t>(kPageTokens));
      right = right && page_holds(*kv_.pool, pages[i], page);
    }
    kv_.pool->end_step(step);
    return right ? "" : "a page changed before its step had ended";
  }

  KvPool& kv_;
  Mailbox& mailbox_;
  std::mt19937_64 random_;
  const std::unique_ptr<backend::Queue> queue_;
  const std::vector<std::vector<int32_t>> books_ = KvTrace::books();
  std::vector<Mailbox::Letter> own_;
};

TEST_SUITE("kv/properties") {
  TEST_CASE("a random trace agrees with the naive model after every operation") {
    MESSAGE("DSV41_TEST_SEED=" << seed());
    KvTrace trace(seed());
    const std::unique_ptr<backend::Queue> queue = trace.pool().backend->create_queue().value();
    for (int64_t i = 0; i < n_operations(); ++i) {
      CAPTURE(i);
      REQUIRE(trace.operate(*queue) == "");
      if (i % kCompareAllEvery == 0) REQUIRE(trace.compare_sequences() == "");
    }
    CHECK(trace.finish() == "");
    const kv::PagePoolStats stats = trace.pool().pool->stats();  // the trace has been everywhere
    CHECK(stats.pages_adopted > 100);
    CHECK(stats.pages_replaced > 0);
    CHECK(stats.pages_evicted > 100);
    CHECK(stats.pages_copied > 100);
  }

  TEST_CASE("eight threads that take turns agree with the naive model after every operation") {
    MESSAGE("DSV41_TEST_SEED=" << seed());
    KvTrace trace(seed() + 1);
    TurnTable table(seed());
    int64_t n_done = 0;
    std::string difference;
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const std::unique_ptr<backend::Queue> queue = trace.pool().backend->create_queue().value();
        table.take_turns(t, n_operations(), [&] {
          difference = trace.operate(*queue);
          if (difference.empty() && n_done % kCompareAllEvery == 0) difference = trace.compare_sequences();
          ++n_done;
          return difference.empty();
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    CAPTURE(n_done);
    CHECK(difference == "");
    CHECK(trace.finish() == "");
  }

  TEST_CASE("eight threads at once keep every invariant, every shared row and every step's pages") {
    MESSAGE("DSV41_TEST_SEED=" << seed());
    KvPool kv({96, 12, 128, /*poison_pages=*/true});
    std::mutex mutex;
    std::string fault;
    {
      Mailbox mailbox;
      std::vector<std::thread> threads;
      for (int64_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          FreeRunner runner(kv, mailbox, seed() + static_cast<uint64_t>(t));
          for (int64_t i = 0; i < n_operations() / kThreads; ++i) {
            std::string wrong = runner.operate();
            if (wrong.empty() && i % 50 == 0) wrong = kv.fault();
            if (wrong.empty()) continue;
            std::lock_guard lock(mutex);
            fault = wrong;
            return;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    CHECK(fault == "");
    CHECK(kv.fault() == "");
    const kv::PagePoolStats stats = kv.pool->stats();
    CHECK(stats.global_pages_free + stats.global_pages_cached == 96);
    CHECK(stats.window_slots_free == 12);
    CHECK(stats.pages_adopted > 100);
    CHECK(stats.pages_copied > 100);
  }
}

}  // namespace
}  // namespace dsv41::test
