#include "kv/prefix_tree.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace dsv41::kv {

PrefixTree::PrefixTree(uint64_t n_pages, const KeySeed& seed, int key_bits)
    : key_bits_(key_bits),
      keys_(seed, key_bits),
      nodes_(n_pages),
      ids_(n_pages * kPageTokens),
      buckets_(std::bit_ceil(std::max<uint64_t>(1, n_pages)), kNoPage) {
  stack_.reserve(n_pages);
}

uint64_t PrefixTree::bytes_per_page() {
  // A bucket at least, two at most; the walk's stack and the pool's list of ended pages.
  return sizeof(Node) + kPageTokens * sizeof(int32_t) + 4 * sizeof(PageId);
}

// ---- Index

PageKey PrefixTree::key_below(const PrefixRoot& root, PageId parent, std::span<const int32_t> ids) const {
  return keys_.page(parent == kNoPage ? root.key : nodes_[parent].key, ids);
}

// Parents are compared by identity; at the root there is none, so the extras are.
bool PrefixTree::same_place(const Node& node, const PrefixRoot& root, PageId parent) const {
  if (node.parent != parent) return false;
  return parent != kNoPage || node.root.get() == &root || node.root->extras == root.extras;
}

PageId PrefixTree::find_by_key(const PageKey& key, const PrefixRoot& root, PageId parent,
                               std::span<const int32_t> ids) const {
  for (PageId page = first_in_bucket(key); page != kNoPage; page = nodes_[page].next_in_bucket) {
    const Node& node = nodes_[page];
    if (node.key == key && same_place(node, root, parent) &&
        std::memcmp(ids.data(), this->ids(page).data(), ids.size_bytes()) == 0) {
      return page;
    }
  }
  return kNoPage;
}

// Few pages have more than one child: the newest ones are compared without a key, at less than the cost of one.
PageId PrefixTree::find(const PrefixRoot& root, PageId parent, std::span<const int32_t> ids) const {
  if (parent != kNoPage) {
    PageId child = nodes_[parent].first_child;
    for (int i = 0; i < kNewestChildren && child != kNoPage; ++i, child = nodes_[child].next_sibling) {
      if (nodes_[child].indexed && std::memcmp(ids.data(), this->ids(child).data(), ids.size_bytes()) == 0)
        return child;
    }
    if (child == kNoPage) return kNoPage;
  }
  return find_by_key(key_below(root, parent, ids), root, parent, ids);
}

PageId PrefixTree::match(const PrefixRoot& root, std::span<const int32_t> tokens, int64_t max_pages,
                         bool exact_only) const {
  const size_t n = std::min(static_cast<size_t>(std::max<int64_t>(0, max_pages)), tokens.size() / kPageTokens);
  PageId last = kNoPage;
  for (size_t i = 0; i < n; ++i) {
    const PageId page = find(root, last, tokens.subspan(i * kPageTokens, kPageTokens));
    if (page == kNoPage || (exact_only && !is_exact(nodes_[page].provenance))) break;
    last = page;
  }
  return last;
}

PageId PrefixTree::match_below(const PrefixRoot& root, PageId parent, std::span<const int32_t> tokens) const {
  PageId last = kNoPage;
  for (; tokens.size() >= kPageTokens; tokens = tokens.subspan(kPageTokens)) {
    const PageId page = find(root, last == kNoPage ? parent : last, tokens.first(kPageTokens));
    if (page == kNoPage) break;
    last = page;
  }
  return last;
}

void PrefixTree::put_in_index(PageId page) {
  Node& node = nodes_[page];
  PageId& first = bucket(node.key);
  node.next_in_bucket = first;
  first = page;
  node.indexed = true;
}

void PrefixTree::take_from_index(PageId page) {
  Node& node = nodes_[page];
  PageId* link = &bucket(node.key);
  while (*link != page) link = &nodes_[*link].next_in_bucket;
  *link = node.next_in_bucket;
  node.next_in_bucket = kNoPage;
  node.indexed = false;
}

// ---- Counts

// A node that is neither held nor indexed is about to end and counts nowhere.
void PrefixTree::count(const Node& node, int64_t by) {
  const Hold how = hold(node);
  if (how == Hold::kNobody && !node.indexed) return;
  uint64_t& counter = how == Hold::kUsers ? counts_.sealed : how == Hold::kPins ? counts_.pinned_only : counts_.cached;
  counter += static_cast<uint64_t>(by);
  if (!node.indexed) counts_.unindexed += static_cast<uint64_t>(by);
}

template <class Change>
void PrefixTree::change(PageId page, Change&& body) {
  Node& node = nodes_[page];
  count(node, -1);
  body(node);
  count(node, 1);
}

