#include "kv/prefix_tree.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "support/kv_rows.h"

namespace dsv41::test {
namespace {

using kv::kNoPage;
using kv::kPageTokens;
using kv::PageId;
using kv::PrefixTree;

constexpr auto kTokens = static_cast<size_t>(kPageTokens);

// A tree and page numbers to give to it.
struct Tree {
  explicit Tree(uint64_t n_pages, int key_bits = 128) : tree(n_pages, {}, key_bits), root(new_root("model")) {
    for (uint64_t page = n_pages; page-- > 0;) free.push_back(static_cast<PageId>(page));
    ended.reserve(n_pages);
  }
  kv::PrefixRootRef new_root(std::string_view fingerprint) const {
    return std::make_shared<const kv::PrefixRoot>(tree.keys().root({{}, std::as_bytes(std::span(fingerprint)), {}}));
  }
  PageId add(PageId parent, std::span<const int32_t> ids, bool index = true) {
    const PageId page = free.back();
    free.pop_back();
    tree.insert(page, root, parent, ids, nullptr, index);
    return page;
  }
  // Chain of whole pages; every page but the last is held only by its child.
  PageId chain(std::span<const int32_t> ids) {
    PageId last = kNoPage;
    for (; ids.size() >= kTokens; ids = ids.subspan(kTokens)) {
      const PageId next = add(last, ids.first(kTokens));
      if (last != kNoPage) drop(last);
      last = next;
    }
    return last;
  }
  void drop(PageId page) {
    tree.drop_user(page, &ended);
    free.insert(free.end(), ended.begin(), ended.end());
    ended.clear();
  }
  std::string fault() const { return std::string(tree.check_invariants().message()); }

