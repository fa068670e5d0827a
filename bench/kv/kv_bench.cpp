// Page pool, prefix tree and sequences at the released geometry (115,200 bytes a page, 25 pages a window slot). Beside
// each line stands what it is measured against: malloc, the hash of the same ids, memcpy of the same bytes. Items are
// pages, unless a line is about one whole call. Pages are not touched where a line is about bookkeeping. Lines named BM_ have
// their reference in the same rounds (paired_rounds.h), and best_ns is that of a page:
//
//   BM_BlockAlloc, BM_BlockRelease   pages taken from the pool, given back; beside malloc and free of as many pieces
//   BM_PrefixLookup                  the longest match of a chain that a session holds; beside the hash of its ids
//   BM_PrefixInsert, BM_PrefixEvict  pages sealed under new ids; cached pages taken for others
//   BM_ForkDiverge                   the first write after a fork; beside a copy of one page
//   BM_FirstTouch                    a new pool's memory written for the first time; beside memory mapped for it alone
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <random>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "backend/registry.h"
#include "kv/sequence_kv.h"
#include "paired_rounds.h"

namespace dsv41::bench {
namespace {

using kv::kNoPage;
using kv::kPageTokens;
using kv::KvRef;
using kv::PageId;

constexpr auto kTokens = static_cast<size_t>(kPageTokens);
constexpr int64_t kLongest = 8192;  // pages of 2^20 tokens

kv::PageGeometry released_geometry() {
  return kv::PageGeometry::compute({{{2, 2}, {8, 2}, {14, 2}, {20, 1}}, 512, 128, 40, 128}).value();
}

std::vector<int32_t> random_ids(int64_t n) {
  std::mt19937 random(1);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 129280);
  return ids;
}

std::span<const int32_t> page_of(std::span<const int32_t> ids, int64_t page) {
  return ids.subspan(static_cast<size_t>(page) * kTokens, kTokens);
}

struct Pool {
  explicit Pool(int64_t n_pages, uint32_t n_slots = 2)
      : pool(kv::PagePool::create(backend::create_backend("cpu", {}).value(), released_geometry(),
                                  {static_cast<uint64_t>(n_pages), n_slots})
                 .value()),
        queue(pool->backend().create_queue().value()),
        root(pool->root({})) {}

  // A chain that the caller is a user of.
  PageId chain(std::span<const int32_t> ids) {
    const auto n = static_cast<int64_t>(ids.size() / kTokens);
    kv::Reservation pages = pool->reserve(static_cast<uint64_t>(n), 0).value();
    PageId last = kNoPage;
    for (int64_t i = 0; i < n; ++i) {
      last = pool->seal(pages.take_page(), root, last, page_of(ids, i), nullptr, *queue).value().page;
    }
    return last;
  }
  // A sequence of n tokens, its whole pages sealed.
  KvRef sequence(int64_t n_tokens, int64_t max_tokens) {
    KvRef kv = KvRef::create(*pool, root, max_tokens);
    if (!kv.make_writable({0, n_tokens}, *queue).ok()) return {};
    if (!kv.seal(random_ids(n_tokens), nullptr, *queue).ok()) return {};
    return kv;
  }

