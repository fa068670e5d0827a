#include "store/store_index.h"

#include <doctest/doctest.h>

#include "store/store_fixture.h"

namespace dsv41::test {
namespace {

using store::Catalogue;
using store::Entry;
using store::FoundRecord;
using store::NamedRecord;
using store::Place;
using store::RecordKind;
using store::StoreIndex;
using Admission = StoreIndex::Admission;

// An index, and places for its records: 1,024 bytes apart in segment 1 unless a test says otherwise.
struct Indexed {
  Admission admit(const TestRecord& record, Place place, uint64_t used = 0) {
    FoundRecord found = {record.draft.head, record.draft.hits, {}, place};
    found.head.n_ids = static_cast<uint32_t>(record.draft.ids.size());
    found.head.n_hits = static_cast<uint32_t>(record.draft.hits.size());
    found.head.raw_bytes = record.draft.raw.size();
    found.head.body_bytes = record.record_bytes() - store::kRecordHeadBytes;
    if (found.head.kind == RecordKind::kState) found.ids = record.draft.ids;
    return index.admit(std::move(found), used, &left);
  }
  Admission admit(const TestRecord& record) { return admit(record, next()); }
  void admit_all(const std::vector<TestRecord>& records) {
    for (const TestRecord& record : records) REQUIRE(admit(record) == Admission::kAdmitted);
  }
  Place next() { return {1, 64 + 1024 * n_places++}; }
  Entry* find(const TestRecord& record) const { return index.find(record.draft.head.kind, record.name()); }
  std::string fault() const { return std::string(index.check().message()); }

