// PrefixTree: sealed pages as chains that sessions share, and the index that finds them by token ids (kv.md section 5).
//
// A node per page of the pool, addressed by the page's id, so that sealing and looking up allocate nothing. A node
// knows its parent; holding the last page of a chain holds all of it, which makes sharing one count, whatever the
// length. A node is held by users (sequences) or by pins alone, of its own or through its children; how it is held is
// counted from child to parent, so that only the part of a chain that changes is walked. A held node is active.
//
//   held by users        SEALED        may be found and shared, if indexed
//   held by pins alone   PINNED ONLY   the same
//   indexed, not active  CACHED        may be found; leaves go first, least recently used first
//   not indexed          lives as long as it is active: a page whose ids another page is indexed for, or whose parent
//                        is not the indexed one
//
// The list of cached nodes is in the order in which they became inactive. A child never becomes inactive after its
// parent, so its front is always a leaf: taking from the front is leaf-first eviction without a search. Rejected: a
// heap by time of use (a chain of n pages would cost n log n, and inner nodes must be skipped).
//
// Not synchronised: the page pool calls it under its lock. What a node holds (ids, parent, provenance, serial) never
// changes while the node is active, so whoever holds it may read that without the lock.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/page_geometry.h"
#include "kv/prefix_key.h"

namespace dsv41::kv {

using PageId = uint32_t;
inline constexpr PageId kNoPage = UINT32_MAX;

class PrefixTree {
 public:
  // n_pages: pages that may become nodes, ids [0, n_pages).
  PrefixTree(uint64_t n_pages, const KeySeed& seed, int key_bits);

  const PrefixKeys& keys() const { return keys_; }
  // Other keys from now on; there must be no node.
  void set_seed(const KeySeed& seed) { keys_ = PrefixKeys(seed, key_bits_); }

  // ---- Nodes. `page` must be one.
  std::span<const int32_t> ids(PageId page) const {
    return {ids_.data() + size_t{page} * kPageTokens, static_cast<size_t>(kPageTokens)};
  }
  PageId parent(PageId page) const { return nodes_[page].parent; }
  int64_t depth(PageId page) const { return nodes_[page].depth; }     // pages from the root to this one, both counted
  uint64_t serial(PageId page) const { return nodes_[page].serial; }  // of this node alone, never used again
  const Provenance& provenance(PageId page) const { return nodes_[page].provenance; }
  bool is_node(PageId page) const { return nodes_[page].serial != 0; }
  bool is_indexed(PageId page) const { return nodes_[page].indexed; }
  bool is_active(PageId page) const { return hold(nodes_[page]) != Hold::kNobody; }
  uint32_t n_sharers(PageId page) const { return nodes_[page].n_users + nodes_[page].n_active_children; }

  // ---- Index
  // The indexed child of `parent` (kNoPage: of the root) with these ids, or kNoPage.
  PageId find(const PrefixRoot& root, PageId parent, std::span<const int32_t> ids) const;
  // The last page of the longest indexed chain of at most max_pages whose ids begin `tokens`; kNoPage: none.
  // exact_only: stops before the first page with a provenance.
  PageId match(const PrefixRoot& root, std::span<const int32_t> tokens, int64_t max_pages, bool exact_only) const;
  // The same of the chains that go on from `parent` (kNoPage: from the root) with `tokens`, whatever they descend from.
  PageId match_below(const PrefixRoot& root, PageId parent, std::span<const int32_t> tokens) const;

  // ---- Changes. Pages of nodes that end are appended to *freed (which must have room for all pages).
  // Makes a node of `page` with one user. index: also lets it be found; then the parent must be indexed, no indexed
  // node may have its ids, and where too many nodes share its key it stays unindexed.
  void insert(PageId page, const PrefixRootRef& root, PageId parent, std::span<const int32_t> ids,
              const Provenance& provenance, bool index);
  void add_user(PageId page);
  void drop_user(PageId page, std::vector<PageId>* freed);
  void pin(PageId page);
  void unpin(PageId page, std::vector<PageId>* freed);
  // Takes `page` and what hangs below it out of the index; inactive ones among them end.
  void unindex(PageId page, std::vector<PageId>* freed);
  // The cached page that goes next, or kNoPage.
  PageId victim() const { return lru_first_; }
  // Ends the victim.
  void evict(std::vector<PageId>* freed);

  struct Counts {
    uint64_t sealed = 0;          // held by users
    uint64_t cached = 0;          // indexed, inactive
    uint64_t pinned_only = 0;     // held by pins alone
    uint64_t unindexed = 0;       // of the active ones
    uint64_t key_collisions = 0;  // inserts that stayed unindexed for the bound, since the start
  };
  const Counts& counts() const { return counts_; }
  // Bytes of bookkeeping for one page: node, ids and its share of the index.
  static uint64_t bytes_per_page();
  // Counts against the nodes themselves, links both ways, order of the cached list. INTERNAL tells what is wrong.
  Status check_invariants() const;

  static constexpr int kMaxEqualKeys = 8;    // indexed nodes with one key
  static constexpr int kNewestChildren = 2;  // that are found without a key

 private:
  struct Node {
    PageKey key;
    PageId parent = kNoPage;
    PageId next_in_bucket = kNoPage;
    uint32_t n_users = 0, n_pins = 0;
    uint32_t n_used_children = 0, n_active_children = 0;
    PageId lru_previous = kNoPage, lru_next = kNoPage;
    PageId first_child = kNoPage, previous_sibling = kNoPage, next_sibling = kNoPage;
    uint32_t depth = 0;
    uint64_t serial = 0;  // 0: not a node
    PrefixRootRef root;   // of first pages only
    Provenance provenance;
    bool indexed = false;
    bool cached = false;  // in the list of cached nodes
  };

  enum class Hold : uint8_t { kNobody, kPins, kUsers };
  static Hold hold(const Node& node) {
    if (node.n_users || node.n_used_children) return Hold::kUsers;
    return node.n_pins || node.n_active_children ? Hold::kPins : Hold::kNobody;
  }
  void count(const Node& node, int64_t by);
  template <class Change>
  void change(PageId page, Change&& body);  // body(node) between taking it out of the counts and putting it back
  void settle(PageId page, Hold before, std::vector<PageId>* freed);
  void put_in_index(PageId page);
  void take_from_index(PageId page);
  void push_cached(PageId page);
  void remove_cached(PageId page);
  void link_child(PageId page);
  void end(PageId page, std::vector<PageId>* freed);
  PageId& bucket(const PageKey& key) { return buckets_[key.low & (buckets_.size() - 1)]; }
  PageId first_in_bucket(const PageKey& key) const { return buckets_[key.low & (buckets_.size() - 1)]; }
  PageKey key_below(const PrefixRoot& root, PageId parent, std::span<const int32_t> ids) const;
  bool same_place(const Node& node, const PrefixRoot& root, PageId parent) const;
  PageId find_by_key(const PageKey& key, const PrefixRoot& root, PageId parent, std::span<const int32_t> ids) const;

  const int key_bits_;
  PrefixKeys keys_;
  std::vector<Node> nodes_;
  std::vector<int32_t> ids_;  // [n_pages, kPageTokens]
  std::vector<PageId> buckets_;
  std::vector<PageId> stack_;  // for walks over a subtree; room for all pages
  PageId lru_first_ = kNoPage, lru_last_ = kNoPage;
  uint64_t next_serial_ = 1;
  Counts counts_;
};

}  // namespace dsv41::kv
