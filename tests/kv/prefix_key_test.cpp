#include "kv/prefix_key.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <string_view>

#include "kv/page_geometry.h"
#include "support/kv_rows.h"

namespace dsv41::test {
namespace {

using kv::KeySeed;
using kv::MediaMark;
using kv::PageKey;
using kv::PrefixKeys;
using kv::PrefixRoot;

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

KeySeed seed_of(uint8_t value) {
  KeySeed seed;
  seed.fill(std::byte{value});
  return seed;
}

bool operator<(const PageKey& a, const PageKey& b) { return std::pair(a.high, a.low) < std::pair(b.high, b.low); }

struct KeyOrder {
  bool operator()(const PageKey& a, const PageKey& b) const { return a < b; }
};

TEST_SUITE("kv/prefix_key") {
  TEST_CASE("a key depends on seed, parent, ids and media, and on nothing else") {
    const PrefixKeys keys(seed_of(1)), same(seed_of(1)), other(seed_of(2));
    const PageKey parent = keys.root({bytes("layout"), bytes("model"), bytes("salt")}).key;
    const std::vector<int32_t> ids = random_ids(kv::kPageTokens, 1);
    const PageKey key = keys.page(parent, ids);
    CHECK(key == same.page(parent, ids));
    CHECK_FALSE(key == other.page(parent, ids));
    CHECK_FALSE(key == keys.page({parent.low ^ 1, parent.high}, ids));
    CHECK_FALSE(key == keys.page({parent.low, parent.high ^ 1}, ids));
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<int32_t> changed = ids;
      changed[i] ^= 1;
      CAPTURE(i);
      CHECK_FALSE(key == keys.page(parent, changed));
    }
    CHECK_FALSE(key == keys.page(parent, ids, std::vector<MediaMark>{{0, {}}}));
  }

  TEST_CASE("seeds are drawn anew, so keys of two pools differ") {
    const KeySeed a = kv::draw_key_seed().value(), b = kv::draw_key_seed().value();
    CHECK(a != b);
    const std::vector<int32_t> ids = random_ids(kv::kPageTokens, 1);
    CHECK_FALSE(PrefixKeys(a).page({}, ids) == PrefixKeys(b).page({}, ids));
    CHECK_FALSE(PrefixKeys(a).root({}).key == PrefixKeys(b).root({}).key);
    CHECK(PrefixKeys(a).root({}).extras == PrefixKeys(b).root({}).extras);  // what is compared is not seeded
  }

  TEST_CASE("every way to write the extras apart gives another root") {
    const PrefixKeys keys(seed_of(1));
    const std::string_view parts[][3] = {
        {"", "", ""},    {"a", "", ""},   {"", "a", ""},   {"", "", "a"},
        {"ab", "", ""},  {"a", "b", ""},  {"", "ab", ""},  {"a", "", "b"},
        {"", "a", "b"},  {"", "", "ab"},  {"b", "a", ""},  {"a", "a", "a"},
        {"aaa", "", ""}, {"", "aaa", ""}, {"", "a", "aa"}, {std::string_view("\0\0\0\0\0\0\0\0", 8), "", ""}};
    std::set<PageKey, KeyOrder> seen;
    std::set<Sha256Digest> digests;
    for (const auto& part : parts) {
      const PrefixRoot root = keys.root({bytes(part[0]), bytes(part[1]), bytes(part[2])});
      CAPTURE(part[0]);
      CAPTURE(part[1]);
      CAPTURE(part[2]);
      CHECK(seen.insert(root.key).second);
      CHECK(digests.insert(root.extras).second);
    }
  }

  TEST_CASE("media differ by digest, by offset and by order") {
    const PrefixKeys keys(seed_of(1));
    const std::vector<int32_t> ids = random_ids(kv::kPageTokens, 1);
    Sha256Digest cat{}, dog{};
    dog[31] = 1;
    const std::vector<std::vector<MediaMark>> cases = {
        {},           {{0, cat}},           {{0, dog}},           {{1, cat}},
        {{127, cat}}, {{0, cat}, {1, dog}}, {{0, dog}, {1, cat}}, {{0, cat}, {0, cat}}};
    std::set<PageKey, KeyOrder> seen;
    for (const auto& media : cases) CHECK(seen.insert(keys.page({}, ids, media)).second);
  }

  TEST_CASE("ids are framed by their number: media never look like ids, short pages never like long ones") {
    const PrefixKeys keys(seed_of(1));
    MediaMark mark;  // 36 bytes: nine ids
    mark.offset_tokens = 7;
    mark.digest.fill(3);
    std::vector<int32_t> ids(119, 5), longer = ids;
    longer.push_back(7);
    longer.insert(longer.end(), 8, 0x03030303);
    CHECK(longer.size() == 128);
    std::set<PageKey, KeyOrder> seen;
    CHECK(seen.insert(keys.page({}, ids, std::vector{mark})).second);
    CHECK(seen.insert(keys.page({}, longer)).second);
    for (size_t n : {size_t{0}, size_t{1}, size_t{118}, size_t{119}, size_t{127}, size_t{129}}) {
      CHECK(seen.insert(keys.page({}, std::vector<int32_t>(n, 5))).second);
    }
  }

