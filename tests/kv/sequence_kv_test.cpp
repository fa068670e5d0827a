#include "kv/sequence_kv.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "support/kv_pool_fixture.h"
#include "support/process_memory.h"
#include "support/sanitizers.h"

namespace dsv41::test {
namespace {

using kv::kPageTokens;
using kv::KvRef;
using kv::PageId;

constexpr auto kTokens = static_cast<size_t>(kPageTokens);

// Appends ids to a sequence that holds `n` tokens, all sealed that can be, as a session does.
Status append(KvRef& kv, const std::vector<int32_t>& ids, int64_t from, int64_t to, backend::Queue& queue) {
  DSV41_TRY(kv.make_writable({from, to, true}, queue));
  const std::vector<uint64_t> stamps = stamps_of(std::span(ids).first(static_cast<size_t>(to)));
  write_rows(*kv, from, std::span(stamps).subspan(static_cast<size_t>(from)));
  const int64_t sealed = kv->n_sealed() * kPageTokens;
  return kv.seal(std::span(ids).subspan(static_cast<size_t>(sealed), static_cast<size_t>(to - sealed)), nullptr, queue);
}

std::vector<uint64_t> first_stamps(const std::vector<int32_t>& ids, int64_t n) {
  return stamps_of(std::span(ids).first(static_cast<size_t>(n)));
}

// Whether the device's tables say what the host's list says.
bool tables_agree(const kv::SequenceKv& kv) {
  const uint64_t* table = kv.main(0).page_offsets;
  for (size_t i = 0; i < kv.pages().size(); ++i) {
    if (table[i] != kv.pool().page_offset(kv.pages()[i])) return false;
  }
  const uint64_t* windows = kv.ring(0).page_offsets;
  for (size_t i = 0; i < kv.window_pages().size(); ++i) {
    if (windows[i] != kv.pool().page_offset(kv.window_pages()[i])) return false;
  }
  return true;
}

// All that a failed call must leave as it was.
struct Picture {
  explicit Picture(const KvPool& kv, const KvRef& ref) : pages(ref->pages().begin(), ref->pages().end()) {
    const kv::PagePoolStats s = kv.pool->stats();
    counts = {s.global_pages_free,   s.global_pages_private, s.global_pages_reserved, s.global_pages_sealed,
              s.global_pages_cached, s.window_slots_free,    s.pages_copied,          s.pages_evicted};
    n_sealed = ref->n_sealed();
    windows.assign(ref->window_pages().begin(), ref->window_pages().end());
  }
  bool operator==(const Picture&) const = default;
  std::vector<PageId> pages, windows;
  std::vector<uint64_t> counts;
  int64_t n_sealed = 0;
};

TEST_SUITE("kv/sequence_kv") {
  TEST_CASE("memory is taken when it is first written to, all of it by one call") {
    KvPool kv({10, 2});
    KvRef ref = kv.sequence(1000);
    CHECK(kv.pool->stats().global_pages_free == 10);
    CHECK(kv.pool->stats().window_slots_free == 2);
    REQUIRE(ref.make_writable({0, 1}, *kv.queue).ok());
    CHECK(ref->n_pages() == 1);
    CHECK(kv.pool->stats().window_slots_free == 1);
    REQUIRE(ref.make_writable({1, 128}, *kv.queue).ok());
    CHECK(ref->n_pages() == 1);
    REQUIRE(ref.make_writable({128, 129}, *kv.queue).ok());
    CHECK(ref->n_pages() == 2);
    CHECK(tables_agree(*ref));
    ref = KvRef();
    CHECK(kv.pool->stats().global_pages_free == 10);
    CHECK(kv.pool->stats().window_slots_free == 2);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("more tokens than the session's limit are refused and nothing changes") {
    KvPool kv({20, 2});
    KvRef ref = kv.sequence(1000);  // 8 pages
    REQUIRE(ref.make_writable({0, 1000}, *kv.queue).ok());
    const Picture before(kv, ref);
    CHECK(ref.make_writable({1000, 1025}, *kv.queue).code() == Code::kCONTEXT_FULL);
    CHECK(Picture(kv, ref) == before);
    CHECK(ref.make_writable({1000, 1024}, *kv.queue).ok());
  }

  TEST_CASE("two sequences never share an address") {
    KvPool kv({10, 2}, kv::PageGeometry::compute({{{2, 2}, {4, 2}, {6, 1}}, 512, 128, 12, 128}).value());
    KvRef a = kv.sequence(500), b = kv.sequence(500);
    REQUIRE(a.make_writable({0, 300}, *kv.queue).ok());
    REQUIRE(b.make_writable({0, 300}, *kv.queue).ok());
    std::set<std::byte*> seen;
    for (const kv::SequenceKv* one : {&*a, &*b}) {
      for (int64_t j = 0; j < 300; ++j) CHECK(seen.insert(one->main(2).codes(j)).second);
      for (int64_t j = 0; j < 150; ++j) CHECK(seen.insert(one->index(0).codes(j)).second);
      for (int64_t layer = 0; layer < 12; ++layer) {
        for (int64_t p = 0; p < 136; ++p) CHECK(seen.insert(one->ring(layer).row(p)).second);
      }
    }
    CHECK(a->open_rows(2) == nullptr);
    CHECK(a->open_rows(0) != nullptr);
    CHECK(a->open_rows(0) != a->open_rows(1));
    CHECK(a->open_rows(0) != b->open_rows(0));
  }

  TEST_CASE("pages that no token needs go back, private ones and those of the chain") {
    KvPool kv({10, 1});
    const std::vector<int32_t> ids = random_ids(500, 1);
    KvRef ref = kv.sequence(1000);
    REQUIRE(append(ref, ids, 0, 500, *kv.queue).ok());
    REQUIRE(ref.make_writable({500, 900}, *kv.queue).ok());
    CHECK(ref->n_pages() == 8);
    CHECK(ref->n_sealed() == 3);
    ref.release_beyond(513);
    CHECK(ref->n_pages() == 5);
    ref.release_beyond(257);
    CHECK(ref->n_pages() == 3);  // the page that holds token 256 stays
    CHECK(ref->n_sealed() == 3);
    ref.release_beyond(256);
    CHECK(ref->n_sealed() == 2);
    CHECK(kv.pool->stats().global_pages_cached == 1);
    CHECK(kv.pool->stats().global_pages_free == 7);
    CHECK(rows_hold(*ref, first_stamps(ids, 256)));
    ref.release_beyond(0);
    CHECK(ref->n_pages() == 0);
    CHECK(kv.n_matched(ids) == 3);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("invariant 12: only tokens that the caller has accepted are sealed, only whole pages of them") {
    KvPool kv({10, 1});
    const std::vector<int32_t> ids = random_ids(400, 1);
    KvRef ref = kv.sequence(1000);
    REQUIRE(ref.make_writable({0, 400}, *kv.queue).ok());  // 250 accepted tokens and 150 drafts
    write_rows(*ref, 0, stamps_of(ids));
    REQUIRE(ref.seal(std::span(ids).first(127), nullptr, *kv.queue).ok());
    CHECK(ref->n_sealed() == 0);
    REQUIRE(ref.seal(std::span(ids).first(250), nullptr, *kv.queue).ok());
    CHECK(ref->n_sealed() == 1);
    CHECK(kv.n_matched(ids) == 1);
    CHECK(kv.pool->stats().global_pages_private == 3);
    REQUIRE(ref.seal(std::span(ids).subspan(128, 128), nullptr, *kv.queue).ok());
    CHECK(ref->n_sealed() == 2);
    CHECK(kv.n_matched(ids) == 2);
  }

  TEST_CASE("the ids of the sealed chain can be read back in any range") {
    KvPool kv({10, 1});
    const std::vector<int32_t> ids = random_ids(512, 1);
    KvRef ref = kv.sequence(512);
    REQUIRE(append(ref, ids, 0, 512, *kv.queue).ok());
    for (const auto& [from, to] :
         {std::pair{0, 512}, {0, 0}, {512, 512}, {127, 129}, {128, 256}, {1, 511}, {300, 301}}) {
      CAPTURE(from);
      CAPTURE(to);
      std::vector<int32_t> out(static_cast<size_t>(to - from) + 1, -1);
      ref->copy_ids(from, to, out.data());
      CHECK(std::equal(ids.begin() + from, ids.begin() + to, out.begin()));
      CHECK(out.back() == -1);
    }
  }

  TEST_CASE("a sequence made on a found chain reads its rows and goes on behind them") {
    KvPool kv({10, 2});
    const std::vector<int32_t> ids = random_ids(400, 1);
    {
      KvRef first = kv.sequence(1000);
      REQUIRE(append(first, ids, 0, 400, *kv.queue).ok());
    }
    CHECK(kv.pool->stats().global_pages_cached == 3);
    const PageId chain = kv.pool->match(*kv.root, ids, 2, false);
    KvRef ref = KvRef::create_on(*kv.pool, kv.root, 1000, chain);
    CHECK(ref->n_sealed() == 2);
    CHECK(ref->chain_end() == chain);
    CHECK_FALSE(ref->has_windows());
    CHECK(rows_hold(*ref, first_stamps(ids, 256)));
    REQUIRE(append(ref, ids, 256, 400, *kv.queue).ok());
    CHECK(rows_hold(*ref, first_stamps(ids, 400)));
    CHECK(tables_agree(*ref));
    CHECK(kv.pool->stats().pages_adopted == 1);
    ref = KvRef();
    CHECK(kv.pool->stats().global_pages_cached == 3);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("pages that seal() adopts take their place in the device's table too") {
    KvPool kv({10, 2});
    const std::vector<int32_t> ids = random_ids(300, 1);
    KvRef a = kv.sequence(1000), b = kv.sequence(1000);
    REQUIRE(append(a, ids, 0, 300, *kv.queue).ok());
    REQUIRE(append(b, ids, 0, 300, *kv.queue).ok());
    CHECK(std::ranges::equal(a->pages().first(2), b->pages().first(2)));
    CHECK(a->pages()[2] != b->pages()[2]);
    CHECK(tables_agree(*b));
    CHECK(rows_hold(*b, stamps_of(ids)));
    CHECK(kv.pool->stats().global_pages_free == 6);
  }

  TEST_CASE("a seal that fails midway keeps what it has sealed, and can be repeated") {
    KvPool kv({12, 2});
    const std::vector<int32_t> ids = random_ids(384, 1);
    KvRef a = kv.sequence(1000);
    REQUIRE(append(a, ids, 0, 384, *kv.queue).ok());
    for (int64_t n = 1;; ++n) {
      KvRef b = kv.sequence(1000);
      REQUIRE(b.make_writable({0, 384}, *kv.queue).ok());
      write_rows(*b, 0, stamps_of(ids));
      kv.backend->fail_copy(n);
      const Status sealed = b.seal(ids, nullptr, *kv.queue);
      kv.backend->fail_copy(0);
      CHECK(rows_hold(*b, stamps_of(ids)));
      CHECK(kv.fault() == "");
      if (sealed.ok()) break;
      CHECK(sealed.code() == Code::kDEVICE_LOST);
      const auto done = static_cast<size_t>(b->n_sealed()) * kTokens;
      CHECK(b.seal(std::span(ids).subspan(done), nullptr, *kv.queue).ok());
      CHECK(b->n_sealed() == 3);
      CHECK(std::ranges::equal(a->pages(), b->pages()));
    }
  }
}

TEST_SUITE("kv/sequence_kv: sharing") {
  // 300 tokens: two sealed pages and a tail, with window rows and open rows.
  struct Fork {
    explicit Fork(uint64_t n_pages = 10, uint32_t n_slots = 2) : kv({n_pages, n_slots}), ids(random_ids(600, 1)) {
      a = kv.sequence(1000);
      REQUIRE(append(a, ids, 0, 300, *kv.queue).ok());
      for (int64_t p = 164; p < 300; ++p) write_window_row(*a, p, static_cast<uint64_t>(p));
      write_open_rows(*a, 77);
    }
    bool a_is_whole() const {
      bool whole = rows_hold(*a, first_stamps(ids, 300)) && open_rows_hold(*a, 77) && tables_agree(*a);
      for (int64_t p = 164; p < 300; ++p) whole = whole && window_row_holds(*a, p, static_cast<uint64_t>(p));
      return whole;
    }
    KvPool kv;
    std::vector<int32_t> ids;
    KvRef a;
  };

  TEST_CASE("sharing takes no memory and does not depend on the length") {
    Fork f;
    const Picture before(f.kv, f.a);
    KvRef b = f.a.share();
    CHECK(b.is_shared());
    CHECK(f.a.is_shared());
    CHECK(&*b == &*f.a);
    CHECK(Picture(f.kv, f.a) == before);
    b = KvRef();
    CHECK_FALSE(f.a.is_shared());
  }

  TEST_CASE(
      "the first write after a fork copies the tail page, the windows and the open rows, and no sharer's byte "
      "changes") {
    Fork f;
    KvRef b = f.a.share();
    REQUIRE(b.make_writable({300, 310, /*keep_windows=*/true}, *f.kv.queue).ok());
    CHECK_FALSE(b.is_shared());
    CHECK_FALSE(f.a.is_shared());
    CHECK(f.kv.pool->stats().pages_copied == 1);
    CHECK(std::ranges::equal(f.a->pages().first(2), b->pages().first(2)));
    CHECK(rows_hold(*b, first_stamps(f.ids, 300)));
    for (int64_t p = 164; p < 300; ++p) CHECK(window_row_holds(*b, p, static_cast<uint64_t>(p)));
    CHECK(open_rows_hold(*b, 77));
    CHECK(tables_agree(*b));
    write_rows(*b, 300, stamps_of(random_ids(10, 5)));
    write_window_row(*b, 300, 1);
    write_open_rows(*b, 2);
    CHECK(f.a_is_whole());
    REQUIRE(append(f.a, f.ids, 300, 320, *f.kv.queue).ok());
    CHECK(open_rows_hold(*b, 2));
    CHECK(f.kv.fault() == "");
  }

  TEST_CASE("a fork that replays its windows copies none") {
    Fork f;
    KvRef b = f.a.share();
    write_open_rows(*f.a, 77);
    REQUIRE(b.make_writable({300, 301, /*keep_windows=*/false}, *f.kv.queue).ok());
    CHECK(b->has_windows());
    CHECK_FALSE(window_row_holds(*b, 299, 299));
    CHECK(rows_hold(*b, first_stamps(f.ids, 300)));
    CHECK(f.a_is_whole());
  }

  TEST_CASE("the last holder writes in place") {
    Fork f;
    KvRef b = f.a.share();
    b = KvRef();
    const std::vector<PageId> pages(f.a->pages().begin(), f.a->pages().end());
    REQUIRE(append(f.a, f.ids, 300, 310, *f.kv.queue).ok());
    CHECK(std::ranges::equal(f.a->pages(), pages));
    CHECK(f.kv.pool->stats().pages_copied == 0);
  }

  TEST_CASE("a fork at an earlier position takes a part of the chain and copies the page of the cut") {
    Fork f;
    for (int64_t t : {0, 1, 127, 128, 129, 255, 256, 257, 299}) {
      CAPTURE(t);
      KvRef b = f.a.share();
      const uint64_t copied = f.kv.pool->stats().pages_copied;
      REQUIRE(b.make_writable({t, t + 1, false}, *f.kv.queue).ok());
      CHECK(b->n_sealed() == t / kPageTokens);
      CHECK(b->n_pages() == kv::pages_for(t + 1));
      CHECK(f.kv.pool->stats().pages_copied - copied == (t % kPageTokens != 0));
      CHECK(rows_hold(*b, first_stamps(f.ids, t)));
      CHECK(f.a_is_whole());
      CHECK(f.kv.fault() == "");
    }
    CHECK(f.kv.pool->stats().global_pages_free == 7);
  }

  TEST_CASE("invariant 3: rows of a sealed page are rewritten in a copy, the page itself keeps every byte") {
    Fork f;
    const PageId sealed = f.a->pages()[1];
    f.kv.pool->pin(sealed);
    const std::byte* bytes = f.kv.pool->arena() + f.kv.pool->page_offset(sealed);
    const std::vector<std::byte> before(bytes, bytes + f.kv.pool->geometry().page_bytes());
    f.a.release_beyond(200);
    CHECK(f.a->n_sealed() == 2);
    REQUIRE(f.a.make_writable({200, 300}, *f.kv.queue).ok());
    CHECK(f.a->n_sealed() == 1);
    CHECK(f.a->pages()[1] != sealed);
    CHECK(rows_hold(*f.a, first_stamps(f.ids, 200)));
    const std::vector<int32_t> other = random_ids(100, 9);
    write_rows(*f.a, 200, stamps_of(other));
    CHECK(std::equal(before.begin(), before.end(), bytes));
    CHECK(tables_agree(*f.a));
    f.kv.pool->unpin(sealed);
    CHECK(f.kv.fault() == "");
  }

  TEST_CASE("a cut at a page's end copies nothing and keeps the window slot") {
    Fork f;
    const PageId window = f.a->window_pages()[0];
    REQUIRE(f.a.make_writable({128, 129, true}, *f.kv.queue).ok());
    CHECK(f.a->n_sealed() == 1);
    CHECK(f.a->n_pages() == 2);
    CHECK(f.kv.pool->stats().pages_copied == 0);
    CHECK(f.a->window_pages()[0] == window);
    CHECK(f.kv.n_matched(f.ids) == 2);  // the page cut off is cached
  }

  TEST_CASE("releasing pages of a shared sequence does nothing") {
    Fork f;
    KvRef b = f.a.share();
    b.release_beyond(0);
    CHECK(b->n_pages() == 3);
    CHECK(f.a_is_whole());
  }

  TEST_CASE("a donor gives its window slot where the pool has none left") {
    Fork f(10, 1);
    KvRef b = f.a.share();
    CHECK(b.make_writable({300, 301, false}, *f.kv.queue).code() == Code::kPOOL_FULL);
    CHECK(b.make_writable({300, 301, false}, *f.kv.queue, &f.a).code() == Code::kPOOL_FULL);  // f.a is shared itself
    KvRef other = f.kv.sequence(1000);
    const std::vector<PageId> slot(f.a->window_pages().begin(), f.a->window_pages().end());
    b = KvRef();
    REQUIRE(other.make_writable({0, 1}, *f.kv.queue, &f.a).ok());
    CHECK(std::ranges::equal(other->window_pages(), slot));
    CHECK_FALSE(f.a->has_windows());
    CHECK(tables_agree(*other));
    CHECK(f.a.make_writable({300, 301, true}, *f.kv.queue).code() == Code::kPOOL_FULL);
    CHECK(rows_hold(*f.a, first_stamps(f.ids, 300)));
    other = KvRef();
    CHECK(f.a.make_writable({300, 301, true}, *f.kv.queue).ok());
    CHECK(f.kv.fault() == "");
  }

  TEST_CASE("a donor keeps its slot where the pool has one, and where pages are lacking") {
    Fork f(4, 2);
    KvRef other = f.kv.sequence(1000);
    REQUIRE(other.make_writable({0, 1}, *f.kv.queue, &f.a).ok());
    CHECK(f.a->has_windows());
    KvRef third = f.kv.sequence(1000);
    CHECK(third.make_writable({0, 1}, *f.kv.queue, &f.a).code() == Code::kPOOL_FULL);
    CHECK(f.a->has_windows());
    CHECK(f.a_is_whole());
  }

  TEST_CASE("invariant 11: whatever allocation or copy fails, everything is as before, and the call can be repeated") {
    struct Call {
      const char* name;
      kv::WriteRange range;
      bool shared;
    };
    const Call calls[] = {{"grow in place", {300, 400, true}, false},
                          {"cut inside the chain", {200, 400, true}, false},
                          {"fork at the end", {300, 301, true}, true},
                          {"fork inside the chain", {200, 400, true}, true},
                          {"fork, windows replayed", {256, 400, false}, true}};
    for (const Call& call : calls) {
      for (bool copies : {false, true}) {
        for (int64_t n = 1;; ++n) {
          CAPTURE(std::string(call.name));
          CAPTURE(copies);
          CAPTURE(n);
          Fork f;
          KvRef b = call.shared ? f.a.share() : KvRef();
          KvRef& writer = call.shared ? b : f.a;
          const Picture before(f.kv, writer);
          copies ? f.kv.backend->fail_copy(n) : f.kv.backend->fail_allocation(n);
          const Status status = writer.make_writable(call.range, *f.kv.queue);
          copies ? f.kv.backend->fail_copy(0) : f.kv.backend->fail_allocation(0);
          REQUIRE(f.kv.fault() == "");
          if (status.ok()) break;
          CHECK(status.code() == (copies ? Code::kDEVICE_LOST : Code::kNO_MEMORY));
          // A device that loses the upload of a table is lost with its sessions: only what is shared counts then.
          if (!copies || call.shared) {
            const Picture after(f.kv, writer);
            CHECK(after.pages == before.pages);
            CHECK(after.windows == before.windows);
            CHECK(after.n_sealed == before.n_sealed);
            CHECK(std::equal(after.counts.begin(), after.counts.begin() + 6, before.counts.begin()));
            CHECK(f.a_is_whole());
          }
          REQUIRE(writer.make_writable(call.range, *f.kv.queue).ok());
          CHECK(rows_hold(*writer, first_stamps(f.ids, call.range.keep)));
          CHECK(tables_agree(*writer));
        }
      }
    }
  }

  TEST_CASE("invariant 11: a full pool changes nothing") {
    for (bool shared : {false, true}) {
      for (int64_t keep : {300, 256, 200}) {
        CAPTURE(shared);
        CAPTURE(keep);
        Fork f(4, 2);
        KvRef b = shared ? f.a.share() : KvRef();
        KvRef& writer = shared ? b : f.a;
        const Picture before(f.kv, writer);
        CHECK(writer.make_writable({keep, 700, true}, *f.kv.queue).code() == Code::kPOOL_FULL);
        CHECK(Picture(f.kv, writer) == before);
        CHECK(f.a_is_whole());
        CHECK(f.kv.fault() == "");
      }
    }
  }

  TEST_CASE("invariant 10: after 100,000 sequences everything is free, memory and files are flat") {
    constexpr int kCycles = 100000;
    KvPool kv({16, 2});
    const std::vector<std::vector<int32_t>> prompts = {random_ids(300, 1), random_ids(129, 2), random_ids(5, 3)};
    const auto cycle = [&](int i) {
      const std::vector<int32_t>& ids = prompts[static_cast<size_t>(i) % 3];
      const auto n = static_cast<int64_t>(ids.size());
      const PageId chain = kv.pool->match(*kv.root, ids, (n - 1) / kPageTokens, false);
      KvRef a = KvRef::create_on(*kv.pool, kv.root, 1000, chain);
      const int64_t hit = a->n_sealed() * kPageTokens;
      if (!a.make_writable({hit, n, false}, *kv.queue).ok()) return false;
      const int64_t sealed = n / kPageTokens * kPageTokens;
      if (hit < sealed) {
        write_rows(*a, 0, stamps_of(ids));
        if (!a.seal(ids, nullptr, *kv.queue).ok()) return false;
      }
      KvRef b = a.share();
      return b.make_writable({n - 1, n, true}, *kv.queue).ok();
    };
    for (int i = 0; i < 1000; ++i) REQUIRE(cycle(i));
    const uint64_t bytes = resident_bytes();
    const int64_t files = n_open_files();
    for (int i = 0; i < kCycles; ++i) REQUIRE(cycle(i));
    // Sanitizers keep freed memory.
    if (!DSV41_ADDRESS_SANITIZER && !DSV41_THREAD_SANITIZER) CHECK(resident_bytes() < bytes + 500'000);
    CHECK(bytes > 0);
    CHECK(n_open_files() == files);
    kv.pool->trim(0);
    CHECK(kv.pool->stats().global_pages_free == 16);
    CHECK(kv.pool->stats().window_slots_free == 2);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("holders of one sequence may write at once from different threads") {
    KvPool kv({64, 9});
    const std::vector<int32_t> ids = random_ids(300, 1);
    KvRef a = kv.sequence(1000);
    REQUIRE(append(a, ids, 0, 300, *kv.queue).ok());
    for (int round = 0; round < 20; ++round) {
      std::vector<KvRef> forks;
      for (int t = 0; t < 8; ++t) forks.push_back(a.share());
      std::atomic<int> n_good{0};
      std::vector<std::thread> threads;
      for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&, t] {
          auto queue = kv.pool->backend().create_queue().value();
          std::vector<int32_t> own(ids.begin(), ids.begin() + 290 - t);
          own.resize(400, t);
          KvRef& fork = forks[static_cast<size_t>(t)];
          n_good += append(fork, own, 290 - t, 400, *queue).ok() && rows_hold(*fork, stamps_of(own));
          fork = KvRef();
        });
      }
      for (std::thread& thread : threads) thread.join();
      CHECK(n_good == 8);
      CHECK(rows_hold(*a, stamps_of(ids)));
      CHECK(kv.fault() == "");
    }
  }
}

}  // namespace
}  // namespace dsv41::test