  PrefixTree tree;
  kv::PrefixRootRef root;
  std::vector<PageId> free, ended;
};

TEST_SUITE("kv/prefix_tree") {
  TEST_CASE("a node knows its ids, parent, depth, provenance and serial") {
    Tree t(4);
    const std::vector<int32_t> ids = random_ids(2 * kPageTokens, 1);
    const PageId first = t.add(kNoPage, std::span(ids).first(kTokens));
    const PageId second = t.add(first, std::span(ids).last(kTokens));
    CHECK(std::ranges::equal(t.tree.ids(second), std::span(ids).last(kTokens)));
    CHECK(t.tree.parent(second) == first);
    CHECK(t.tree.parent(first) == kNoPage);
    CHECK(t.tree.depth(first) == 1);
    CHECK(t.tree.depth(second) == 2);
    CHECK(kv::is_exact(t.tree.provenance(first)));
    CHECK(t.tree.serial(first) != t.tree.serial(second));
    CHECK_FALSE(t.tree.is_node(3));
  }

  TEST_CASE("a page that comes back has another serial") {
    Tree t(1);
    const std::vector<int32_t> ids = random_ids(kPageTokens, 1);
    PageId page = t.add(kNoPage, ids);
    const uint64_t serial = t.tree.serial(page);
    t.drop(page);
    t.tree.evict(&t.ended);
    CHECK(t.ended == std::vector<PageId>{page});
    CHECK_FALSE(t.tree.is_node(page));
    t.tree.insert(page, t.root, kNoPage, ids, nullptr, true);
    CHECK(t.tree.serial(page) > serial);
  }

  TEST_CASE("a page is found among its siblings, old and new ones, indexed or not") {
    Tree t(20);
    const PageId parent = t.add(kNoPage, random_ids(kPageTokens, 99));
    for (uint64_t n = 1; n <= 12; ++n) {
      CAPTURE(n);
      const PageId child = t.add(parent, random_ids(kPageTokens, n), /*index=*/n % 3 != 0);
      CHECK((t.tree.find(*t.root, parent, random_ids(kPageTokens, n)) == child) == (n % 3 != 0));
      for (uint64_t i = 1; i <= 13; ++i) {
        const PageId found = t.tree.find(*t.root, parent, random_ids(kPageTokens, i));
        CHECK((found != kNoPage) == (i <= n && i % 3 != 0));
        if (found != kNoPage) CHECK(std::ranges::equal(t.tree.ids(found), random_ids(kPageTokens, i)));
      }
    }
    CHECK(t.fault() == "");
  }

  TEST_CASE("holding the last page of a chain holds all of it") {
    Tree t(6);
    const PageId end = t.chain(random_ids(5 * kPageTokens, 1));
    CHECK(t.tree.counts().sealed == 5);
    CHECK(t.tree.victim() == kNoPage);
    t.drop(end);
    CHECK(t.tree.counts().sealed == 0);
    CHECK(t.tree.counts().cached == 5);
    CHECK(t.tree.victim() == end);
    CHECK(t.fault() == "");
  }

  TEST_CASE("dropping to the middle of a chain lets go of what lies behind it") {
    Tree t(6);
    const PageId end = t.chain(random_ids(5 * kPageTokens, 1));
    const PageId middle = t.tree.parent(t.tree.parent(end));
    t.tree.add_user(middle);
    t.drop(end);
    CHECK(t.tree.counts().sealed == 3);
    CHECK(t.tree.counts().cached == 2);
    CHECK(t.fault() == "");
  }

  TEST_CASE("pins and users above and below each other are counted as what holds most") {
    Tree t(6);
    const PageId end = t.chain(random_ids(4 * kPageTokens, 1));
    const PageId second = t.tree.parent(t.tree.parent(end));
    t.tree.pin(end);
    t.tree.add_user(second);
    t.drop(end);
    CHECK(t.tree.counts().sealed == 2);
    CHECK(t.tree.counts().pinned_only == 2);
    CHECK(t.fault() == "");
    t.drop(second);
    CHECK(t.tree.counts().pinned_only == 4);
    t.tree.add_user(end);
    CHECK(t.tree.counts().sealed == 4);
    t.tree.unpin(end, &t.ended);
    CHECK(t.tree.counts().sealed == 4);
    t.drop(end);
    CHECK(t.tree.counts().cached == 4);
    CHECK(t.ended.empty());
    CHECK(t.fault() == "");
  }

  TEST_CASE("an unindexed page ends with its last holder, with all that it alone held") {
    Tree t(6);
    const std::vector<int32_t> ids = random_ids(3 * kPageTokens, 1);
    const PageId first = t.add(kNoPage, std::span(ids).first(kTokens), /*index=*/false);
    const PageId second = t.add(first, std::span(ids).subspan(kTokens, kTokens), /*index=*/false);
    t.drop(first);
    CHECK(t.tree.match(*t.root, ids, 3, false) == kNoPage);
    CHECK(t.tree.counts().unindexed == 2);
    t.drop(second);
    CHECK(t.free.size() == 6);
    CHECK(t.tree.counts().unindexed == 0);
    CHECK(t.fault() == "");
  }

  TEST_CASE("unindexing a page takes the whole subtree out: held nodes live on, others end") {
    Tree t(10);
    const std::vector<int32_t> ids = random_ids(8 * kPageTokens, 1);
    const auto page = [&](size_t i) { return std::span(ids).subspan(i * kTokens, kTokens); };
    const PageId trunk = t.add(kNoPage, page(0)), a = t.add(trunk, page(1)), b = t.add(trunk, page(2));
    const PageId a1 = t.add(a, page(3)), b1 = t.add(b, page(4)), b2 = t.add(b, page(5));
    for (PageId drop : {trunk, a, b, b1, b2}) t.drop(drop);  // a1 stays held
    CHECK(t.tree.counts().cached == 3);
    t.tree.unindex(trunk, &t.ended);
    CHECK(t.ended.size() == 3);
    CHECK(t.tree.counts().cached == 0);
    CHECK(t.tree.counts().sealed == 3);
    CHECK(t.tree.counts().unindexed == 3);
    CHECK(t.tree.parent(a1) == a);
    CHECK(t.fault() == "");
    t.ended.clear();
    t.drop(a1);
    CHECK(t.tree.counts().sealed == 0);
    CHECK(t.fault() == "");
  }

  TEST_CASE("roots with equal extras are one root, others are never mixed up") {
    Tree t(4, /*key_bits=*/1);
    const std::vector<int32_t> ids = random_ids(kPageTokens, 1);
    const PageId page = t.add(kNoPage, ids);
    CHECK(t.tree.find(*t.new_root("model"), kNoPage, ids) == page);
    CHECK(t.tree.find(*t.new_root("models"), kNoPage, ids) == kNoPage);
  }

  TEST_CASE("with keys of 8 bits thousands of prefixes collide and no lookup gives a wrong page") {
    constexpr uint64_t kPages = 6000;
    Tree t(kPages, /*key_bits=*/8);
    std::mt19937_64 random(4);
    std::vector<std::vector<int32_t>> prefixes;
    std::map<std::vector<int32_t>, PageId> indexed;  // the whole prefix of each page that is in the index
    for (uint64_t i = 0; i < kPages; ++i) {
      // A page behind a random prefix that is there, or a first page; few distinct ids, so that ids are nearly equal.
      std::vector<int32_t> prefix;
      if (!prefixes.empty() && random() % 4) prefix = prefixes[random() % prefixes.size()];
      const auto parent = indexed.find(prefix);
      if (!prefix.empty() && parent == indexed.end()) continue;
      const PageId below = prefix.empty() ? kNoPage : parent->second;
      std::vector<int32_t> ids(kTokens, 5);
      ids[random() % kTokens] = static_cast<int32_t>(random() % 50);
      if (t.tree.find(*t.root, below, ids) != kNoPage) continue;
      const PageId page = t.add(below, ids);
      prefix.insert(prefix.end(), ids.begin(), ids.end());
      if (t.tree.is_indexed(page)) {
        indexed[prefix] = page;
        if (prefix.size() < 5 * kTokens) prefixes.push_back(prefix);
      }
    }
    CHECK(indexed.size() > 1500);
    CHECK(indexed.size() <= 256 * PrefixTree::kMaxEqualKeys);  // chains are bounded
    CHECK(t.tree.counts().key_collisions > 100);               // and what did not fit was counted
    CHECK(t.tree.counts().unindexed == t.tree.counts().key_collisions);
    for (const auto& [prefix, page] : indexed) {
      const PageId found = t.tree.match(*t.root, prefix, INT64_MAX, false);
      REQUIRE(found == page);
    }
    for (int i = 0; i < 3000; ++i) {  // prefixes that are not there
      std::vector<int32_t> tokens = prefixes[random() % prefixes.size()];
      tokens[random() % tokens.size()] = 1000 + i;
      const PageId found = t.tree.match(*t.root, tokens, INT64_MAX, false);
      const size_t n = found == kNoPage ? 0 : static_cast<size_t>(t.tree.depth(found)) * kTokens;
      const auto expected = indexed.find(std::vector(tokens.begin(), tokens.begin() + static_cast<int64_t>(n)));
      REQUIRE((n == 0 || (expected != indexed.end() && expected->second == found)));
    }
    CHECK(t.fault() == "");
  }

  TEST_CASE("a full chain of equal keys has room again when one of it is evicted") {
    Tree t(20, /*key_bits=*/1);
    std::vector<PageId> in, out;
    for (int i = 0; i < 20; ++i) {
      const PageId page = t.add(kNoPage, random_ids(kPageTokens, static_cast<uint64_t>(i)));
      (t.tree.is_indexed(page) ? in : out).push_back(page);
    }
    CHECK(in.size() == 16);
    CHECK(t.tree.counts().key_collisions == 4);
    for (PageId page : in) t.drop(page);
    for (PageId page : out) t.drop(page);
    CHECK(t.free.size() == 4);
    while (t.tree.victim() != kNoPage) t.tree.evict(&t.ended);
    CHECK(t.ended.size() == 16);
    CHECK(t.tree.is_indexed(t.add(kNoPage, random_ids(kPageTokens, 99))));
    CHECK(t.fault() == "");
  }
}

}  // namespace
}  // namespace dsv41::test
