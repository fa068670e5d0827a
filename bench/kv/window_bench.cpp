// Window entries at the released shape: 40 layers of 512 dims, all 136 rows of each ring, 45 tokens behind the last
// sealed page. window_memcpy copies as many bytes in one piece between two buffers that are there already: the floor of
// window_load. A save also takes its memory from the system (window_mapping: taking it, touching each page and giving it
// back). Each copy takes another buffer of several, so that no cache holds it; a session comes back after minutes.
#include <cstring>
#include <numeric>

#include "backend/registry.h"
#include "kernels/bench_targets.h"
#include "kv/window_pool.h"

namespace dsv41::bench {
namespace {

constexpr int64_t kEnd = 301;
constexpr int64_t kEncoderLayers = 20;
constexpr uint64_t kSystemPageBytes = 4096;
constexpr size_t kBuffers = 24;  // 69 MB: twice the last cache

struct Sequence {
  std::unique_ptr<kv::PagePool> pool;
  std::unique_ptr<backend::Queue> queue;
  kv::KvRef kv;
  std::vector<int32_t> ids;

  Sequence() : ids(kEnd) {
    const kv::KvShape released = {{{2, 2}, {8, 2}, {14, 2}, {20, 1}}, 512, 128, 40, 128};
    kv::PagePoolOptions options;
    options.n_global_pages = 4;
    options.n_window_slots = 1;
    pool = kv::PagePool::create(backend::create_backend("cpu", {}).value(), kv::PageGeometry::compute(released).value(),
                                options)
               .value();
    queue = pool->backend().create_queue().value();
    kv = kv::KvRef::create(*pool, pool->root({}), 1000);
    std::iota(ids.begin(), ids.end(), 0);
    const Status writable = kv.make_writable({0, kEnd, false}, *queue);
    const Status sealed = kv.seal(std::span(ids).first(256), nullptr, *queue);
    if (!writable.ok() || !sealed.ok()) kv = {};
  }

