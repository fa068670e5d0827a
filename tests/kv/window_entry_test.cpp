#include "kv/window_entry.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "backend/registry.h"

namespace dsv41::test {
namespace {

using kv::kNoPage;
using kv::kPageTokens;
using kv::KvRef;
using kv::PageField;
using kv::PageId;
using kv::PagePool;
using kv::WindowEntry;
using kv::WindowEntryRef;
using kv::WindowRows;
using kv::WindowSave;

// ---- Patterns: every byte of every record says where it belongs

constexpr uint32_t kCodes = 1000, kScales = 2000, kOpenRows = 3000;  // `kind`; window layers are their own kind

std::byte pattern(uint32_t salt, uint32_t kind, int64_t index, uint64_t byte) {
  uint64_t hash = (uint64_t{salt} << 48) ^ (uint64_t{kind} << 32) ^ static_cast<uint64_t>(index);
  hash = (hash * 0x9e3779b97f4a7c15u) ^ byte;
  return static_cast<std::byte>((hash * 0xbf58476d1ce4e5b9u) >> 56);
}

// Equal to the pattern where it should be; the first byte that is not, else -1.
int64_t first_difference(const std::byte* data, uint64_t bytes, uint32_t salt, uint32_t kind, int64_t index) {
  for (uint64_t i = 0; i < bytes; ++i) {
    if (data[i] != pattern(salt, kind, index, i)) return static_cast<int64_t>(i);
  }
  return -1;
}

void fill(std::byte* data, uint64_t bytes, uint32_t salt, uint32_t kind, int64_t index) {
  for (uint64_t i = 0; i < bytes; ++i) data[i] = pattern(salt, kind, index, i);
}

// ---- A pool and its sequences

struct Shape {
  const char* name;
  kv::KvShape shape;
  int64_t n_encoder_layers;
  uint32_t n_slots;
};

const Shape kTiny = {"tiny", {{{0, 2}, {1, 2}, {2, 1}}, 32, 32, 5, 128}, 3, 3};
const Shape kShortWindow = {"window of 16", {{{1, 4}, {3, 1}}, 64, 32, 7, 16}, 2, 3};
const Shape kReleased = {"released", {{{2, 2}, {8, 2}, {14, 2}, {20, 1}}, 512, 128, 40, 128}, 20, 3};

// Copies go through as they come; the one with number `fails_at` does not.
class CountingQueue final : public backend::Queue {
 public:
  explicit CountingQueue(backend::Queue& inner) : inner_(inner) {}
  int64_t fails_at = -1;
  int64_t n_copies = 0;
  int64_t n_waits_behind_last_copy = 0;

  Status copy_to_device(void* device, const void* host, uint64_t bytes) override {
    DSV41_TRY(next());
    return inner_.copy_to_device(device, host, bytes);
  }
  Status copy_to_host(void* host, const void* device, uint64_t bytes) override {
    DSV41_TRY(next());
    return inner_.copy_to_host(host, device, bytes);
  }
  Status copy(void* to, const void* from, uint64_t bytes) override { return inner_.copy(to, from, bytes); }
  Status wait() override {
    ++n_waits_behind_last_copy;
    return inner_.wait();
  }
#define DSV41_OP(name, Args) \
  Status name(const kernels::Args& args) override { return inner_.name(args); }
#include "kernels/op_list.inc"
#undef DSV41_OP

 private:
  Status next() {
    n_waits_behind_last_copy = 0;
    if (n_copies++ == fails_at) return Status(Code::kBACKEND, "a copy that was made to fail");
    return Status();
  }
  backend::Queue& inner_;
};

struct World {
  Shape shape;
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<backend::Queue> queue;
  kv::PrefixRootRef root;