// ---- Holding

// `page` was held as `before`. Where that has changed it leaves or enters the list of cached nodes, or ends, and its
// parent follows.
void PrefixTree::settle(PageId page, Hold before, std::vector<PageId>* freed) {
  for (;;) {
    const Hold after = hold(nodes_[page]);
    if (before == after) return;
    const PageId parent = nodes_[page].parent;
    if (before == Hold::kNobody) remove_cached(page);
    if (after == Hold::kNobody) {
      if (nodes_[page].indexed) {
        push_cached(page);
      } else {
        end(page, freed);
      }
    }
    if (parent == kNoPage) return;
    const Hold parent_before = hold(nodes_[parent]);
    change(parent, [&](Node& node) {
      node.n_used_children += uint32_t{after == Hold::kUsers} - uint32_t{before == Hold::kUsers};
      node.n_active_children += uint32_t{after != Hold::kNobody} - uint32_t{before != Hold::kNobody};
    });
    page = parent;
    before = parent_before;
  }
}

void PrefixTree::add_user(PageId page) {
  const Hold before = hold(nodes_[page]);
  change(page, [](Node& node) { ++node.n_users; });
  settle(page, before, nullptr);
}

void PrefixTree::drop_user(PageId page, std::vector<PageId>* freed) {
  assert(nodes_[page].n_users > 0);
  change(page, [](Node& node) { --node.n_users; });
  settle(page, Hold::kUsers, freed);
}

void PrefixTree::pin(PageId page) {
  const Hold before = hold(nodes_[page]);
  change(page, [](Node& node) { ++node.n_pins; });
  settle(page, before, nullptr);
}

void PrefixTree::unpin(PageId page, std::vector<PageId>* freed) {
  assert(nodes_[page].n_pins > 0);
  const Hold before = hold(nodes_[page]);
  change(page, [](Node& node) { --node.n_pins; });
  settle(page, before, freed);
}

// ---- Nodes

void PrefixTree::link_child(PageId page) {
  Node& node = nodes_[page];
  if (node.parent == kNoPage) return;
  Node& parent = nodes_[node.parent];
  node.next_sibling = parent.first_child;
  if (node.next_sibling != kNoPage) nodes_[node.next_sibling].previous_sibling = page;
  parent.first_child = page;
}

void PrefixTree::insert(PageId page, const PrefixRootRef& root, PageId parent, std::span<const int32_t> ids,
                        const Provenance& provenance, bool index) {
  Node& node = nodes_[page];
  assert(!node.serial && ids.size() == static_cast<size_t>(kPageTokens));
  node.key = key_below(*root, parent, ids);
  node.serial = next_serial_++;
  node.root = parent == kNoPage ? root : nullptr;
  node.provenance = provenance;
  node.parent = parent;
  node.depth = parent == kNoPage ? 1 : nodes_[parent].depth + 1;
  std::memcpy(ids_.data() + size_t{page} * kPageTokens, ids.data(), ids.size_bytes());
  link_child(page);
  if (index) {
    assert(parent == kNoPage || nodes_[parent].indexed);
    int n_equal = 0;
    for (PageId other = first_in_bucket(node.key); other != kNoPage; other = nodes_[other].next_in_bucket) {
      n_equal += nodes_[other].key == node.key;
    }
    if (n_equal < kMaxEqualKeys) {
      put_in_index(page);
    } else {
      ++counts_.key_collisions;
    }
  }
  node.n_users = 1;
  count(node, 1);
  settle(page, Hold::kNobody, nullptr);
}

// Unlinks an inactive node without children and gives its page out.
void PrefixTree::end(PageId page, std::vector<PageId>* freed) {
  Node& node = nodes_[page];
  assert(!is_active(page) && node.first_child == kNoPage && !node.indexed && !node.cached);
  if (node.previous_sibling != kNoPage) {
    nodes_[node.previous_sibling].next_sibling = node.next_sibling;
  } else if (node.parent != kNoPage) {
    nodes_[node.parent].first_child = node.next_sibling;
  }
  if (node.next_sibling != kNoPage) nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
  node = Node{};
  freed->push_back(page);
}

void PrefixTree::unindex(PageId page, std::vector<PageId>* freed) {
  // Down first, so that children are met before their parents on the way back.
  stack_.clear();
  stack_.push_back(page);
  for (size_t i = 0; i < stack_.size(); ++i) {
    for (PageId child = nodes_[stack_[i]].first_child; child != kNoPage; child = nodes_[child].next_sibling) {
      if (nodes_[child].indexed) stack_.push_back(child);
    }
  }
  while (!stack_.empty()) {
    const PageId at = stack_.back();
    stack_.pop_back();
    const bool active = is_active(at);
    if (!active) remove_cached(at);
    change(at, [&](Node&) { take_from_index(at); });
    if (!active) end(at, freed);
  }
}