  Result<kv::WindowEntryRef> save() const {
    const kv::WindowRows rows = {0, kEnd - pool->geometry().window_rows(), true};
    kv::WindowSave what;
    what.end = kEnd;
    what.tail.assign(ids.begin() + 256, ids.end());
    what.encoder = what.decoder = rows;
    what.n_encoder_layers = kEncoderLayers;
    return save_windows(*kv, std::move(what), *queue);
  }
};

const Sequence& sequence() {
  static const Sequence sequence;
  return sequence;
}

// Empty when there is no memory.
std::vector<kv::WindowEntryRef> new_entries() {
  std::vector<kv::WindowEntryRef> entries;
  if (!sequence().kv) return entries;
  for (size_t i = 0; i < kBuffers; ++i) {
    Result<kv::WindowEntryRef> entry = sequence().save();
    if (!entry.ok()) return {};
    entries.push_back(std::move(entry).value());
  }
  return entries;
}

void window_save(benchmark::State& state) {
  std::vector<kv::WindowEntryRef> entries = new_entries();
  if (entries.empty()) return state.SkipWithError("no memory");
  const uint64_t bytes = entries[0]->memory.size();
  size_t next = 0;
  for (auto _ : state) {
    Result<kv::WindowEntryRef> entry = sequence().save();
    if (!entry.ok()) return state.SkipWithError("no memory");
    entries[next++ % kBuffers] = std::move(entry).value();
  }
  state.counters["entry_bytes"] = static_cast<double>(bytes);
  report_work(state, static_cast<int64_t>(2 * bytes));
}
BENCHMARK(window_save)->Unit(benchmark::kMicrosecond);

void window_load(benchmark::State& state) {
  const std::vector<kv::WindowEntryRef> entries = new_entries();
  if (entries.empty()) return state.SkipWithError("no memory");
  size_t next = 0;
  for (auto _ : state) {
    if (!load_windows(*entries[next++ % kBuffers], kEncoderLayers, *sequence().kv, *sequence().queue).ok()) {
      return state.SkipWithError("cannot load");
    }
  }
  report_work(state, static_cast<int64_t>(2 * entries[0]->memory.size()));
}
BENCHMARK(window_load)->Unit(benchmark::kMicrosecond);

// The same bytes in one piece, from memory that no cache holds to one that it does, as a load.
void window_memcpy(benchmark::State& state) {
  const std::vector<kv::WindowEntryRef> entries = new_entries();
  if (entries.empty()) return state.SkipWithError("no memory");
  std::vector<std::byte> to(entries[0]->memory.size());
  size_t next = 0;
  for (auto _ : state) {
    std::memcpy(to.data(), entries[next++ % kBuffers]->memory.data(), to.size());
    benchmark::ClobberMemory();
  }
  report_work(state, static_cast<int64_t>(2 * to.size()));
}
BENCHMARK(window_memcpy)->Unit(benchmark::kMicrosecond);

void window_mapping(benchmark::State& state) {
  const std::vector<kv::WindowEntryRef> entries = new_entries();
  if (entries.empty()) return state.SkipWithError("no memory");
  for (auto _ : state) {
    Result<HostMapping> mapping = HostMapping::create(entries[0]->memory.size());
    if (!mapping.ok()) return state.SkipWithError("no memory");
    for (uint64_t at = 0; at < mapping->size(); at += kSystemPageBytes) mapping->data()[at] = std::byte{1};
    benchmark::DoNotOptimize(mapping->data());
  }
}
BENCHMARK(window_mapping)->Unit(benchmark::kMicrosecond);

// ---- The pool, with the given number of entries on as many pages: two on the one that is asked for.

std::shared_ptr<kv::WindowEntry> new_entry(kv::PageId page, size_t n_tail) {
  auto entry = std::make_shared<kv::WindowEntry>();
  entry->root = sequence().kv->root();
  entry->chain_end = page;
  entry->chain_serial = uint64_t{page} + 1;
  entry->tail.assign(sequence().ids.begin(), sequence().ids.begin() + static_cast<int64_t>(n_tail));
  entry->end = static_cast<int64_t>(n_tail) + 256;
  return entry;
}

kv::WindowPoolOptions unbounded() {
  kv::WindowPoolOptions options;
  options.budget_bytes = UINT64_MAX;
  options.ttl_ns = kv::kDefaultWindowTtlNs;
  return options;
}

void window_pool_find(benchmark::State& state) {
  if (!sequence().kv) return state.SkipWithError("no memory");
  kv::WindowPool pool(unbounded());
  const kv::PageId n_pages = static_cast<kv::PageId>(state.range(0)), page = n_pages / 2;
  for (kv::PageId p = 0; p < n_pages; ++p) pool.put(new_entry(p, 127));
  pool.put(new_entry(page, 126));
  const std::span<const int32_t> tokens = std::span(sequence().ids).first(200);
  for (auto _ : state) {
    const std::vector<kv::WindowEntryRef> found = pool.find(*sequence().kv->root(), {page, uint64_t{page} + 1}, tokens);
    if (found.size() != 2) return state.SkipWithError("entries were lost");
    pool.touch(found[0]);
  }
}
BENCHMARK(window_pool_find)->Arg(1)->Arg(1000)->Arg(100000)->Unit(benchmark::kNanosecond);

void window_pool_miss(benchmark::State& state) {
  if (!sequence().kv) return state.SkipWithError("no memory");
  kv::WindowPool pool(unbounded());
  const kv::PageId n_pages = static_cast<kv::PageId>(state.range(0));
  for (kv::PageId p = 0; p < n_pages; ++p) pool.put(new_entry(p, 127));
  const std::span<const int32_t> tokens = std::span(sequence().ids).first(200);
  for (auto _ : state) {
    if (!pool.find(*sequence().kv->root(), {n_pages, uint64_t{n_pages} + 1}, tokens).empty()) {
      return state.SkipWithError("an entry that nobody put");
    }
  }
}
BENCHMARK(window_pool_miss)->Arg(1000)->Unit(benchmark::kNanosecond);

}  // namespace
}  // namespace dsv41::bench