  explicit World(const Shape& of) : shape(of) {
    const kv::PageGeometry geometry = kv::PageGeometry::compute(of.shape).value();
    kv::PagePoolOptions options;
    options.n_global_pages = 12;
    options.n_window_slots = of.n_slots;
    options.poison_pages = true;
    pool = PagePool::create(backend::create_backend("cpu", {}).value(), geometry, options).value();
    queue = pool->backend().create_queue().value();
    root = pool->root({});
  }
  const kv::PageGeometry& geometry() const { return pool->geometry(); }
  int64_t capacity() const { return geometry().window_rows(); }
};

std::vector<int32_t> ids(int64_t from, int64_t to) {
  std::vector<int32_t> out(static_cast<size_t>(to - from));
  std::iota(out.begin(), out.end(), static_cast<int32_t>(from));
  return out;
}

// body(kind, view) for the codes and the scales of each field of a page.
void for_each_plane(
    const World& world, PageId page,
    const std::function<void(uint32_t kind, std::byte* first, uint32_t bytes, const PageField&)>& body) {
  const uint64_t offset = world.pool->page_offset(page);
  uint32_t n = 0;
  for (const PageField& field : world.geometry().fields()) {
    const tensor::PagedField view = world.geometry().view(field, world.pool->arena(), &offset);
    body(kCodes + n, view.codes(0), field.code_bytes, field);
    body(kScales + n, view.scales(0), field.scale_bytes, field);
    ++n;
  }
}

// All records of all pages, also beyond the sequence's position: the last page is full of what nobody may take.
void write_pages(const World& world, const kv::SequenceKv& sequence, uint32_t salt) {
  for (int64_t p = sequence.n_sealed(); p < sequence.n_pages(); ++p) {
    for_each_plane(world, sequence.pages()[static_cast<size_t>(p)],
                   [&](uint32_t kind, std::byte* first, uint32_t bytes, const PageField& field) {
                     for (int64_t e = 0; e < field.entries; ++e) {
                       fill(first + e * bytes, bytes, salt, kind, p * field.entries + e);
                     }
                   });
  }
}

void write_rows(const World& world, const kv::SequenceKv& sequence, int64_t from, int64_t to, uint32_t salt) {
  for (int64_t layer = 0; layer < world.shape.shape.n_window_layers; ++layer) {
    const tensor::WindowRing ring = sequence.ring(layer);
    for (int64_t i = from; i < to; ++i) fill(ring.row(i), ring.row_bytes, salt, static_cast<uint32_t>(layer), i);
  }
}

void write_open_rows(const kv::SequenceKv& sequence, uint32_t salt) {
  fill(reinterpret_cast<std::byte*>(sequence.all_open_rows()), sequence.open_rows_bytes(), salt, kOpenRows, 0);
}

// A sequence of `position` tokens whose whole pages are sealed; the rings end at `position`.
KvRef make_sequence(World& world, int64_t position, uint32_t salt) {
  KvRef sequence = KvRef::create(*world.pool, world.root, 1000);
  REQUIRE(sequence.make_writable({0, position, false}, *world.queue).ok());
  write_pages(world, *sequence, salt);
  write_rows(world, *sequence, std::max<int64_t>(0, position - world.capacity()), position, salt);
  write_open_rows(*sequence, salt);
  REQUIRE(sequence.seal(ids(0, position / kPageTokens * kPageTokens), nullptr, *world.queue).ok());
  REQUIRE(sequence->n_sealed() == position / kPageTokens);
  return sequence;
}

// An empty sequence on the pages below `end`, full of another pattern.
KvRef make_target(World& world, const kv::SequenceKv& source, int64_t end, uint32_t salt) {
  const int64_t n_pages = end / kPageTokens;
  const PageId chain = n_pages ? source.pages()[static_cast<size_t>(n_pages) - 1] : kNoPage;
  if (chain != kNoPage) world.pool->add_user(chain);
  KvRef target = KvRef::create_on(*world.pool, world.root, 1000, chain);
  REQUIRE(target.make_writable({n_pages * kPageTokens, end + 1, false}, *world.queue).ok());
  write_pages(world, *target, salt);
  write_rows(world, *target, 0, world.capacity(), salt);
  write_open_rows(*target, salt);
  return target;
}

WindowSave save_at(const World& world, int64_t end, WindowRows encoder, WindowRows decoder) {
  WindowSave what;
  what.end = end;
  what.tail = ids(end / kPageTokens * kPageTokens, end);
  what.encoder = encoder;
  what.decoder = decoder;
  what.n_encoder_layers = world.shape.n_encoder_layers;
  return what;
}

// All rows that a plain run leaves.
WindowRows all_rows(const World& world, int64_t position) {
  return {0, std::max<int64_t>(0, position - world.capacity()), true};
}

constexpr uint32_t kSource = 1, kTarget = 2;

void check_rows(const World& world, const kv::SequenceKv& target, int64_t layer, int64_t low, int64_t end) {
  const tensor::WindowRing ring = target.ring(layer);
  for (int64_t slot = 0; slot < world.capacity(); ++slot) {
    // The position that the entry has for this slot, if any.
    const int64_t back = (end - 1 - slot + 2 * world.capacity()) % world.capacity();
    const int64_t position = end - 1 - back;
    const bool loaded = end > 0 && position >= low;
    CAPTURE(layer);
    CAPTURE(slot);
    CAPTURE(loaded);
    REQUIRE(first_difference(ring.row(slot), ring.row_bytes, loaded ? kSource : kTarget, static_cast<uint32_t>(layer),
                             loaded ? position : slot) == -1);
  }
}

// What lies below `end` is the source's, all else is still the target's.
void check_loaded(World& world, const kv::SequenceKv& target, const WindowEntry& entry) {
  const int64_t end = entry.end;
  for (int64_t layer = 0; layer < world.shape.shape.n_window_layers; ++layer) {
    const WindowRows& half = layer < world.shape.n_encoder_layers ? entry.encoder : entry.decoder;
    check_rows(world, target, layer, half.present ? half.low : end, end);
  }
  CHECK(first_difference(reinterpret_cast<std::byte*>(target.all_open_rows()), target.open_rows_bytes(), kSource,
                         kOpenRows, 0) == -1);
  const int64_t last = target.n_pages() - 1;
  for_each_plane(
      world, target.pages()[static_cast<size_t>(last)],
      [&](uint32_t kind, std::byte* first, uint32_t bytes, const PageField& field) {
        const int64_t ratio = kPageTokens / field.entries;
        for (int64_t e = 0; e < field.entries; ++e) {
          const int64_t entry_index = last * field.entries + e;
          const bool complete = (entry_index + 1) * ratio <= end;
          CAPTURE(kind);
          CAPTURE(entry_index);
          CAPTURE(complete);
          REQUIRE(first_difference(first + e * bytes, bytes, complete ? kSource : kTarget, kind, entry_index) == -1);
        }
      });
}

struct Case {
  const char* name;
  int64_t position;  // of the source
  int64_t end;
  int64_t encoder_floor = 0, encoder_low = -1;  // low -1: all that the ring has
  int64_t decoder_floor = 0, decoder_low = -1;
  bool with_decoder = true;
  bool has_decoder = true;  // what the entry must say
};

// Rows for a window of 128; for others the floors and lows are left out.
const Case kCases[] = {
    {"nothing", 0, 0},
    {"one token", 1, 1},
    {"two tokens", 2, 2},
    {"odd end below a page", 77, 77},
    {"even end below a page", 76, 76},
    {"end = position - 1, odd", 78, 77},
    {"end = position - 1, even", 77, 76},
    {"end = position - 1 at the first token", 1, 0},
    {"one below a page boundary", 127, 127},
    {"at a page boundary", 128, 128},
    {"one above a page boundary", 129, 129},
    {"end on a page, the position above it", 129, 128},
    {"end inside a page that is sealed by now, odd", 128, 127},
    {"end inside a page that is sealed by now, even", 256, 254},
    {"end inside a sealed page, pages above it", 385, 383},
    {"whole ring, 136 rows", 300, 300, 0, 164, 0, 164},
    {"the last 128 rows alone", 300, 300, 0, 172, 0, 172},
    {"just what a row at the end sees", 300, 300, 0, 173, 0, 173},
    {"low above the floor", 301, 300, 100, 165, 172, 173},
    {"floors above what the ring has", 300, 299, 250, 250, 260, 260},
    {"floor at the end: no rows", 300, 300, 300, 300, 300, 300},
    {"without the decoder by option", 301, 301, 0, 165, 0, 165, false, false},
    {"the decoder's rows do not cover the end", 301, 301, 0, 165, 0, 200, true, false},
};

TEST_SUITE("kv/window_entry") {
  TEST_CASE("a loaded entry gives back every row, record and open row below its end, and nothing else") {
    for (const Shape* shape : {&kTiny, &kShortWindow, &kReleased}) {
      CAPTURE(shape->name);
      World world(*shape);
      for (const Case& row : kCases) {
        CAPTURE(row.name);
        const bool rows_named = row.encoder_low >= 0;
        if (rows_named && shape->shape.sliding_window != 128) continue;
        KvRef source = make_sequence(world, row.position, kSource);
        WindowSave what = save_at(world, row.end, all_rows(world, row.position), all_rows(world, row.position));
        if (rows_named) {
          what.encoder = {row.encoder_floor, row.encoder_low, true};
          what.decoder = {row.decoder_floor, row.decoder_low, true};
        }
        what.with_decoder = row.with_decoder;
        const WindowEntryRef entry = save_windows(*source, what, *world.queue).value();
        CHECK(entry->end == row.end);
        CHECK(entry->tail == what.tail);
        CHECK(entry->n_chain_tokens() == row.end / kPageTokens * kPageTokens);
        CHECK(entry->decoder.present == row.has_decoder);
        CHECK(entry->encoder.low == what.encoder.low);
        CHECK(entry->encoder.floor == what.encoder.floor);
        KvRef target = make_target(world, *source, row.end, kTarget);
        REQUIRE(load_windows(*entry, shape->n_encoder_layers, *target, *world.queue).ok());
        check_loaded(world, *target, *entry);
      }
      CHECK(world.pool->check_invariants().ok());
    }
  }

  TEST_CASE("an entry names the chain it was computed on, and what it descends from") {
    World world(kTiny);
    KvRef source = make_sequence(world, 300, kSource);
    WindowSave what = save_at(world, 300, all_rows(world, 300), all_rows(world, 300));
    what.provenance = kv::descend(nullptr, 256);
    what.tail_provenance = kv::descend(nullptr, 128);
    const WindowEntryRef entry = save_windows(*source, what, *world.queue).value();
    CHECK(entry->root == world.root);
    CHECK(entry->chain_end == source->pages()[1]);
    CHECK(entry->chain_serial == world.pool->serial(source->pages()[1]));
    CHECK(kv::equal(entry->provenance, what.provenance));
    CHECK(kv::equal(entry->tail_provenance, what.tail_provenance));
    KvRef at_boundary = make_sequence(world, 256, kSource);
    const WindowSave below = save_at(world, 255, all_rows(world, 256), all_rows(world, 256));
    CHECK(save_windows(*at_boundary, below, *world.queue).value()->chain_end == at_boundary->pages()[0]);
    KvRef short_one = make_sequence(world, 5, kSource);
    const WindowEntryRef first =
        save_windows(*short_one, save_at(world, 5, all_rows(world, 5), all_rows(world, 5)), *world.queue).value();
    CHECK(first->chain_end == kNoPage);
    CHECK(first->chain_serial == 0);
  }

  TEST_CASE("an entry of the released shape takes what its rows and records take") {
    World world(kReleased);
    KvRef source = make_sequence(world, 301, kSource);
    const auto bytes = [&](int64_t end, int64_t low, bool with_decoder) {
      WindowSave what = save_at(world, end, {0, low, true}, {0, low, true});
      what.with_decoder = with_decoder;
      return save_windows(*source, what, *world.queue).value()->memory.size();
    };
    const uint64_t open_rows = 3 * 8 * 4096, ratio_1 = 288 + 68, ratio_2 = 3 * (288 + 68);
    CHECK(bytes(301, 165, true) == 40 * 136 * 528 + open_rows + 45 * ratio_1 + 22 * ratio_2);
    CHECK(bytes(300, 172, true) == 40 * 128 * 528 + open_rows + 44 * ratio_1 + 22 * ratio_2);
    CHECK(bytes(300, 172, false) == 20 * 128 * 528 + open_rows + 44 * ratio_1 + 22 * ratio_2);
  }

  TEST_CASE("what a sequence holds beyond the end does not change the entry") {
    World world(kTiny);
    const auto saved = [&](uint32_t salt) {
      KvRef source = make_sequence(world, 301, kSource);
      write_rows(world, *source, 300, 301, salt);
      const PageId open_page = source->pages()[2];
      for_each_plane(world, open_page, [&](uint32_t kind, std::byte* first, uint32_t bytes, const PageField& field) {
        for (int64_t e = 44 * field.entries / kPageTokens; e < field.entries; ++e) {
          fill(first + e * bytes, bytes, salt, kind, e);
        }
      });
      return save_windows(*source, save_at(world, 300, all_rows(world, 301), all_rows(world, 301)), *world.queue)
          .value();
    };
    const WindowEntryRef a = saved(7), b = saved(8);
    REQUIRE(a->memory.size() == b->memory.size());
    CHECK(std::memcmp(a->memory.data(), b->memory.data(), a->memory.size()) == 0);
  }

  TEST_CASE("saving writes nothing of the sequence, and a saved entry stays as it is when the sequence goes on") {
    World world(kTiny);
    KvRef source = make_sequence(world, 200, kSource);
    const WindowEntryRef entry =
        save_windows(*source, save_at(world, 200, all_rows(world, 200), all_rows(world, 200)), *world.queue).value();
    const std::vector<std::byte> before(entry->memory.data(), entry->memory.data() + entry->memory.size());
    const WindowEntryRef again =
        save_windows(*source, save_at(world, 200, all_rows(world, 200), all_rows(world, 200)), *world.queue).value();
    CHECK(std::memcmp(before.data(), again->memory.data(), before.size()) == 0);
    REQUIRE(source.make_writable({200, 256, true}, *world.queue).ok());
    write_rows(world, *source, 200, 256, 9);
    write_open_rows(*source, 9);
    CHECK(std::memcmp(before.data(), entry->memory.data(), before.size()) == 0);
  }

  TEST_CASE("a sequence that cannot be saved at the end is refused with the reason") {
    World world(kTiny);
    KvRef source = make_sequence(world, 300, kSource);
    const WindowRows all = all_rows(world, 300);
    struct Refused {
      const char* name;
      std::function<void(WindowSave&)> change;
      Code code;
    };
    const Refused rows[] = {
        {"encoder absent", [](WindowSave& what) { what.encoder.present = false; }, Code::kREPLAY_REQUIRED},
        {"encoder rows lost", [](WindowSave& what) { what.encoder.low = 174; }, Code::kREPLAY_REQUIRED},
        {"encoder floor above the end", [](WindowSave& what) { what.encoder.floor = 301; }, Code::kREPLAY_REQUIRED},
        {"tail too short", [](WindowSave& what) { what.tail.pop_back(); }, Code::kINVALID_ARG},
        {"tail too long", [](WindowSave& what) { what.tail.push_back(1); }, Code::kINVALID_ARG},
        {"more rows than the ring has", [](WindowSave& what) { what.encoder.low = 163; }, Code::kINVALID_ARG},
        {"more decoder rows than the ring has", [](WindowSave& what) { what.decoder.low = 100; }, Code::kINVALID_ARG},
        {"rows before the first", [](WindowSave& what) { what.encoder.low = -1; }, Code::kINVALID_ARG},
        {"end before the first", [](WindowSave& what) { what.end = -1; }, Code::kINVALID_ARG},
        {"too many encoder layers", [](WindowSave& what) { what.n_encoder_layers = 6; }, Code::kINVALID_ARG},
        {"end behind the pages",
         [](WindowSave& what) {
           what.end = 384 + 300 % 128;
           what.encoder.low = what.end;
         },
         Code::kINVALID_ARG},
    };
    for (const Refused& row : rows) {
      CAPTURE(row.name);
      WindowSave what = save_at(world, 300, all, all);
      row.change(what);
      CHECK(save_windows(*source, what, *world.queue).status().code() == row.code);
    }
    CHECK(save_windows(*source, save_at(world, 300, all, all), *world.queue).ok());
    const KvRef empty = KvRef::create(*world.pool, world.root, 1000);
    CHECK(save_windows(*empty, save_at(world, 0, {}, {}), *world.queue).status().code() == Code::kINVALID_ARG);
  }

  TEST_CASE("a page that the end fills but that is not sealed is refused") {
    World world(kTiny);
    KvRef source = KvRef::create(*world.pool, world.root, 1000);
    REQUIRE(source.make_writable({0, 130, false}, *world.queue).ok());
    write_rows(world, *source, 0, 130, kSource);
    CHECK(save_windows(*source, save_at(world, 130, all_rows(world, 130), {}), *world.queue).status().code() ==
          Code::kINVALID_ARG);
  }

  TEST_CASE("an entry is refused on any other chain, and nothing is written") {
    World world(kTiny);
    KvRef source = make_sequence(world, 300, kSource);
    const WindowEntryRef entry =
        save_windows(*source, save_at(world, 300, all_rows(world, 300), {0, 170, true}), *world.queue).value();
    WindowEntry reused;  // the page's id with another serial: it was evicted and used again
    reused.root = entry->root;
    reused.chain_end = entry->chain_end;
    reused.chain_serial = entry->chain_serial + 1;
    reused.tail = entry->tail;
    reused.end = entry->end;
    reused.encoder = entry->encoder;
    reused.decoder = entry->decoder;
    reused.memory = HostMapping::create(entry->memory.size()).value();
    WindowEntry other_root;
    other_root.root = world.pool->root({{}, {}, std::as_bytes(std::span("salt", 4))});
    other_root.chain_end = entry->chain_end;
    other_root.chain_serial = entry->chain_serial;
    other_root.tail = entry->tail;
    other_root.end = entry->end;
    other_root.encoder = entry->encoder;
    other_root.decoder = entry->decoder;
    other_root.memory = HostMapping::create(entry->memory.size()).value();
    KvRef target = make_target(world, *source, 300, kTarget);
    CHECK(load_windows(reused, 3, *target, *world.queue).code() == Code::kINVALID_ARG);
    CHECK(load_windows(other_root, 3, *target, *world.queue).code() == Code::kINVALID_ARG);
    CHECK(load_windows(*entry, 2, *target, *world.queue).code() == Code::kINVALID_ARG);  // another split, other size
    KvRef shorter = make_target(world, *source, 255, kTarget);
    CHECK(load_windows(*entry, 3, *shorter, *world.queue).code() == Code::kINVALID_ARG);
    for (int64_t layer = 0; layer < 5; ++layer) check_rows(world, *target, layer, 300, 300);
    CHECK(first_difference(reinterpret_cast<std::byte*>(target->all_open_rows()), target->open_rows_bytes(), kTarget,
                           kOpenRows, 0) == -1);
  }

  TEST_CASE("without memory for the entry saving fails and leaves all as it was") {
    World world(kTiny);
    KvRef source = make_sequence(world, 300, kSource);
    const WindowSave what = save_at(world, 300, all_rows(world, 300), all_rows(world, 300));
    const WindowEntryRef before = save_windows(*source, what, *world.queue).value();
    const kv::PagePoolStats stats = world.pool->stats();
    CountingQueue queue(*world.queue);
    HostMapping::refuse_for_tests([] { return true; });
    const Result<WindowEntryRef> refused = save_windows(*source, what, queue);
    HostMapping::refuse_for_tests(nullptr);
    CHECK(refused.status().code() == Code::kNO_MEMORY);
    CHECK(queue.n_copies == 0);
    CHECK(world.pool->stats().global_pages_free == stats.global_pages_free);
    CHECK(world.pool->stats().window_slots_free == stats.window_slots_free);
    const WindowEntryRef after = save_windows(*source, what, *world.queue).value();
    CHECK(std::memcmp(before->memory.data(), after->memory.data(), before->memory.size()) == 0);
  }

  TEST_CASE("a copy that fails, whichever it is, is the answer, and the queue is idle then") {
    World world(kTiny);
    KvRef source = make_sequence(world, 300, kSource);
    const WindowSave what = save_at(world, 300, all_rows(world, 300), all_rows(world, 300));
    const WindowEntryRef entry = save_windows(*source, what, *world.queue).value();
    int64_t n_failed = 0;
    for (bool save : {true, false}) {
      CAPTURE(save);
      for (int64_t fails_at = 0;; ++fails_at) {
        CAPTURE(fails_at);
        CountingQueue queue(*world.queue);
        queue.fails_at = fails_at;
        KvRef target = make_target(world, *source, 300, kTarget);
        const Status status = save ? save_windows(*source, what, queue).status()
                                   : load_windows(*entry, world.shape.n_encoder_layers, *target, queue);
        CHECK(queue.n_waits_behind_last_copy == 1);
        if (status.ok()) break;
        CHECK(status.code() == Code::kBACKEND);
        ++n_failed;
      }
    }
    CHECK(n_failed > 20);
    CHECK(world.pool->check_invariants().ok());
  }
}

}  // namespace
}  // namespace dsv41::test
