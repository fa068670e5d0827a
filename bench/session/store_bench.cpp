// A store at the size of long contexts: chains of pages of the released shape (40 layers, 512 dims, 115,200 bytes a
// page) with records that look as those of a model do to a codec: codes without structure, scales that cluster.
//
//   store_restore      pages of a prefix into an empty pool; the references read the same files with large reads into
// one
//                      buffer (raw_read), and copy the same bytes into memory that was not touched before (raw_copy)
//   store_put          the same pages into an empty store, durable at the end; the reference writes as many bytes to a
// file
//   store_lookup       longest match in a store of 100,000 pages; the references hash the same ids as keys do
// (hash_of_ids)
//                      and make the names that a lookup asks for (names_of_pages)
//   store_growing_chat 20 saves of a chat that grows by 512 tokens each time: counters tell the bytes
//
// Folders are made where DSV41_BENCH_FOLDER says, else among the system's temporary files.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "backend/registry.h"
#include "base/xxh3.h"
#include "kv/page_image.h"
#include "kv/prefix_key.h"
#include "session/store_chain.h"
#include "store/store.h"

namespace dsv41::bench {
namespace {

constexpr size_t kPageIds = static_cast<size_t>(kv::kPageTokens);
constexpr int64_t kReadBytes = int64_t{4} << 20;
constexpr char kFolderVariable[] = "DSV41_BENCH_FOLDER";

const kv::KvShape kReleased = {{{2, 2}, {8, 2}, {14, 2}, {20, 1}}, 512, 128, 40, 128};

// A folder that goes with the program.
class Folder {
 public:
  Folder() {
    const char* chosen = std::getenv(kFolderVariable);
    std::string pattern = std::string(chosen ? chosen : std::filesystem::temp_directory_path().string());
    pattern += "/dsv41-bench-XXXXXX";
    if (mkdtemp(pattern.data())) path_ = pattern;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::vector<std::string> files() const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      if (entry.is_regular_file() && entry.file_size() > 4096) paths.push_back(entry.path().string());
    }
    return paths;
  }

 private:
  std::string path_;
};

Result<std::unique_ptr<kv::PagePool>> new_pool(uint64_t n_pages) {
  kv::PagePoolOptions options;
  options.n_global_pages = n_pages;
  options.n_window_slots = 1;
  DSV41_TRY_ASSIGN(std::shared_ptr<backend::Backend> backend, backend::create_backend("cpu", {}));
  DSV41_TRY_ASSIGN(const kv::PageGeometry geometry, kv::PageGeometry::compute(kReleased));
  return kv::PagePool::create(std::move(backend), geometry, options);
}

std::vector<int32_t> random_ids(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 129280);
  return ids;
}

// Names as those of one model without salt.
std::vector<store::RecordName> names_of(const store::Store& store, std::span<const int32_t> ids) {
  const kv::PrefixKeys keys(store.seed());
  const kv::PrefixRoot root = keys.root({});
  std::vector<store::RecordName> names;
  kv::PageKey key = root.key;
  Sha256Digest chain = root.extras;
  for (size_t i = 0; i < ids.size() / kPageIds; ++i) {
    const std::span<const int32_t> page = ids.subspan(i * kPageIds, kPageIds);
    key = keys.page(key, page);
    chain = kv::chain_digest(chain, page);
    names.push_back({{key.low, key.high}, chain});
  }
  return names;
}

// What a codec sees of records: e2m1 codes are close to random, scales of e4m3 spread over a few binades, those of e8m0
// over a few steps.
void fill_page(kv::PagePool& pages, kv::PageId page, std::mt19937_64& random) {
  std::normal_distribution<float> spread(0, 1);
  std::byte* const memory = pages.arena() + pages.page_offset(page);
  for (const kv::PageField& field : pages.geometry().fields()) {
    std::byte* at = memory + field.offset;
    const uint64_t n_codes = uint64_t{field.entries} * field.code_bytes;
    for (uint64_t i = 0; i < n_codes; i += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(at + i, &word, sizeof word);
    }
    at += n_codes;
    for (uint64_t i = 0; i < uint64_t{field.entries} * field.scale_bytes; ++i) {
      const float value = field.is_index ? 120 + 1.2f * spread(random) : 56 + 4 * spread(random);
      at[i] = static_cast<std::byte>(static_cast<int>(value));
    }
  }
}

// A chain of pages in a pool, held.
struct Chain {
  std::unique_ptr<kv::PagePool> pool;
  std::unique_ptr<backend::Queue> queue;
  kv::PrefixRootRef root;
  std::vector<int32_t> ids;
  std::vector<kv::PageId> pages;
};

