#include "store/record.h"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>

#include "store/record_fixture.h"
#include "store/store_surgery.h"

namespace dsv41::test {
namespace {

using store::RecordDraft;
using store::RecordHead;

TEST_SUITE("store/record") {
  TEST_CASE("a record gives back head, ids, hits and payload") {
    RecordDraft bare = state_draft(0, 0);
    bare.ids.clear();
    bare.planes.clear();
    RecordDraft one_plane = page_draft(3, 70000);
    one_plane.planes = {{70000, true}};
    struct Row {
      std::string name;
      RecordDraft draft;
    };
    Row rows[] = {
        {"page", page_draft(0)},
        {"page with hits", page_draft(7, 1000, {128, 256, int64_t{1} << 40})},
        {"page with empty planes", page_draft(1, 0)},
        {"page in one plane", one_plane},
        {"state", state_draft(5)},
        {"state with nothing in it", bare},
    };
    for (Row& row : rows) {
      CAPTURE(row.name);
      const std::vector<std::byte> record = encoded(row.draft);
      CHECK(record.size() == row.draft.head.record_bytes());
      const Status status = check_record(row.draft, record);
      CAPTURE(status.message());
      CHECK(status.ok());
      CHECK(row.draft.head.exact() == row.draft.hits.empty());
      const std::span<const std::byte> front = std::span(record).subspan(320, row.draft.head.front_bytes());
      const Result<store::RecordBody> lists = store::decode_front(row.draft.head, front);
      REQUIRE(lists.ok());
      CHECK(lists->ids == row.draft.ids);
      CHECK(lists->hits == row.draft.hits);
      CHECK(lists->raw_bytes == row.draft.raw.size());
      if (!front.empty()) {
        const size_t cut = front.size() - 1;
        CHECK(store::decode_front(row.draft.head, front.first(cut)).status().code() == Code::kCORRUPT);
      }
    }
  }

  TEST_CASE("every field stands where the format says") {
    RecordDraft draft = page_draft(2, 30, {77});
    const std::vector<std::byte> record = encoded(draft);
    CHECK(std::memcmp(record.data(), "DSV41REC", 8) == 0);
    CHECK(number_at<uint16_t>(record, 8) == 1);
    CHECK(number_at<uint16_t>(record, 10) == 0);
    CHECK(number_at<uint32_t>(record, 12) == 1);
    CHECK(number_at<uint64_t>(record, 16) == draft.head.key.low);
    CHECK(number_at<uint64_t>(record, 24) == draft.head.key.high);
    CHECK(number_at<uint64_t>(record, 32) == draft.head.parent.low);
    CHECK(std::to_integer<int>(record[48]) == draft.head.chain[0]);
    CHECK(number_at<uint64_t>(record, 80) == xxh3_128(draft.raw).low);
    CHECK(number_at<uint64_t>(record, 104) == draft.head.parent_payload.high);
    CHECK(std::to_integer<int>(record[112]) == 0x11);
    CHECK(std::to_integer<int>(record[144]) == 0x22);
    CHECK(number_at<uint64_t>(record, 176) == 256);
    CHECK(number_at<uint32_t>(record, 184) == 128);
    CHECK(number_at<uint32_t>(record, 188) == 1);
    CHECK(number_at<uint32_t>(record, 192) == 3);
    CHECK(number_at<uint32_t>(record, 196) == 0);
    CHECK(number_at<uint64_t>(record, 200) == kRecordTime);
    CHECK(number_at<uint64_t>(record, 208) == record.size() - 320);
    CHECK(number_at<uint64_t>(record, 216) == xxh3_64(std::span(record).subspan(320)));
    CHECK(std::memcmp(record.data() + 224, "test/1\0\0", 8) == 0);
    CHECK(number_at<uint64_t>(record, 256) == draft.raw.size());
    CHECK(number_at<uint64_t>(record, 256) == 30);
    CHECK(number_at<uint64_t>(record, 312) == xxh3_64(std::span(record).first(312)));
    CHECK(number_at<int32_t>(record, 320 + 4) == 257);
    CHECK(number_at<uint64_t>(record, 320 + 512) == 77);
    const size_t planes = 320 + 512 + 8;
    CHECK(number_at<uint32_t>(record, planes) == 0);
    CHECK(number_at<uint32_t>(record, planes + 4) == 10);
    CHECK(number_at<uint32_t>(record, planes + 8) == 10);
    CHECK(std::memcmp(record.data() + planes + 3 * 16, draft.raw.data(), 10) == 0);
  }

  TEST_CASE("no flipped bit gives another record") {
    RecordDraft draft = page_draft(4, 200, {128});
    const std::vector<std::byte> record = encoded(draft);
    std::vector<std::byte> damaged = record;
    for (size_t bit = 0; bit < record.size() * 8; ++bit) {
      CAPTURE(bit);
      damaged[bit / 8] ^= std::byte{1} << bit % 8;
      REQUIRE_FALSE(check_record(draft, damaged).ok());
      damaged[bit / 8] = record[bit / 8];
    }
  }

  TEST_CASE("a record that is cut off anywhere is refused") {
    RecordDraft draft = state_draft(4, 100);
    const std::vector<std::byte> record = encoded(draft);
    for (size_t n = 0; n < record.size(); ++n) {
      CAPTURE(n);
      REQUIRE_FALSE(check_record(draft, std::span(record).first(n)).ok());
    }
  }

  TEST_CASE("numbers that contradict each other are found although checksums hold") {
    using Bytes = std::vector<std::byte>;
    const size_t planes = 320 + 512;
    struct Row {
      std::string name;
      std::function<void(Bytes&)> damage;
      Code code;
    };
    const Row rows[] = {
        {"magic", [](Bytes& r) { r[0] ^= std::byte{1}; }, Code::kCORRUPT},
        {"major version", [](Bytes& r) { set_number<uint16_t>(r, 8, 2); }, Code::kFORMAT_VERSION},
        {"kind 0", [](Bytes& r) { set_number<uint32_t>(r, 12, 0); }, Code::kCORRUPT},
        {"kind 3", [](Bytes& r) { set_number<uint32_t>(r, 12, 3); }, Code::kCORRUPT},
        {"page as state", [](Bytes& r) { set_number<uint32_t>(r, 12, 2); }, Code::kCORRUPT},
        {"position inside a page", [](Bytes& r) { set_number<uint64_t>(r, 176, 64); }, Code::kCORRUPT},
        {"position near 2^64", [](Bytes& r) { set_number<uint64_t>(r, 176, UINT64_MAX - 127); }, Code::kCORRUPT},
        {"parent at token 0", [](Bytes& r) { set_number<uint64_t>(r, 176, 0); }, Code::kCORRUPT},
        {"127 ids", [](Bytes& r) { set_number<uint32_t>(r, 184, 127); }, Code::kCORRUPT},
        {"2^32 - 1 ids", [](Bytes& r) { set_number<uint32_t>(r, 184, UINT32_MAX); }, Code::kCORRUPT},
        {"2^32 - 1 hits", [](Bytes& r) { set_number<uint32_t>(r, 188, UINT32_MAX); }, Code::kCORRUPT},
        {"a hit too many", [](Bytes& r) { set_number<uint32_t>(r, 188, 1); }, Code::kCORRUPT},
        {"9 planes", [](Bytes& r) { set_number<uint32_t>(r, 192, 9); }, Code::kCORRUPT},
        {"a plane too few", [](Bytes& r) { set_number<uint32_t>(r, 192, 2); }, Code::kCORRUPT},
        {"parts of a page", [](Bytes& r) { set_number<uint32_t>(r, 196, 4); }, Code::kCORRUPT},
        {"body a byte longer", [](Bytes& r) { set_number<uint64_t>(r, 208, r.size() - 319); }, Code::kCORRUPT},
        {"body of 2^64 - 1", [](Bytes& r) { set_number<uint64_t>(r, 208, UINT64_MAX); }, Code::kCORRUPT},
        {"body of 0", [](Bytes& r) { set_number<uint64_t>(r, 208, 0); }, Code::kCORRUPT},
        {"class without end", [](Bytes& r) { std::memset(r.data() + 224, 'x', 32); }, Code::kCORRUPT},
        {"class goes on", [](Bytes& r) { r[224 + 20] = std::byte{'x'}; }, Code::kCORRUPT},
        {"codec 2", [=](Bytes& r) { set_number<uint32_t>(r, planes + 16, 2); }, Code::kCODEC_UNAVAILABLE},
        {"zstd that is none", [=](Bytes& r) { set_number<uint32_t>(r, planes, 1); }, Code::kCORRUPT},
        {"stored size", [=](Bytes& r) { set_number<uint32_t>(r, planes + 4, UINT32_MAX); }, Code::kCORRUPT},
        {"raw size", [=](Bytes& r) { set_number<uint32_t>(r, planes + 16 + 8, UINT32_MAX); }, Code::kCORRUPT},
        {"raw size by one", [=](Bytes& r) { set_number<uint32_t>(r, planes + 16 + 8, 101); }, Code::kCORRUPT},
        {"raw size by one, twice",
         [=](Bytes& r) {
           set_number<uint32_t>(r, planes + 16 + 8, 101);
           set_number<uint64_t>(r, 256, 301);
         },
         Code::kCORRUPT},
        {"payload of 2^64 - 1", [](Bytes& r) { set_number<uint64_t>(r, 256, UINT64_MAX); }, Code::kCORRUPT},
        {"two sizes of a raw plane", [=](Bytes& r) { set_number<uint32_t>(r, planes + 8, 99); }, Code::kCORRUPT},
        {"flags of a plane", [=](Bytes& r) { set_number<uint32_t>(r, planes + 12, 1); }, Code::kCORRUPT},
        {"payload", [](Bytes& r) { r.back() ^= std::byte{1}; }, Code::kCHECKSUM},
    };
    RecordDraft draft = page_draft(9, 300);
    const Bytes record = encoded(draft);
    REQUIRE(number_at<uint32_t>(record, planes + 16) == 1);
    for (const Row& row : rows) {
      CAPTURE(row.name);
      Bytes damaged = record;
      row.damage(damaged);
      fix_record(damaged);
      const Status status = decode_record(damaged).status();
      CAPTURE(status.message());
      CHECK(status.code() == row.code);
    }
  }

  TEST_CASE("a negative hit position is refused, by writer and reader") {
    RecordDraft draft = page_draft(9, 30, {-1});
    ChunkCodec codec;
    CHECK(store::encode_record(&draft, 0, 1, codec).status().code() == Code::kINVALID_ARG);
    draft.hits = {5};
    std::vector<std::byte> record = encoded(draft);
    set_number<int64_t>(record, 320 + 512, -5);
    fix_record(record);
    CHECK(decode_record(record).status().code() == Code::kCORRUPT);
  }

  TEST_CASE("a body behind the head of another record is refused") {
    RecordDraft a = page_draft(1), b = page_draft(2);
    std::vector<std::byte> first = encoded(a), second = encoded(b);
    REQUIRE(first.size() == second.size());
    std::copy(second.begin() + 320, second.end(), first.begin() + 320);
    CHECK(decode_record(first).status().code() == Code::kCHECKSUM);
  }

  TEST_CASE("a higher minor version is read, and what it may have added is passed over") {
    RecordDraft draft = page_draft(1);
    std::vector<std::byte> record = encoded(draft);
    set_number<uint16_t>(record, 10, 3);
    set_number<uint64_t>(record, 264, 0x1234);
    fix_record(record);
    CHECK(check_record(draft, record).ok());
  }

  TEST_CASE("a payload is only given into memory of its size") {
    RecordDraft draft = page_draft(1);
    const std::vector<std::byte> record = encoded(draft);
    ChunkCodec codec;
    for (const size_t size : {draft.raw.size() - 1, draft.raw.size() + 1, size_t{0}}) {
      CAPTURE(size);
      std::vector<std::byte> raw(size);
      const Status status = store::decode_payload(draft.head, std::span(record).subspan(320), raw, codec);
      CHECK(status.code() == Code::kLAYOUT_MISMATCH);
    }
  }

  TEST_CASE("drafts that no reader would take are not written") {
    struct Row {
      std::string name;
      std::function<void(RecordDraft&)> change;
      Code code;
    };
    const Row rows[] = {
        {"127 ids in a page", [](RecordDraft& d) { d.ids.pop_back(); }, Code::kINVALID_ARG},
        {"128 ids in a state", [](RecordDraft& d) { d.head.kind = store::RecordKind::kState; }, Code::kINVALID_ARG},
        {"parts of a page", [](RecordDraft& d) { d.head.parts = 4; }, Code::kINVALID_ARG},
        {"position inside a page", [](RecordDraft& d) { d.head.first_token = 5; }, Code::kINVALID_ARG},
        {"parent at token 0", [](RecordDraft& d) { d.head.first_token = 0; }, Code::kINVALID_ARG},
        {"planes too short", [](RecordDraft& d) { d.planes.pop_back(); }, Code::kINVALID_ARG},
        {"planes too long",
         [](RecordDraft& d) {
           d.planes.push_back({1, false});
         },
         Code::kINVALID_ARG},
        {"planes that wrap", [](RecordDraft& d) { d.planes[0].raw_bytes = UINT64_MAX; }, Code::kINVALID_ARG},
        {"9 planes", [](RecordDraft& d) { d.planes.resize(9); }, Code::kINVALID_ARG},
        {"long class", [](RecordDraft& d) { d.head.numeric_class.assign(32, 'x'); }, Code::kINVALID_ARG},
        {"class with NUL", [](RecordDraft& d) { d.head.numeric_class.assign(3, '\0'); }, Code::kINVALID_ARG},
        {"too much payload",
         [](RecordDraft& d) {
           d.raw.resize(store::kMaxRawBytes + 1);
           d.planes = {{d.raw.size(), true}};
         },
         Code::kLIMIT},
        {"too much with its ids",
         [](RecordDraft& d) {
           d.raw = record_payload(1, store::kMaxRawBytes);
           d.planes = {{d.raw.size(), false}};
         },
         Code::kLIMIT},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      RecordDraft draft = page_draft(9, 300);
      row.change(draft);
      ChunkCodec codec;
      const Status status = store::encode_record(&draft, 0, 1, codec).status();
      CAPTURE(status.message());
      CHECK(status.code() == row.code);
    }
  }

  TEST_CASE("a key is 32 digits, high half first, and back") {
    const store::RecordKey key = {0x0123456789abcdef, 0xfedcba9876543210};
    const std::string text = store::key_text(key);
    CHECK(text == "fedcba98765432100123456789abcdef");
    store::RecordKey back;
    REQUIRE(store::parse_key(text, &back));
    CHECK(back == key);
    for (const std::string& wrong : {std::string(), text.substr(1), text + "0", "g" + text.substr(1),
                                     "F" + text.substr(1), " " + text.substr(1)}) {
      CAPTURE(wrong);
      CHECK_FALSE(store::parse_key(wrong, &back));
    }
  }
}

}  // namespace
}  // namespace dsv41::test
