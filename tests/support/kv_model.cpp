#include "support/kv_model.h"

#include <algorithm>

#include "kv/sequence_kv.h"
#include "support/kv_rows.h"

namespace dsv41::test {
namespace {

using kv::kPageTokens;
using kv::pages_for;

ModelPageRef ancestor(ModelPageRef page, int64_t at) {
  while (depth(page) > at) page = page->parent;
  return page;
}

std::set<ModelMemory*> memories(const KvModel& m) {
  std::set<ModelMemory*> all;
  for (const auto& [name, sequence] : m.sequences) all.insert(sequence.memory.get());
  return all;
}

bool is_shared(const KvModel& m, int name) {
  const auto& mine = m.sequences.at(name).memory;
  return std::ranges::count_if(m.sequences, [&](const auto& other) { return other.second.memory == mine; }) > 1;
}

std::set<ModelPageRef> held_pages(const KvModel& m, bool by_pins) {
  std::set<ModelPageRef> all;
  for (const ModelMemory* memory : memories(m)) all.insert(memory->chain);
  if (by_pins) all.insert(m.pins.begin(), m.pins.end());
  for (const ModelPageRef& end : std::set(all)) {
    for (ModelPageRef page = end; page; page = page->parent) all.insert(page);
  }
  all.erase(nullptr);
  return all;
}

int64_t n_cached(const KvModel& m) {
  return std::ranges::count_if(m.pages, [](const ModelPageRef& page) { return page->idle_since > 0; });
}

int64_t n_retired(const KvModel& m, bool slots) {
  return std::ranges::count(m.retired, slots, &std::pair<uint64_t, bool>::second);
}

int64_t n_private(const KvModel& m) {
  int64_t n = 0;
  for (const ModelMemory* memory : memories(m)) n += memory->n_private;
  return n;
}

int64_t n_free(const KvModel& m) { return m.n_pages - std::ssize(m.pages) - n_retired(m, false) - n_private(m); }

int64_t n_free_slots(const KvModel& m) {
  return m.n_slots - n_retired(m, true) - std::ranges::count(memories(m), true, &ModelMemory::has_slot);
}

void retire(KvModel& m, int64_t n, bool slot = false) {
  if (!m.steps.empty()) m.retired.insert(m.retired.end(), static_cast<size_t>(n), {m.last_step, slot});
}

// The leaf that has been idle for longest goes.
bool evict(KvModel& m) {
  ModelPageRef victim;
  for (const ModelPageRef& page : m.pages) {
    const bool is_leaf = std::ranges::count(m.pages, page, &ModelPage::parent) == 0;
    if (is_leaf && page->idle_since && (!victim || page->idle_since < victim->idle_since)) victim = page;
  }
  if (!victim) return false;
  m.pages.erase(victim);
  retire(m, 1);
  ++m.n_evicted;
  return true;
}

bool take(KvModel& m, int64_t n_pages, int64_t n_slots) {
  if (n_pages > n_free(m) + n_retired(m, false) + n_cached(m)) return false;
  if (n_slots > n_free_slots(m) + n_retired(m, true)) return false;
  while (n_free(m) + n_retired(m, false) < n_pages) evict(m);
  return true;
}

ModelPageRef find(const KvModel& m, const ModelPageRef& parent, std::span<const int32_t> prefix) {
  for (const ModelPageRef& page : m.pages) {
    if (page->indexed && page->parent == parent && std::ranges::equal(page->ids, prefix)) return page;
  }
  return nullptr;
}

void shorten(KvModel& m, ModelMemory& memory, int64_t n_pages) {
  const int64_t kept = std::clamp<int64_t>(n_pages - depth(memory.chain), 0, memory.n_private);
  retire(m, memory.n_private - kept);
  memory.n_private = kept;
  memory.tail.resize(std::min(memory.tail.size(), static_cast<size_t>(kept * kPageTokens)));
  memory.chain = ancestor(memory.chain, n_pages);
  m.settle();
}

// The first page behind the chain.
void seal(KvModel& m, ModelSequence& sequence) {
  ModelMemory& memory = *sequence.memory;
  const int64_t end = (depth(memory.chain) + 1) * kPageTokens;
  std::vector<uint64_t> stamps = memory.chain ? memory.chain->stamps : std::vector<uint64_t>();
  stamps.insert(stamps.end(), memory.tail.begin(), memory.tail.begin() + kPageTokens);
  const auto page = std::make_shared<ModelPage>(ModelPage{memory.chain,
                                                          {sequence.ids.begin(), sequence.ids.begin() + end},
                                                          stamps,
                                                          sequence.provenance,
                                                          !memory.chain || memory.chain->indexed});
  memory.tail.erase(memory.tail.begin(), memory.tail.begin() + kPageTokens);
  --memory.n_private;
  const ModelPageRef rival = page->indexed ? find(m, memory.chain, page->ids) : nullptr;
  const bool no_worse = rival && (rival->provenance.empty() || rival->provenance == page->provenance);
  if (no_worse && rival->idle_since) rival->idle_since = ++m.clock;  // to be compared with is to be used
  if (no_worse && rival->stamps == page->stamps) {
    memory.chain = rival;
    retire(m, 1);
    ++m.n_adopted;
    return m.settle();
  }
  if (rival && page->provenance.empty() && !rival->provenance.empty()) {
    for (const ModelPageRef& other : m.pages) other->indexed &= ancestor(other, depth(rival)) != rival;
    ++m.n_replaced;
  } else if (rival) {
    page->indexed = false;
  }
  m.pages.insert(memory.chain = page);
  ++m.n_sealed;
  m.settle();
}

struct Need {
  bool shared, in_chain, slot;
  int64_t n_kept, n_pages;
};

Need need_of(const KvModel& m, int name, const ModelAppend& what) {
  const ModelSequence& sequence = m.sequences.at(name);
  const int64_t keep = std::ssize(sequence.ids), n_chain = depth(sequence.memory->chain);
  const bool shared = is_shared(m, name), in_chain = keep / kPageTokens < n_chain;
  const int64_t n_all = n_chain + sequence.memory->n_private;
  const int64_t n_kept = shared || in_chain ? std::min(keep / kPageTokens, n_chain) : n_all;
  return {shared, in_chain, shared || !sequence.memory->has_slot, n_kept,
          std::max<int64_t>(0, pages_for(keep + std::ssize(what.ids)) - n_kept)};
}

}  // namespace

int64_t depth(const ModelPageRef& page) { return page ? std::ssize(page->ids) / kPageTokens : 0; }

std::vector<uint64_t> KvModel::counts() const {
  const size_t n_held = held_pages(*this, false).size(), n_active = held_pages(*this, true).size();
  std::vector<uint64_t> all = {n_held, n_active - n_held, n_sealed, n_adopted, n_replaced, n_evicted};
  for (int64_t n : {n_free(*this), n_private(*this), n_cached(*this), n_retired(*this, false),
                    std::ranges::count(pages, false, &ModelPage::indexed), n_free_slots(*this)}) {
    all.push_back(static_cast<uint64_t>(n));
  }
  return all;
}

// Pages that nobody holds any more are cached, children before parents, or end if they cannot be found.
void KvModel::settle() {
  const std::set<ModelPageRef> held = held_pages(*this, true);
  std::vector<ModelPageRef> idle;
  for (const ModelPageRef& page : pages) {
    if (held.contains(page))
      page->idle_since = 0;
    else if (!page->idle_since || !page->indexed)
      idle.push_back(page);
  }
  std::ranges::sort(idle, std::ranges::greater(), depth);
  for (const ModelPageRef& page : idle) {
    page->idle_since = ++clock;
    if (!page->indexed) {
      pages.erase(page);
      retire(*this, 1);
    }
  }
}

void KvModel::end_step(uint64_t step) {
  steps.erase(step);
  std::erase_if(retired, [&](const auto& page) { return steps.empty() || page.first < *steps.begin(); });
}

int64_t KvModel::trim(int64_t max_used) {
  int64_t n = 0;
  while (n_pages - n_free(*this) - n_retired(*this, false) > max_used && evict(*this)) ++n;
  return n;
}

ModelPageRef KvModel::match(std::span<const int32_t> tokens, int64_t most, bool exact_only) const {
  ModelPageRef last;
  for (int64_t n = 1; n <= std::min(most, std::ssize(tokens) / kPageTokens); ++n) {
    const ModelPageRef page = find(*this, last, tokens.first(static_cast<size_t>(n * kPageTokens)));
    if (!page || (exact_only && !page->provenance.empty())) break;
    last = page;
  }
  return last;
}

std::vector<uint64_t> KvModel::stamps(int name) const {
  const ModelSequence& sequence = sequences.at(name);
  std::vector<uint64_t> all = sequence.memory->chain ? sequence.memory->chain->stamps : std::vector<uint64_t>();
  all.insert(all.end(), sequence.memory->tail.begin(), sequence.memory->tail.end());
  all.resize(sequence.ids.size());
  return all;
}

void KvModel::adopt(int name, const ModelPageRef& chain) {
  sequences[name].memory->chain = chain;
  sequences[name].ids = chain->ids;
  settle();
}

void KvModel::release(int name) {
  const ModelMemory& memory = *sequences.at(name).memory;
  if (!is_shared(*this, name)) {
    retire(*this, memory.n_private);
    retire(*this, memory.has_slot, /*slot=*/true);
  }
  sequences.erase(name);
  settle();
}

void KvModel::truncate(int name, int64_t n_tokens) {
  sequences.at(name).ids.resize(static_cast<size_t>(n_tokens));
  if (!is_shared(*this, name)) shorten(*this, *sequences.at(name).memory, pages_for(n_tokens));
}

bool KvModel::is_tight(int name, const ModelAppend& what) const {
  const Need need = need_of(*this, name, what);
  return need.n_pages > n_free(*this) || need.slot > n_free_slots(*this);
}

Code KvModel::append(int name, const ModelAppend& what) {
  ModelSequence& sequence = sequences.at(name);
  if (pages_for(std::ssize(sequence.ids) + std::ssize(what.ids)) > max_pages) return Code::kCONTEXT_FULL;
  const Need need = need_of(*this, name, what);
  if ((need.shared || !sequence.memory->has_tables) && what.fails_allocation) return Code::kNO_MEMORY;
  if (!need.shared) sequence.memory->has_tables = true;
  if (!take(*this, need.n_pages, need.slot)) {
    ModelMemory* donor = what.donor < 0 || is_shared(*this, what.donor) ? nullptr : sequences[what.donor].memory.get();
    if (!need.slot || !donor || !donor->has_slot || !take(*this, need.n_pages, 0)) return Code::kPOOL_FULL;
    donor->has_slot = false;
    donor->window.clear();
  }
  std::vector<uint64_t> all = stamps(name);
  if (need.shared) {
    auto copy = std::make_shared<ModelMemory>();
    copy->chain = ancestor(sequence.memory->chain, need.n_kept);
    if (what.keep_windows && sequence.memory->has_slot) {
      copy->window = sequence.memory->window;
      copy->open_rows = sequence.memory->open_rows;
    }
    sequence.memory = copy;
  } else if (need.in_chain) {
    shorten(*this, *sequence.memory, need.n_kept);
  }
  ModelMemory& memory = *sequence.memory;
  memory.has_tables = memory.has_slot = true;
  memory.n_private = need.n_kept + need.n_pages - depth(memory.chain);
  settle();
  for (int32_t id : what.ids) {
    all.push_back(next_stamp(all.empty() ? 0 : all.back(), id, sequence.variant));
    memory.window[(std::ssize(all) - 1) % window_rows] = {std::ssize(all) - 1, all.back()};
  }
  memory.open_rows = all.back();
  memory.tail.assign(all.begin() + depth(memory.chain) * kPageTokens, all.end());
  sequence.ids.insert(sequence.ids.end(), what.ids.begin(), what.ids.end());
  while (std::ssize(memory.tail) >= kPageTokens) seal(*this, sequence);
  return Code::kOK;
}

}  // namespace dsv41::test