Result<Chain> new_chain(size_t n_pages) {
  Chain made;
  made.ids = random_ids(n_pages * kPageIds, 1);
  DSV41_TRY_ASSIGN(made.pool, new_pool(n_pages));
  DSV41_TRY_ASSIGN(made.queue, made.pool->backend().create_queue());
  made.root = made.pool->root({});
  std::mt19937_64 random(2);
  kv::PageId last = kv::kNoPage;
  for (size_t i = 0; i < n_pages; ++i) {
    DSV41_TRY_ASSIGN(kv::Reservation one, made.pool->reserve(1, 0));
    const kv::PageId page = one.take_page();
    fill_page(*made.pool, page, random);
    DSV41_TRY_ASSIGN(const kv::PagePool::Sealed sealed,
                     made.pool->seal(page, made.root, last, std::span(made.ids).subspan(i * kPageIds, kPageIds),
                                     nullptr, *made.queue));
    last = sealed.page;
    made.pages.push_back(last);
  }
  return made;
}

Result<std::shared_ptr<store::Store>> open_store(const std::string& folder, uint64_t queue_bytes = 0) {
  store::StoreOptions options;
  options.folder = folder;
  if (queue_bytes) options.queue_bytes = queue_bytes;
  return store::Store::open(options);
}

Result<session::ChainPut> put_pages(store::Store& store, const Chain& chain, size_t n_pages) {
  const std::vector<store::RecordName> names = names_of(store, std::span(chain.ids).first(n_pages * kPageIds));
  session::RecordOrigin origin;
  origin.numeric_class = chain.pool->backend().numeric_class();
  origin.layout_id = chain.pool->geometry().layout_id();
  session::ChainPutOptions options;
  options.n_tokens = static_cast<int64_t>(n_pages * kPageIds);
  DSV41_TRY_ASSIGN(const session::ChainPut put,
                   session::put_chain(store, *chain.pool, std::span(chain.pages).first(n_pages), names, -1, origin,
                                      options, *chain.queue));
  DSV41_TRY(store.flush(nullptr));
  return put;
}

// Made once for each length: the chain of the longest, and a store with it.
struct Stored {
  Chain chain;
  std::unique_ptr<Folder> folder;
  std::shared_ptr<store::Store> store;
};

Result<Stored> new_stored(size_t n_pages) {
  Stored made;
  DSV41_TRY_ASSIGN(made.chain, new_chain(n_pages));
  made.folder = std::make_unique<Folder>();
  DSV41_TRY_ASSIGN(made.store, open_store(made.folder->path() + "/store"));
  DSV41_TRY(put_pages(*made.store, made.chain, n_pages).status());
  return made;
}

Stored* stored_of(benchmark::State& state) {
  static std::map<int64_t, Result<Stored>> all;
  const int64_t n_tokens = state.range(0);
  auto found = all.find(n_tokens);
  if (found == all.end()) {
    found = all.emplace(n_tokens, new_stored(static_cast<size_t>(n_tokens) / kPageIds)).first;
  }
  if (found->second.ok()) return &found->second.value();
  state.SkipWithError(std::string(found->second.status().message()).c_str());
  return nullptr;
}

// The next reads come from the disk, as far as the system lets go of its cache.
void drop_from_cache(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
}

void report_bytes(benchmark::State& state, uint64_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
}

void store_restore(benchmark::State& state, bool cold) {
  Stored* const stored = stored_of(state);
  if (!stored) return;
  const std::span<const int32_t> ids(stored->chain.ids);
  Result<std::unique_ptr<kv::PagePool>> pool = new_pool(ids.size() / kPageIds);
  if (!pool.ok()) return state.SkipWithError("no pool");
  kv::PagePool& pages = *pool.value();
  const kv::PrefixRootRef root = pages.root({});
  const std::vector<store::RecordName> names = names_of(*stored->store, ids);
  for (auto _ : state) {
    state.PauseTiming();
    pages.trim(0);
    if (cold) drop_from_cache(stored->folder->files());
    state.ResumeTiming();
    const std::vector<store::Lease> records = stored->store->match(names, {});
    const session::ChainRead read = session::read_chain(*stored->store, pages, root, ids, records, {});
    if (!read.status.ok() || static_cast<size_t>(read.n_pages) != names.size()) {
      return state.SkipWithError("not all of it came back");
    }
  }
  const store::StoreStats stats = stored->store->stats();
  state.counters["disk_bytes_per_token"] = static_cast<double>(stats.physical_bytes) / static_cast<double>(ids.size());
  state.counters["raw_bytes_per_token"] = static_cast<double>(stats.raw_bytes) / static_cast<double>(ids.size());
  report_bytes(state, stats.record_bytes);
}