  TEST_CASE("key_bits cuts page keys to that many bits") {
    const std::vector<int32_t> ids = random_ids(kv::kPageTokens, 1);
    const PageKey whole = PrefixKeys(seed_of(1)).page({}, ids);
    for (int n : {1, 8, 63, 64, 65, 127, 128}) {
      CAPTURE(n);
      const PageKey cut = PrefixKeys(seed_of(1), n).page({}, ids);
      CHECK(cut.low == (n >= 64 ? whole.low : whole.low & ((uint64_t{1} << n) - 1)));
      CHECK(cut.high == (n >= 128 ? whole.high : n <= 64 ? 0 : whole.high & ((uint64_t{1} << (n - 64)) - 1)));
    }
  }
}

TEST_SUITE("kv/prefix_key: chains") {
  TEST_CASE("the chain at the root is what every pool's root compares") {
    const kv::PrefixExtras extras{bytes("layout"), bytes("model"), bytes("salt")};
    CHECK(kv::chain_root(extras) == PrefixKeys(seed_of(1)).root(extras).extras);
    CHECK(kv::chain_root(extras) == PrefixKeys(seed_of(2), 8).root(extras).extras);
    CHECK_FALSE(kv::chain_root(extras) == kv::chain_root({bytes("layout"), bytes("model"), bytes("")}));
  }

  // The bytes of the format, put together by hand.
  TEST_CASE("chains are digests of the bytes that the format names") {
    std::string framed;
    for (std::string_view part : {"layout", "model", "salt"}) {
      framed += static_cast<char>(part.size());
      framed.append(7, '\0');
      framed += part;
    }
    const Sha256Digest root = kv::chain_root({bytes("layout"), bytes("model"), bytes("salt")});
    CHECK(root == sha256(framed));
    const std::vector<int32_t> ids = {1, 0x01020304};
    std::string page(reinterpret_cast<const char*>(root.data()), root.size());
    page += std::string("\2\0\0\0\0\0\0\0", 8) + std::string("\1\0\0\0\0\0\0\0", 8);
    page += std::string("\1\0\0\0\4\3\2\1", 8);
    MediaMark mark;
    mark.offset_tokens = 5;
    mark.digest.fill('x');
    page += std::string("\5\0\0\0", 4) + std::string(32, 'x');
    CHECK(kv::chain_digest(root, ids, std::vector{mark}) == sha256(page));
  }

  TEST_CASE("a chain depends on parent, ids and media, and goes on even without ids") {
    const std::vector<int32_t> ids = random_ids(kv::kPageTokens, 1);
    const Sha256Digest root = kv::chain_root({});
    std::set<Sha256Digest> seen = {root};
    CHECK(seen.insert(kv::chain_digest(root, {})).second);
    CHECK(seen.insert(kv::chain_digest(root, ids)).second);
    CHECK(seen.insert(kv::chain_digest(kv::chain_digest(root, ids), {})).second);
    CHECK(seen.insert(kv::chain_digest(kv::chain_digest(root, ids), ids)).second);
    CHECK(seen.insert(kv::chain_digest(root, ids, std::vector<MediaMark>{{0, {}}})).second);
    CHECK(seen.insert(kv::chain_digest(root, ids, std::vector<MediaMark>{{1, {}}})).second);
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<int32_t> changed = ids;
      changed[i] ^= 1;
      CHECK(seen.insert(kv::chain_digest(root, changed)).second);
      if (i > 0) CHECK(seen.insert(kv::chain_digest(root, std::span(ids).first(i))).second);
    }
    CHECK(kv::chain_digest(root, ids) == kv::chain_digest(root, std::vector<int32_t>(ids)));
  }
}

TEST_SUITE("kv/prefix_key: provenance") {
  TEST_CASE("no list and an empty list both mean exact") {
    const kv::Provenance empty = std::make_shared<const std::vector<int64_t>>();
    CHECK(kv::is_exact(nullptr));
    CHECK(kv::is_exact(empty));
    CHECK(kv::equal(nullptr, empty));
  }

  TEST_CASE("descending adds a position behind and leaves the ancestor's list alone") {
    const kv::Provenance first = kv::descend(nullptr, 128), second = kv::descend(first, 512);
    CHECK(*first == std::vector<int64_t>{128});
    CHECK(*second == std::vector<int64_t>{128, 512});
    CHECK_FALSE(kv::is_exact(first));
    CHECK_FALSE(kv::equal(first, second));
    CHECK_FALSE(kv::equal(nullptr, first));
    CHECK(kv::equal(second, kv::descend(kv::descend(nullptr, 128), 512)));
  }
}

}  // namespace
}  // namespace dsv41::test