  std::unique_ptr<kv::PagePool> pool;
  std::unique_ptr<backend::Queue> queue;
  kv::PrefixRootRef root;
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// ---- Pages

void malloc_free(benchmark::State& state) {
  const auto n = static_cast<size_t>(state.range(0));
  std::vector<void*> pages(n);
  for (auto _ : state) {
    for (void*& page : pages) benchmark::DoNotOptimize(page = std::malloc(256));
    for (void* page : pages) std::free(page);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(malloc_free)->ArgName("pages")->Arg(1)->Arg(64);

void allocate_and_free(std::vector<void*>* pieces) {
  for (void*& piece : *pieces) benchmark::DoNotOptimize(piece = std::malloc(256));
  for (void* piece : *pieces) std::free(piece);
}

void block_alloc_or_release(benchmark::State& state, bool release) {
  constexpr int64_t kPages = 1024;
  Pool p(kPages);
  std::vector<void*> pieces(kPages);
  std::vector<PageId> pages;
  pages.reserve(kPages);
  PairedRounds rounds;
  for (auto _ : state) {
    pages.clear();
    std::optional<kv::Reservation> reserved;
    const auto take = [&] {
      reserved.emplace(p.pool->reserve(kPages, 0).value());
      reserved->take_pages(&pages);
    };
    const auto give = [&] { p.pool->give_back(pages); };
    if (release) take();
    rounds.run(
        state, [&] { allocate_and_free(&pieces); }, [&] { release ? give() : take(); });
    if (!release) give();
  }
  rounds.report(state, kPages, kPages);
}
BENCHMARK_CAPTURE(block_alloc_or_release, take, false)->Name("BM_BlockAlloc")->UseManualTime()->Iterations(500);
BENCHMARK_CAPTURE(block_alloc_or_release, give, true)->Name("BM_BlockRelease")->UseManualTime()->Iterations(500);

// 236 MB written at once; creating and mapping count too. Both on pages of the size that the system gives unasked.
void BM_FirstTouch(benchmark::State& state) {
  constexpr int64_t kPages = 2048;
  const size_t bytes = kPages * released_geometry().page_bytes();
  PairedRounds rounds;
  const auto raw = [&] {
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return state.SkipWithError("no memory");
    std::memset(data, 1, bytes);
    ::munmap(data, bytes);
  };
  const auto pool = [&] {
    Pool p(kPages, 2);
    std::memset(p.pool->arena(), 1, bytes);
  };
  for (auto _ : state) rounds.run(state, raw, pool);
  rounds.report(state, 1, 1);
}
BENCHMARK(BM_FirstTouch)->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(10);

// ---- Prefix tree

void hash_ids(std::span<const int32_t> ids) {
  XXH128_hash_t key = {};
  for (int64_t i = 0; i < static_cast<int64_t>(ids.size() / kTokens); ++i) {
    key = XXH3_128bits_withSeed(page_of(ids, i).data(), kTokens * sizeof(int32_t), key.low64);
  }
  benchmark::DoNotOptimize(key);
}

// cached: nobody holds the chain, so each page also leaves and enters the list of cached ones.
void prefix_lookup(benchmark::State& state, bool held) {
  Pool p(state.range(0) + 1);
  const std::vector<int32_t> ids = random_ids(state.range(0) * kPageTokens);
  const PageId end = p.chain(ids);
  if (!held) p.pool->drop_user(end);
  bool right = true;
  compare_in_rounds(
      state, [&] { hash_ids(ids); },
      [&] {
        const PageId found = p.pool->match(*p.root, ids, INT64_MAX, false);
        right = right && found == end;
        p.pool->drop_user(found);
      });
  if (!right) return state.SkipWithError("another page was found");
  state.counters["page_ns"] = state.counters["best_ns"] / static_cast<double>(state.range(0));
}
BENCHMARK_CAPTURE(prefix_lookup, held, true)
    ->Name("BM_PrefixLookup")
    ->ArgName("pages")
    ->Arg(1)
    ->Arg(64)
    ->Arg(kLongest)
    ->Apply(in_rounds);
BENCHMARK_CAPTURE(prefix_lookup, cached, false)
    ->Name("BM_PrefixLookup/cached")
    ->ArgName("pages")
    ->Arg(1)
    ->Arg(64)
    ->Arg(kLongest)
    ->Apply(in_rounds);

// The quickest of some calls, of each page.
class Quickest {
 public:
  void add(benchmark::State& state, double seconds) {
    state.SetIterationTime(seconds);
    best_ = std::min(best_, seconds);
  }
  void report(benchmark::State& state, int64_t n_pages) const {
    state.counters["best_ns"] = best_ * 1e9 / static_cast<double>(n_pages);
    state.SetItemsProcessed(state.iterations() * n_pages);
  }

 private:
  double best_ = 1e9;
};

// Sealing a chain of new pages: key, lookup of a rival, node, index. The bytes of the pages are not touched.
void prefix_insert(benchmark::State& state) {
  Pool p(state.range(0));
  const std::vector<int32_t> ids = random_ids(state.range(0) * kPageTokens);
  Quickest quickest;
  for (auto _ : state) {
    kv::Reservation reserved = p.pool->reserve(static_cast<uint64_t>(state.range(0)), 0).value();
    std::vector<PageId> pages;
    reserved.take_pages(&pages);
    const Stopwatch watch;
    PageId last = kNoPage;
    for (int64_t i = 0; i < state.range(0); ++i) {
      last = p.pool->seal(pages[static_cast<size_t>(i)], p.root, last, page_of(ids, i), nullptr, *p.queue).value().page;
    }
    quickest.add(state, watch.seconds());
    p.pool->drop_user(last);
    kv::Reservation evicted = p.pool->reserve(static_cast<uint64_t>(state.range(0)), 0).value();
  }
  quickest.report(state, state.range(0));
}
BENCHMARK(prefix_insert)
    ->Name("BM_PrefixInsert")
    ->ArgName("pages")
    ->Arg(64)
    ->Arg(kLongest)
    ->UseManualTime()
    ->Iterations(200);

// A reservation that finds every page cached: eviction and the change to RESERVED.
void prefix_evict(benchmark::State& state) {
  Pool p(state.range(0));
  const std::vector<int32_t> ids = random_ids(state.range(0) * kPageTokens);
  Quickest quickest;
  for (auto _ : state) {
    p.pool->drop_user(p.chain(ids));
    const Stopwatch watch;
    kv::Reservation evicted = p.pool->reserve(static_cast<uint64_t>(state.range(0)), 0).value();
    quickest.add(state, watch.seconds());
  }
  quickest.report(state, state.range(0));
}
BENCHMARK(prefix_evict)
    ->Name("BM_PrefixEvict")
    ->ArgName("pages")
    ->Arg(64)
    ->Arg(kLongest)
    ->UseManualTime()
    ->Iterations(200);

// A second session seals the same 64 pages with the same bytes: all are compared and adopted.
void seal_adopted(benchmark::State& state) {
  constexpr int64_t kPages = 64;
  Pool p(2 * kPages);
  const std::vector<int32_t> ids = random_ids(kPages * kPageTokens);
  std::memset(p.pool->arena(), 1, 2 * kPages * p.pool->geometry().page_bytes());
  const PageId end = p.chain(ids);
  for (auto _ : state) {
    const PageId other = p.chain(ids);
    if (other != end) return state.SkipWithError("not adopted");
    p.pool->drop_user(other);
  }
  state.SetItemsProcessed(state.iterations() * kPages);
  state.SetBytesProcessed(state.items_processed() * 2 * static_cast<int64_t>(p.pool->geometry().payload_bytes()));
}
BENCHMARK(seal_adopted);

void bookkeeping(benchmark::State& state) {
  Pool p(kLongest);
  for (auto _ : state) benchmark::DoNotOptimize(p.pool->stats());
  const kv::PagePoolStats stats = p.pool->stats();
  const auto bytes = static_cast<double>(stats.bookkeeping_bytes_per_page);
  state.counters["bytes_a_page"] = bytes;
  state.counters["percent_of_page"] = 100 * bytes / static_cast<double>(stats.page_bytes);
}
BENCHMARK(bookkeeping);

// ---- Sequences

void copy_of_page_list(benchmark::State& state) {
  const std::vector<PageId> pages(static_cast<size_t>(kv::pages_for(state.range(0))), 1);
  std::vector<PageId> copy(pages.size());
  for (auto _ : state) {
    std::memcpy(copy.data(), pages.data(), pages.size() * sizeof(PageId));
    benchmark::DoNotOptimize(copy.data());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(copy_of_page_list)->ArgName("tokens")->Arg(1 << 10)->Arg(1 << 17)->Arg(1 << 20);

void fork(benchmark::State& state) {
  Pool p(kLongest);
  KvRef kv = p.sequence(state.range(0), state.range(0));
  if (!kv) return state.SkipWithError("no sequence");
  for (auto _ : state) {
    KvRef other = kv.share();
    benchmark::DoNotOptimize(&*other);
  }
}
BENCHMARK(fork)->ArgName("tokens")->Arg(1 << 10)->Arg(1 << 17)->Arg(1 << 20);

// Fork, first write (one token), release. windows: the window slot is copied too, 25 pages. The reference copies as many pages.
void fork_diverge(benchmark::State& state, bool windows) {
  Pool p(kLongest + 2, 2), other_pool(64);
  KvRef kv = p.sequence(state.range(0) - 28, state.range(0));  // ends in the middle of a page
  if (!kv) return state.SkipWithError("no sequence");
  const uint64_t bytes = p.pool->geometry().page_bytes();
  std::byte* const arena = other_pool.pool->arena();
  std::memset(arena, 1, bytes * 64);
  bool written = true;
  compare_in_rounds(
      state,
      [&] {
        for (uint64_t i = 0; i < (windows ? 26 : 1); ++i)
          std::memcpy(arena + (32 + i) * bytes, arena + i * bytes, bytes);
        benchmark::ClobberMemory();
      },
      [&] {
        KvRef other = kv.share();
        written = written && other.make_writable({state.range(0) - 28, state.range(0) - 27, windows}, *p.queue).ok();
      });
  if (!written) state.SkipWithError("no memory");
}
BENCHMARK_CAPTURE(fork_diverge, page, false)
    ->Name("BM_ForkDiverge")
    ->ArgName("tokens")
    ->Arg(1 << 10)
    ->Arg(1 << 17)
    ->Arg(1 << 20)
    ->Apply(in_rounds);
BENCHMARK_CAPTURE(fork_diverge, page_and_windows, true)
    ->Name("BM_ForkDiverge/windows")
    ->ArgName("tokens")
    ->Arg(1 << 10)
    ->Arg(1 << 17)
    ->Apply(in_rounds);

// A sequence of 100,000 tokens is cut; the argument is what is left.
void truncate(benchmark::State& state) {
  constexpr int64_t kLength = 100'000;
  Pool p(1024);
  const std::vector<int32_t> ids = random_ids(kLength);
  p.pool->drop_user(p.chain(ids));
  for (auto _ : state) {
    KvRef kv = KvRef::create_on(*p.pool, p.root, kLength, p.pool->match(*p.root, ids, INT64_MAX, false));
    const Stopwatch watch;
    kv.release_beyond(state.range(0));
    state.SetIterationTime(watch.seconds());
  }
}
BENCHMARK(truncate)->ArgName("tokens")->Arg(99'900)->Arg(50'000)->Arg(128)->UseManualTime()->Iterations(1000);

// ---- A table: what a session of so many tokens takes, and what of it holds nothing

void waste(benchmark::State& state) {
  const kv::PageGeometry geometry = released_geometry();
  const int64_t n_tokens = state.range(0);
  int64_t n_pages = 0;
  for (auto _ : state) benchmark::DoNotOptimize(n_pages = kv::pages_for(n_tokens));
  uint64_t payload = 0;  // complete entries of all fields
  for (const kv::PageField& field : geometry.fields()) {
    payload += static_cast<uint64_t>(n_tokens) * field.entries / static_cast<uint64_t>(kPageTokens) *
               (field.code_bytes + field.scale_bytes);
  }
  const auto pages = static_cast<double>(n_pages) * static_cast<double>(geometry.page_bytes());
  state.counters["payload_bytes"] = static_cast<double>(payload);
  state.counters["page_bytes"] = pages;
  state.counters["padding_percent"] =
      100 * (1 - static_cast<double>(geometry.payload_bytes()) / static_cast<double>(geometry.page_bytes()));
  state.counters["waste_percent"] = 100 * (1 - static_cast<double>(payload) / pages);
}
BENCHMARK(waste)->ArgName("tokens")->Arg(1)->Arg(100)->Arg(128)->Arg(129)->Arg(1000)->Arg(10'000)->Arg(100'000)->Arg(
    1'000'000);

}  // namespace
}  // namespace dsv41::bench