void PrefixTree::evict(std::vector<PageId>* freed) {
  const PageId page = lru_first_;
  assert(page != kNoPage);
  remove_cached(page);
  change(page, [&](Node&) { take_from_index(page); });
  end(page, freed);
}

// ---- List of cached nodes

void PrefixTree::push_cached(PageId page) {
  Node& node = nodes_[page];
  node.cached = true;
  node.lru_previous = lru_last_;
  node.lru_next = kNoPage;
  (lru_last_ == kNoPage ? lru_first_ : nodes_[lru_last_].lru_next) = page;
  lru_last_ = page;
}

void PrefixTree::remove_cached(PageId page) {
  Node& node = nodes_[page];
  if (!node.cached) return;
  (node.lru_previous == kNoPage ? lru_first_ : nodes_[node.lru_previous].lru_next) = node.lru_next;
  (node.lru_next == kNoPage ? lru_last_ : nodes_[node.lru_next].lru_previous) = node.lru_previous;
  node.lru_previous = node.lru_next = kNoPage;
  node.cached = false;
}

// ---- Checks

Status PrefixTree::check_invariants() const {
  const auto wrong = [](PageId page, const char* what) {
    return Status(Code::kINTERNAL, "page " + std::to_string(page) + " of the prefix tree: " + what);
  };
  Counts seen;
  std::vector<uint32_t> n_active_children(nodes_.size(), 0), n_used_children(nodes_.size(), 0);
  for (PageId page = 0; page < nodes_.size(); ++page) {
    const Node& node = nodes_[page];
    if (!node.serial) {
      if (is_active(page) || node.indexed || node.cached || node.first_child != kNoPage) {
        return wrong(page, "it is no node, but something holds it");
      }
      continue;
    }
    const bool active = is_active(page);
    if (!active && !node.indexed) return wrong(page, "it can neither be found nor is it held");
    if (node.cached == active) return wrong(page, "it is cached and held, or neither");
    if (node.parent != kNoPage) {
      const Node& parent = nodes_[node.parent];
      if (!parent.serial) return wrong(page, "its parent is gone");
      if (parent.depth + 1 != node.depth) return wrong(page, "its depth is not its parent's and one");
      if (node.indexed && !parent.indexed) return wrong(page, "it is indexed below a parent that is not");
      n_active_children[node.parent] += active;
      n_used_children[node.parent] += hold(node) == Hold::kUsers;
    } else if (!node.root || node.depth != 1) {
      return wrong(page, "a first page without a root");
    }
    seen.sealed += hold(node) == Hold::kUsers;
    seen.cached += !active;
    seen.pinned_only += hold(node) == Hold::kPins;
    seen.unindexed += !node.indexed;
    if (node.indexed) {
      PageId other = first_in_bucket(node.key);
      while (other != kNoPage && other != page) other = nodes_[other].next_in_bucket;
      if (other != page) return wrong(page, "the index does not find it");
    }
    for (PageId child = node.first_child; child != kNoPage; child = nodes_[child].next_sibling) {
      if (nodes_[child].parent != page) return wrong(page, "a child has another parent");
    }
  }
  for (PageId page = 0; page < nodes_.size(); ++page) {
    if (nodes_[page].n_active_children != n_active_children[page] ||
        nodes_[page].n_used_children != n_used_children[page]) {
      return wrong(page, "active children are miscounted");
    }
  }
  if (seen.sealed != counts_.sealed || seen.cached != counts_.cached || seen.pinned_only != counts_.pinned_only ||
      seen.unindexed != counts_.unindexed) {
    return Status(Code::kINTERNAL, "the prefix tree's counts differ from its pages");
  }
  uint64_t n_listed = 0;
  std::vector<bool> passed(nodes_.size(), false);
  for (PageId page = lru_first_; page != kNoPage; page = nodes_[page].lru_next) {
    if (!nodes_[page].cached || ++n_listed > seen.cached) return wrong(page, "the list of cached pages is damaged");
    for (PageId child = nodes_[page].first_child; child != kNoPage; child = nodes_[child].next_sibling) {
      if (!passed[child]) return wrong(page, "it would go before its child");
    }
    passed[page] = true;
  }
  if (n_listed != seen.cached) return Status(Code::kINTERNAL, "the list of cached pages is not whole");
  return Status();
}

}  // namespace dsv41::kv