  RecordMaker make;
  StoreIndex index;
  std::vector<NamedRecord> left;
  uint64_t n_places = 0;
};

TEST_SUITE("store/store_index") {
  TEST_CASE("a page is an entry only on top of the very page it was computed from") {
    Indexed t;
    const TestRecord root = t.make.page(nullptr, 1), other = t.make.page(nullptr, 1, 0, /*variant=*/5);
    const TestRecord child = t.make.page(&root, 2), of_other = t.make.page(&other, 2);
    CHECK(t.admit(child) == Admission::kOrphan);
    CHECK(t.admit(root) == Admission::kAdmitted);
    CHECK(t.admit(of_other) == Admission::kOrphan);
    CHECK(t.admit(child) == Admission::kAdmitted);
    CHECK(t.find(child)->parent == t.find(root));
    CHECK(t.index.segment_use(1).n_live == 2);
    CHECK(t.index.segment_use(1).n_records == 4);
    CHECK(t.fault() == "");
  }

  TEST_CASE("leaves are given up in the order of their use, a child before its parent") {
    Indexed t;
    const std::vector<TestRecord> a = t.make.chain(1, 3), b = t.make.chain(10, 2);
    t.admit_all(a);
    t.admit_all(b);
    for (size_t i = a.size(); i-- > 0;) t.index.use(t.find(a[i]), 100 + i);
    // b was used last when it was admitted, before a was used.
    std::vector<Entry*> order;
    for (const TestRecord* expected : {&b[1], &b[0], &a[2], &a[1], &a[0]}) {
      Entry* const victim = t.index.victim();
      REQUIRE(victim == t.find(*expected));
      t.index.drop(victim, &t.left);
      CHECK(t.fault() == "");
    }
    CHECK(t.index.victim() == nullptr);
    CHECK(t.index.n_pages() == 0);
    CHECK(t.index.record_bytes() == 0);
  }

  TEST_CASE("a page that loses its last child counts as used when that was") {
    Indexed t;
    const std::vector<TestRecord> a = t.make.chain(1, 2);
    const TestRecord b = t.make.page(nullptr, 10);
    t.admit_all(a);
    t.admit_all({b});
    t.index.use(t.find(a[1]), 500);
    t.index.drop(t.find(a[1]), &t.left);
    CHECK(t.find(a[0])->used_unix_ns == 500);
    CHECK(t.index.victim() == t.find(b));
  }

  TEST_CASE("who holds or pins the end of a chain keeps all of it") {
    Indexed t;
    const std::vector<TestRecord> a = t.make.chain(1, 3);
    t.admit_all(a);
    for (int by_pin = 0; by_pin < 2; ++by_pin) {
      CAPTURE(by_pin);
      if (by_pin) t.index.pin(a[2].key(), "anchor");
      if (!by_pin) t.index.hold(t.find(a[2]), &Entry::n_leases);
      CHECK(t.index.victim() == nullptr);
      CHECK(t.index.evictable_bytes(UINT64_MAX) == 0);
      CHECK(StoreIndex::any_kept(t.find(a[0])));
      CHECK(t.fault() == "");
      if (by_pin) CHECK(t.index.unpin(a[2].key()));
      if (!by_pin) t.index.release(t.find(a[2]), &Entry::n_leases);
    }
    CHECK(t.index.victim() == t.find(a[2]));
    CHECK_FALSE(t.index.unpin(a[2].key()));
  }

  TEST_CASE("bytes that may go are counted up to what is asked for, or all of them") {
    Indexed t;
    const std::vector<TestRecord> a = t.make.chain(1, 3), b = t.make.chain(10, 3);
    t.admit_all(a);
    t.admit_all(b);
    t.index.hold(t.find(a[1]), &Entry::n_leases);
    const uint64_t one = t.find(a[0])->head.record_bytes();
    CHECK(t.index.evictable_bytes(1) == one);
    CHECK(t.index.evictable_bytes(UINT64_MAX) == 4 * one);
    t.index.release(t.find(a[1]), &Entry::n_leases);
  }

  TEST_CASE("an exact page takes the place of an approximate one, and what stood on that goes") {
    Indexed t;
    const TestRecord root = t.make.page(nullptr, 1);
    const TestRecord rough = t.make.page(&root, 2, 1), on_rough = t.make.page(&rough, 3, 1);
    const TestRecord exact = t.make.page(&root, 2), on_exact = t.make.page(&exact, 3);
    t.admit_all({root, rough, on_rough});
    Entry* const held = t.find(on_rough);
    t.index.hold(held, &Entry::n_leases);
    CHECK(t.admit(exact) == Admission::kAdmitted);
    CHECK(t.find(exact)->head.exact());
    CHECK(t.find(on_rough) == nullptr);
    CHECK_FALSE(held->indexed);
    CHECK(t.index.is_segment_held(1));
    CHECK(t.admit(on_exact) == Admission::kAdmitted);
    CHECK(t.fault() == "");
    t.index.release(held, &Entry::n_leases);
    CHECK_FALSE(t.index.is_segment_held(1));
    CHECK(t.index.segment_use(1).n_live == 3);
    CHECK(t.index.segment_use(1).n_records == 5);
    CHECK(t.fault() == "");
  }

  TEST_CASE("of a record that is there twice the later place counts") {
    Indexed t;
    const TestRecord root = t.make.page(nullptr, 1);
    CHECK(t.admit(root, {2, 64}) == Admission::kAdmitted);
    CHECK(t.admit(root, {1, 64}) == Admission::kKnown);
    CHECK(t.find(root)->place == Place{2, 64});
    CHECK(t.admit(root, {3, 64}) == Admission::kKnown);
    CHECK(t.find(root)->place == Place{3, 64});
    CHECK(t.index.segment_use(2).n_live == 0);
    CHECK(t.index.segment_use(3).n_live == 1);
    const TestRecord older = t.make.page(nullptr, 1, 0, /*variant=*/1);
    CHECK(t.admit(older, {1, 1024}) == Admission::kOlder);
    CHECK(t.fault() == "");
  }

  TEST_CASE("keys that collide are told apart by their chains, up to eight of them") {
    Indexed t;
    t.make.key_bits = 0;
    for (uint64_t i = 0; i < 10; ++i) {
      CAPTURE(i);
      const TestRecord page = t.make.page(nullptr, i);
      CHECK(t.admit(page) == (i < 8 ? Admission::kAdmitted : Admission::kCrowded));
      CHECK((t.find(page) != nullptr) == (i < 8));
      CHECK(t.index.is_crowded(t.make.page(nullptr, 99).draft.head, false) == (i >= 7));
    }
    CHECK(t.fault() == "");
  }

  TEST_CASE("under one name there is one record: another one of its key is not taken in") {
    Indexed t;
    t.make.key_bits = 0;
    const TestRecord first = t.make.state(nullptr, 1, 5), second = t.make.state(nullptr, 2, 5);
    CHECK(t.admit(first, {}) == Admission::kAdmitted);
    CHECK(t.admit(second, {}) == Admission::kCrowded);
    CHECK(t.index.named_bytes() == first.record_bytes());
    CHECK(t.fault() == "");
  }

  TEST_CASE("what is dropped and stands under its own name is left to be removed, but not what has its name now") {
    Indexed t;
    const TestRecord root = t.make.page(nullptr, 1), exact = t.make.page(nullptr, 1, 0, 3);
    const TestRecord child = t.make.page(&root, 2), state = t.make.state(&child, 3, 7);
    for (const TestRecord* record : {&root, &child, &state}) CHECK(t.admit(*record, {}) == Admission::kAdmitted);
    CHECK(t.admit(exact, {}) == Admission::kAdmitted);
    REQUIRE(t.left.size() == 2);
    CHECK(t.left[0].head.key == child.key());
    CHECK(t.left[1].head.key == state.key());
    CHECK(t.index.n_pages() == 1);
    CHECK(t.index.n_states() == 0);
    CHECK(t.fault() == "");
  }

  TEST_CASE("what is dropped for good is marked with all copies that are dead already") {
    Indexed t;
    const TestRecord root = t.make.page(nullptr, 1), rough = t.make.page(&root, 2, 1);
    const TestRecord on_rough = t.make.page(&rough, 3, 1), exact = t.make.page(&root, 2);
    const TestRecord alone = t.make.page(nullptr, 9);
    t.admit_all({root, rough, on_rough, alone, exact});  // rough and on_rough are dead now
    std::vector<NamedRecord> spare;
    for (const TestRecord& state : {t.make.state(&on_rough, 5, 9), t.make.state(&root, 5, 9)}) {
      spare.push_back({state.draft.head, {}});
    }
    t.index.drop_for_good(t.find(exact), &spare, &t.left);
    CHECK(spare.size() == 1);
    REQUIRE(t.left.size() == 1);
    CHECK(t.left[0].head.parent == on_rough.key());
    CHECK(t.index.is_marked(rough.key(), {1, 64 + 1024}));
    CHECK(t.index.is_marked(on_rough.key(), {1, 64 + 2048}));
    CHECK(t.index.is_marked(exact.key(), {1, 64 + 4096}));
    CHECK_FALSE(t.index.is_marked(root.key(), {1, 64}));
    CHECK_FALSE(t.index.is_marked(alone.key(), {1, 64 + 3072}));
    const Catalogue catalogue = t.index.catalogue();
    CHECK(catalogue.dropped.size() == 3);
    StoreIndex again;
    again.adopt(catalogue);
    CHECK(again.is_marked(on_rough.key(), {1, 64 + 2048}));
    CHECK_FALSE(again.is_marked(root.key(), {1, 64 + 2048}));
    again.keep_segments({2});
    CHECK_FALSE(again.is_marked(on_rough.key(), {1, 64 + 2048}));
    CHECK(t.fault() == "");
  }

  TEST_CASE("pins belong to a key: they stay when the record goes, and hold it when it comes again") {
    Indexed t;
    const TestRecord root = t.make.page(nullptr, 1);
    t.admit_all({root});
    t.index.pin(root.key(), "first");
    t.index.pin(root.key(), "second");
    t.index.drop(t.find(root), &t.left);
    t.admit_all({root});
    CHECK(t.find(root)->n_pins == 2);
    CHECK(*t.index.pin_reason(root.key()) == "second");
    CHECK(t.index.victim() == nullptr);
    CHECK(t.index.unpin(root.key()));
    CHECK(t.index.unpin(root.key()));
    CHECK(t.index.victim() == t.find(root));
    CHECK(t.index.pin_reason(root.key()) == nullptr);
    CHECK(t.fault() == "");
  }

  TEST_CASE("times of use of a catalogue order what was found") {
    Indexed t;
    const std::vector<TestRecord> a = t.make.chain(1, 2);
    const TestRecord b = t.make.page(nullptr, 10);
    Catalogue catalogue;
    catalogue.uses = {{a[1].key(), 300}, {b.key(), 200}};
    t.index.adopt(catalogue);
    for (const TestRecord* record : {&a[0], &a[1], &b}) {
      t.admit(*record, t.next(), t.index.last_use(record->draft.head, 1000));
    }
    t.index.order_by_use();
    CHECK(t.find(b)->used_unix_ns == 200);
    CHECK(t.index.victim() == t.find(b));
    CHECK(t.index.last_use(b.draft.head, 1000) == 0);
    CHECK(t.fault() == "");
  }

  TEST_CASE("a time of use in the future becomes one of now") {
    Indexed t;
    const TestRecord root = t.make.page(nullptr, 1);
    t.admit_all({root});
    t.index.use(t.find(root), 5000);
    CHECK_FALSE(StoreIndex::has_expired(t.find(root), 1000, 100));
    CHECK(t.find(root)->used_unix_ns == 1000);
    CHECK_FALSE(StoreIndex::has_expired(t.find(root), 1100, 100));
    CHECK(StoreIndex::has_expired(t.find(root), 1101, 100));
    CHECK_FALSE(StoreIndex::has_expired(t.find(root), UINT64_MAX, 0));
  }

  TEST_CASE("a long chain goes without recursion, held pages of it later") {
    Indexed t;
    const std::vector<TestRecord> pages = t.make.chain(1, 20000);
    t.admit_all(pages);
    std::vector<Entry*> held;
    for (size_t i = 0; i < pages.size(); i += 2) held.push_back(t.find(pages[i]));
    for (Entry* entry : held) t.index.hold(entry, &Entry::n_leases);
    CHECK(t.index.drop(t.find(pages[0]), &t.left) == pages.size());
    CHECK(t.index.n_leased() == held.size());
    for (Entry* entry : held) t.index.release(entry, &Entry::n_leases);
    CHECK(t.index.n_leased() == 0);
    CHECK(t.fault() == "");
  }
}

}  // namespace
}  // namespace dsv41::test