// The same files in large pieces into one buffer.
void raw_read(benchmark::State& state, bool cold) {
  Stored* const stored = stored_of(state);
  if (!stored) return;
  std::vector<std::byte> buffer(static_cast<size_t>(kReadBytes));
  uint64_t bytes = 0;
  for (auto _ : state) {
    state.PauseTiming();
    if (cold) drop_from_cache(stored->folder->files());
    state.ResumeTiming();
    bytes = 0;
    for (const std::string& file : stored->folder->files()) {
      const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
      for (ssize_t n = 1; fd >= 0 && n > 0; bytes += static_cast<uint64_t>(n)) {
        n = std::max<ssize_t>(0, read(fd, buffer.data(), buffer.size()));
      }
      if (fd >= 0) close(fd);
    }
  }
  report_bytes(state, bytes);
}

// The same bytes from memory to that of an empty pool, which the system has to back first.
void raw_copy(benchmark::State& state) {
  Stored* const stored = stored_of(state);
  if (!stored) return;
  const Chain& chain = stored->chain;
  const uint64_t bytes = chain.pages.size() * chain.pool->geometry().page_bytes();
  Result<std::unique_ptr<kv::PagePool>> to = new_pool(chain.pages.size());
  if (!to.ok()) return state.SkipWithError("no pool");
  for (auto _ : state) {
    state.PauseTiming();
    to.value()->trim(0);
    state.ResumeTiming();
    std::memcpy(to.value()->arena(), chain.pool->arena(), bytes);
    benchmark::ClobberMemory();
  }
  report_bytes(state, bytes);
}

void store_put(benchmark::State& state) {
  Stored* const stored = stored_of(state);
  if (!stored) return;
  for (auto _ : state) {
    state.PauseTiming();
    const Folder folder;
    Result<std::shared_ptr<store::Store>> store = open_store(folder.path() + "/store");
    state.ResumeTiming();
    if (!store.ok() || !put_pages(*store.value(), stored->chain, stored->chain.pages.size()).ok()) {
      return state.SkipWithError("cannot put");
    }
    state.PauseTiming();
    store.value().reset();
    state.ResumeTiming();
  }
  report_bytes(state, stored->store->stats().record_bytes);
}

void raw_write(benchmark::State& state) {
  Stored* const stored = stored_of(state);
  if (!stored) return;
  const uint64_t bytes = stored->store->stats().record_bytes;
  const std::byte* const from = stored->chain.pool->arena();
  for (auto _ : state) {
    state.PauseTiming();
    const Folder folder;
    state.ResumeTiming();
    const int fd = open((folder.path() + "/raw").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return state.SkipWithError("cannot create a file");
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t n = write(fd, from + done, std::min<uint64_t>(bytes - done, static_cast<uint64_t>(kReadBytes)));
      if (n <= 0) break;
      done += static_cast<uint64_t>(n);
    }
    (void)fdatasync(fd);
    close(fd);
  }
  report_bytes(state, bytes);
}

// A million tokens take a gigabyte of memory twice, and one of the disk: only where a folder for them is named.
void lengths(benchmark::internal::Benchmark* line) {
  line->ArgName("tokens")->Unit(benchmark::kMillisecond)->UseRealTime()->Arg(131072);
  if (std::getenv(kFolderVariable)) line->Arg(1048576);
}
BENCHMARK_CAPTURE(store_restore, warm, false)->Apply(lengths);
BENCHMARK_CAPTURE(raw_read, warm, false)->Apply(lengths);
BENCHMARK(raw_copy)->Apply(lengths);
BENCHMARK_CAPTURE(store_restore, cold, true)->Apply(lengths);
BENCHMARK_CAPTURE(raw_read, cold, true)->Apply(lengths);
BENCHMARK(store_put)->Apply(lengths);
BENCHMARK(raw_write)->Apply(lengths);

// ---- Looking up, in a store of 100,000 small pages: a chain of 8,192, and others

constexpr size_t kLongChain = 8192, kAllPages = 100000;

struct Index {
  Folder folder;
  std::shared_ptr<store::Store> store;
  std::vector<int32_t> ids;  // of the long chain
};

Status put_small_chain(store::Store& store, std::span<const int32_t> ids) {
  const std::vector<store::RecordName> names = names_of(store, ids);
  Digest128 payload;
  for (size_t i = 0; i < names.size(); ++i) {
    store::RecordDraft draft;
    draft.head.key = names[i].key;
    draft.head.chain = names[i].chain;
    if (i > 0) draft.head.parent = names[i - 1].key;
    draft.head.parent_payload = payload;
    draft.head.first_token = i * kPageIds;
    const std::span<const int32_t> page = ids.subspan(i * kPageIds, kPageIds);
    draft.ids.assign(page.begin(), page.end());
    draft.raw.assign(64, static_cast<std::byte>(i));
    draft.planes = {{64, false}};
    payload = xxh3_128(draft.raw);
    DSV41_TRY(store.put(std::move(draft), nullptr).status());
  }
  return Status();
}

