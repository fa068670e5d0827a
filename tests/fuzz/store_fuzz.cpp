// libFuzzer entry: any bytes as a state or as the catalogue of a store that is right otherwise. The first byte chooses
// which; the rest is used twice: as it is, and with its checksums made to hold (and a state made to stand on a page that
// is there). The store opens for readers and for a writer and is sound; its own pages are there, but for what a
// catalogue drops; what else it shows can be read or is quarantined; what is put then is there after another start.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <vector>

#include "store/record.h"
#include "store/store_fixture.h"
#include "store/store_surgery.h"
#include "store/volume_files.h"
#include "support/crash_file_system.h"

namespace {

using namespace dsv41;
using namespace dsv41::store;
using test::CrashFileSystem;
using test::RecordMaker;
using test::TestRecord;

// Few bytes of zstd may stand for 64 MiB: the fuzzer's time is better spent on others.
constexpr uint64_t kMostRawBytes = 1 << 20;
constexpr uint64_t kNow = 1'700'000'000'000'000'000;

void require(bool holds) {
  if (!holds) std::abort();
}

StoreOptions options_over(FileSystem& files, LockMode lock) {
  StoreOptions options;
  options.folder = "s";
  options.files = &files;
  options.lock = lock;
  options.background = false;
  options.compress = false;
  options.ttl_ns = 0;
  options.clock = {[](void*) { return kNow; }, nullptr};
  return options;
}

using StorePtr = std::shared_ptr<Store>;

StorePtr must_open(FileSystem& files, LockMode lock) {
  Result<StorePtr> opened = Store::open(options_over(files, lock));
  require(opened.ok());
  return std::move(opened).value();
}

// Two pages, a state on top of the second, and the files that a writer has left of them.
struct Start {
  Start() {
    RecordMaker make;
    make.payload_bytes = 200;
    pages = make.chain(1, 2);
    state = make.state(&pages[1], 7, 5);
    fresh = make.page(&pages[0], 40);
    CrashFileSystem disk;
    {
      const StorePtr store = must_open(disk, LockMode::kWriter);
      for (const TestRecord* record : {&pages[0], &pages[1], &state}) require(store->put(record->draft, nullptr).ok());
    }
    for (const std::string& path : disk.paths()) files[path] = *disk.file(path);
  }
  std::vector<TestRecord> pages;
  TestRecord state, fresh;
  std::map<std::string, std::vector<std::byte>> files;
};

const Start& start() {
  static const Start made;
  return made;
}

bool is_there(Store& store, const TestRecord& record) {
  const Lease lease = store.lease(record.key());
  return lease && lease.head().payload == record.payload() && test::read_and_compare(store, lease, record).ok();
}

// Reads everything once. A record that cannot be used is not shown again.
void look(Store& store) {
  require(store.check_invariants().ok());
  for (const RecordInfo& info : store.list()) {
    const Lease lease = store.lease(info.head.key);
    if (!lease) continue;  // gone with one that it stood on
    if (info.head.raw_bytes > kMostRawBytes) continue;
    std::vector<int32_t> ids = info.ids;
    for (const TestRecord* page : {&start().pages[0], &start().pages[1], &start().fresh}) {
      if (page->key() == info.head.key) ids = page->draft.ids;  // of pages the index has none
    }
    std::vector<std::byte> raw(info.head.raw_bytes);
    const Status read = store.read(lease, ids, raw, nullptr);
    require(read.ok() || store.stats().n_quarantined > 0 || store.read_only());
  }
  require(store.check_invariants().ok());
}

void use(const std::string& path, std::span<const std::byte> bytes, bool drops_pages) {
  CrashFileSystem files;
  for (const auto& [name, content] : start().files) {
    require(files.create_folder(folder_of(name)).ok());
    files.put(name, content);
  }
  files.put(path, {bytes.begin(), bytes.end()});
  const auto check_pages = [&](Store& store) {
    for (const TestRecord& page : start().pages) require(drops_pages || is_there(store, page));
  };
  {
    const StorePtr store = must_open(files, LockMode::kReader);
    look(*store);
    check_pages(*store);
  }
  bool has_fresh = false;
  {
    const StorePtr store = must_open(files, LockMode::kWriter);
    look(*store);
    check_pages(*store);
    const Result<PutOutcome> outcome = store->put(start().fresh.draft, nullptr);
    require(outcome.ok());
    has_fresh = outcome.value() == PutOutcome::kQueued;
    require(has_fresh || drops_pages);
    require(store->check_invariants().ok());
  }
  const StorePtr store = must_open(files, LockMode::kReader);
  look(*store);
  check_pages(*store);
  require(!has_fresh || is_there(*store, start().fresh));
}

void use_state(std::span<const std::byte> bytes) {
  RecordKey key{1, 0};
  if (bytes.size() >= 32) key = {test::number_at<uint64_t>(bytes, 16), test::number_at<uint64_t>(bytes, 24)};
  use("s/states/" + key_text(key) + ".rec", bytes, /*drops_pages=*/false);
}

// Kind, parent, and position as the store's own state has them.
void adopt(std::span<std::byte> state) {
  const RecordHead& head = start().state.draft.head;
  if (state.size() < kRecordHeadBytes) return;
  test::set_number(state, 12, RecordKind::kState);
  test::set_number(state, 32, head.parent);
  test::set_number(state, 96, head.parent_payload);
  test::set_number(state, 176, head.first_token);
}

void use_catalogue(std::span<const std::byte> bytes) {
  const Result<Catalogue> catalogue = decode_catalogue(bytes);
  use("s/catalogue", bytes, catalogue.ok() && !catalogue->dropped.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> bytes(size - 1);
  std::copy_n(reinterpret_cast<const std::byte*>(data) + 1, size - 1, bytes.begin());
  const bool is_state = data[0] % 2 == 0;
  for (const bool fixed : {false, true}) {
    if (fixed && is_state) adopt(bytes);
    if (fixed) is_state ? test::fix_record(bytes) : test::fix_catalogue(bytes);
    is_state ? use_state(bytes) : use_catalogue(bytes);
  }
  return 0;
}