Result<std::unique_ptr<Index>> new_index() {
  auto made = std::make_unique<Index>();
  DSV41_TRY_ASSIGN(made->store, open_store(made->folder.path() + "/store", uint64_t{1} << 18));  // small records
  made->ids = random_ids(kLongChain * kPageIds, 5);
  DSV41_TRY(put_small_chain(*made->store, made->ids));
  for (size_t done = kLongChain, chain = 0; done < kAllPages; ++chain) {
    const size_t n = std::min<size_t>(1000, kAllPages - done);
    DSV41_TRY(put_small_chain(*made->store, random_ids(n * kPageIds, 100 + static_cast<uint32_t>(chain))));
    done += n;
  }
  DSV41_TRY(made->store->flush(nullptr));
  return made;
}

Index* index_of(benchmark::State& state) {
  static const Result<std::unique_ptr<Index>> index = new_index();
  if (index.ok()) return index.value().get();
  state.SkipWithError(std::string(index.status().message()).c_str());
  return nullptr;
}

void report_pages(benchmark::State& state) { state.SetItemsProcessed(state.iterations() * state.range(0)); }

void store_lookup(benchmark::State& state) {
  Index* const index = index_of(state);
  if (!index) return;
  const size_t n = static_cast<size_t>(state.range(0));
  const std::vector<store::RecordName> names = names_of(*index->store, std::span(index->ids).first(n * kPageIds));
  for (auto _ : state) {
    const std::vector<store::Lease> found = index->store->match(names, {});
    if (found.size() != n) return state.SkipWithError("not found");
  }
  report_pages(state);
}

void names_of_pages(benchmark::State& state) {
  Index* const index = index_of(state);
  if (!index) return;
  const std::span<const int32_t> ids = std::span(index->ids).first(static_cast<size_t>(state.range(0)) * kPageIds);
  for (auto _ : state) benchmark::DoNotOptimize(names_of(*index->store, ids));
  report_pages(state);
}

void hash_of_ids(benchmark::State& state) {
  Index* const index = index_of(state);
  if (!index) return;
  for (auto _ : state) {
    for (size_t i = 0; i < static_cast<size_t>(state.range(0)); ++i) {
      benchmark::DoNotOptimize(xxh3_128(std::as_bytes(std::span(index->ids).subspan(i * kPageIds, kPageIds))));
    }
  }
  report_pages(state);
}

void page_counts(benchmark::internal::Benchmark* line) {
  line->ArgName("pages")->Unit(benchmark::kMicrosecond)->Arg(1)->Arg(64)->Arg(8192);
}
BENCHMARK(store_lookup)->Apply(page_counts);
BENCHMARK(names_of_pages)->Apply(page_counts);
BENCHMARK(hash_of_ids)->Apply(page_counts);

// What opening the store costs: its segments' indexes are read.
void store_open(benchmark::State& state) {
  Index* const index = index_of(state);
  if (!index) return;
  store::StoreOptions options;
  options.folder = index->folder.path() + "/store";
  options.lock = store::LockMode::kReader;
  for (auto _ : state) {
    Result<std::shared_ptr<store::Store>> opened = store::Store::open(options);
    if (!opened.ok()) return state.SkipWithError("cannot open");
    state.counters["pages"] = static_cast<double>(opened.value()->stats().n_pages);
  }
}
BENCHMARK(store_open)->Unit(benchmark::kMillisecond);

// ---- A chat that is saved 20 times

void store_growing_chat(benchmark::State& state) {
  constexpr size_t kSaves = 20, kPagesEach = 4;
  Result<Chain> chain = new_chain(kSaves * kPagesEach);
  if (!chain.ok()) return state.SkipWithError("no chain");
  uint64_t physical = 0, one_by_one = 0;
  for (auto _ : state) {
    const Folder folder;
    Result<std::shared_ptr<store::Store>> store = open_store(folder.path() + "/store");
    if (!store.ok()) return state.SkipWithError("no store");
    one_by_one = 0;
    for (size_t save = 1; save <= kSaves; ++save) {
      if (!put_pages(*store.value(), chain.value(), save * kPagesEach).ok()) return state.SkipWithError("cannot put");
      one_by_one += store.value()->stats().record_bytes;
    }
    physical = store.value()->stats().physical_bytes;
  }
  state.counters["disk_bytes"] = static_cast<double>(physical);
  state.counters["of_20_files"] = static_cast<double>(one_by_one);
  state.counters["ratio"] = static_cast<double>(physical) / static_cast<double>(one_by_one);
}
BENCHMARK(store_growing_chat)->Unit(benchmark::kMillisecond)->Iterations(3);

}  // namespace
}  // namespace dsv41::bench
