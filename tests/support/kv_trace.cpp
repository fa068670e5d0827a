#include "support/kv_trace.h"

#include <algorithm>

namespace dsv41::test {
namespace {

using kv::kPageTokens;
using kv::KvRef;
using kv::PageId;

// Few pages, so that everything is scarce all the time.
constexpr int64_t kPages = 40, kSlots = 5, kMaxPages = 8, kMaxSequences = 9;
constexpr int64_t kMaxTokens = kMaxPages * kPageTokens;

std::string text_of(const std::vector<uint64_t>& numbers) {
  std::string text;
  for (uint64_t number : numbers) text += " " + std::to_string(number);
  return text;
}

}  // namespace

std::vector<std::vector<int32_t>> KvTrace::books() {
  std::vector<std::vector<int32_t>> books(4, random_ids(kMaxTokens + 1, 1));
  for (size_t b = 1; b < books.size(); ++b) {
    // They part inside the second page, at its end, and inside the fourth.
    const size_t from = b == 1 ? 200 : b == 2 ? 256 : 500;
    for (size_t i = from; i < books[b].size(); ++i) books[b][i] += static_cast<int32_t>(b);
  }
  return books;
}

KvTrace::KvTrace(uint64_t seed)
    : random_(seed),
      kv_({kPages, kSlots, 128, /*poison_pages=*/true}),
      model_{kPages, kSlots, kMaxPages, tiny_kv_geometry().window_rows()} {}

// ---- Operations

std::string KvTrace::operate(backend::Queue& queue) {
  const uint64_t what = random(100);
  std::string difference;
  touched_ = -1;
  if (refs_.empty() || (what < 6 && refs_.size() < kMaxSequences)) {
    create();
  } else if (what < 50) {
    difference = append(queue);
  } else if (what < 60 && refs_.size() < kMaxSequences) {
    difference = look_up();
  } else if (what < 69 && refs_.size() < kMaxSequences) {
    fork();
  } else if (what < 78) {
    truncate();
  } else if (what < 88) {
    release(any_sequence());
  } else if (what < 90) {
    const uint64_t most = random(kPages + 1);
    last_ = "trim to " + std::to_string(most);
    const auto n = static_cast<int64_t>(kv_.pool->trim(most));
    if (n != model_.trim(static_cast<int64_t>(most))) difference = "another number of pages was evicted";
  } else if (what < 94) {
    pin_or_unpin();
  } else {
    begin_or_end_step();
  }
  if (difference.empty()) difference = compare_counts();
  if (difference.empty() && touched_ >= 0) difference = compare_sequence(touched_);
  return difference.empty() ? "" : last_ + ": " + difference;
}

int KvTrace::any_sequence() { return std::next(refs_.begin(), static_cast<int64_t>(random(refs_.size())))->first; }

void KvTrace::create() {
  touched_ = next_name_++;
  last_ = "create " + std::to_string(touched_);
  refs_[touched_] = kv_.sequence(kMaxTokens);
  model_.sequences[touched_].variant = chance(10) ? 50 : 0;  // other numerics: other bytes, exact all the same
  book_[touched_] = random(books_.size());
}

int64_t KvTrace::n_to_append(int64_t position) {
  const int64_t to_boundary = kPageTokens - position % kPageTokens;
  const int64_t choices[] = {1,
                             static_cast<int64_t>(1 + random(8)),
                             to_boundary,
                             to_boundary + 1,
                             std::max<int64_t>(1, to_boundary - 1),
                             static_cast<int64_t>(1 + random(400))};
  return choices[random(6)];
}

std::string KvTrace::append(backend::Queue& queue) {
  const int name = touched_ = any_sequence();
  if (chance(5)) book_[name] = random(books_.size());
  const auto at = static_cast<int64_t>(model_.sequences[name].ids.size());
  const int64_t n = std::min(n_to_append(at), kMaxTokens + 1 - at);  // sometimes one too many
  ModelAppend what;
  what.ids = std::span(books_[book_[name]]).subspan(static_cast<size_t>(at), static_cast<size_t>(n));
  what.keep_windows = chance(50);
  const int donor = any_sequence();
  if (donor != name && chance(30)) what.donor = donor;
  what.fails_allocation = chance(5);
  last_ = "append " + std::to_string(n) + " to " + std::to_string(name) + " at " + std::to_string(at);
  if (model_.is_tight(name, what)) end_steps();  // the call would wait for them

  if (what.fails_allocation) kv_.backend->fail_allocation(1 + static_cast<int64_t>(random(3)));
  KvRef& ref = refs_[name];
  const Status status =
      ref.make_writable({at, at + n, what.keep_windows}, queue, what.donor < 0 ? nullptr : &refs_[what.donor]);
  kv_.backend->fail_allocation(0);
  const Code expected = model_.append(name, what);
  if (status.code() != expected) return std::string(code_name(status.code())) + " for " + code_name(expected);
  if (!status.ok()) return "";

  const std::vector<uint64_t> stamps = model_.stamps(name);
  write_rows(*ref, at, std::span(stamps).subspan(static_cast<size_t>(at)));
  for (int64_t p = at; p < at + n; ++p) write_window_row(*ref, p, stamps[static_cast<size_t>(p)]);
  write_open_rows(*ref, stamps.back());
  const ModelSequence& sequence = model_.sequences[name];
  const auto sealed = static_cast<size_t>(ref->n_sealed() * kPageTokens);
  return std::string(ref.seal(std::span(sequence.ids).subspan(sealed), hits(sequence.provenance), queue).message());
}

std::string KvTrace::look_up() {
  const size_t book = random(books_.size());
  const auto tokens = std::span(books_[book]).first(random(books_[book].size()));
  const auto most = static_cast<int64_t>(random(kMaxPages + 1));
  const bool exact_only = chance(25);
  last_ = "look up " + std::to_string(tokens.size()) + " tokens";
  const PageId found = kv_.pool->match(*kv_.root, tokens, most, exact_only);
  const ModelPageRef expected = model_.match(tokens, most, exact_only);
  const int64_t n = found == kv::kNoPage ? 0 : kv_.pool->depth(found);
  if (n != depth(expected)) {
    return std::to_string(n) + " pages found for " + std::to_string(depth(expected));
  }
  if (n == 0) return "";
  if (!std::ranges::equal(kv_.pool->ids(found), page_of(expected->ids, n - 1))) return "other ids";
  if (!kv::equal(kv_.pool->provenance(found), hits(expected->provenance))) return "another provenance";
  touched_ = next_name_++;
  book_[touched_] = book;
  refs_[touched_] = KvRef::create_on(*kv_.pool, kv_.root, kMaxTokens, found);
  model_.adopt(touched_, expected);
  ModelSequence& sequence = model_.sequences[touched_];
  sequence.provenance = expected->provenance;
  if (!sequence.provenance.empty() || chance(30)) sequence.provenance.push_back(n * kPageTokens);  // bounded replay
  for (int64_t hit : sequence.provenance) sequence.variant = sequence.variant * 31 + static_cast<uint64_t>(hit);
  return "";
}

void KvTrace::fork() {
  const int from = any_sequence();
  const size_t length = model_.sequences[from].ids.size(), at = chance(50) ? length : random(length + 1);
  touched_ = next_name_++;
  last_ = "fork " + std::to_string(from) + " at " + std::to_string(at);
  refs_[touched_] = refs_[from].share();
  book_[touched_] = book_[from];
  model_.sequences[touched_] = model_.sequences[from];
  model_.sequences[touched_].ids.resize(at);
}

void KvTrace::truncate() {
  touched_ = any_sequence();
  const auto at = static_cast<int64_t>(random(model_.sequences[touched_].ids.size() + 1));
  last_ = "truncate " + std::to_string(touched_) + " to " + std::to_string(at);
  refs_[touched_].release_beyond(at);
  model_.truncate(touched_, at);
}

void KvTrace::release(int name) {
  last_ = "release " + std::to_string(name);
  refs_.erase(name);
  model_.release(name);
}

void KvTrace::pin_or_unpin() {
  last_ = "pin";
  const int name = any_sequence();
  if (pins_.size() < 3 && chance(40) && refs_[name]->n_sealed()) {
    pins_.push_back({refs_[name]->chain_end(), model_.sequences[name].memory->chain});
    kv_.pool->pin(pins_.back().page);
    model_.pins.insert(pins_.back().model);
  } else if (!pins_.empty()) {
    last_ = "unpin";
    std::swap(pins_[random(pins_.size())], pins_.back());
    unpin();
  }
}

void KvTrace::unpin() {
  kv_.pool->unpin(pins_.back().page);
  model_.pins.erase(model_.pins.find(pins_.back().model));
  model_.settle();
  pins_.pop_back();
}

void KvTrace::begin_or_end_step() {
  last_ = "step";
  if (steps_.size() < 3 && chance(50)) {
    steps_.push_back(kv_.pool->begin_step());
    model_.begin_step(steps_.back());
  } else if (!steps_.empty()) {
    std::swap(steps_[random(steps_.size())], steps_.back());
    kv_.pool->end_step(steps_.back());
    model_.end_step(steps_.back());
    steps_.pop_back();
  }
}

void KvTrace::end_steps() {
  for (uint64_t step : steps_) {
    kv_.pool->end_step(step);
    model_.end_step(step);
  }
  steps_.clear();
}

// ---- Comparisons

std::string KvTrace::compare_counts() const {
  if (const std::string fault = kv_.fault(); !fault.empty()) return fault;
  const kv::PagePoolStats s = kv_.pool->stats();
  const std::vector<uint64_t> counts = {s.global_pages_sealed,  s.global_pages_pinned_only, s.pages_sealed,
                                        s.pages_adopted,        s.pages_replaced,           s.pages_evicted,
                                        s.global_pages_free,    s.global_pages_private,     s.global_pages_cached,
                                        s.global_pages_retired, s.global_pages_unindexed,   s.window_slots_free};
  const std::vector<uint64_t> expected = model_.counts();
  return counts == expected ? "" : "counts" + text_of(counts) + " for" + text_of(expected);
}

std::string KvTrace::compare_sequence(int name) const {
  const kv::SequenceKv& kv = *refs_.at(name);
  const ModelSequence& sequence = model_.sequences.at(name);
  const ModelMemory& memory = *sequence.memory;
  const std::string who = "sequence " + std::to_string(name) + ": ";
  if (kv.n_sealed() != depth(memory.chain)) return who + "another number of sealed pages";
  if (kv.n_pages() != kv.n_sealed() + memory.n_private) return who + "another number of pages";
  if (kv.has_windows() != memory.has_slot) return who + "a window slot too many or too few";
  if (!rows_hold(kv, model_.stamps(name))) return who + "other rows";
  if (memory.chain) {
    std::vector<int32_t> ids(memory.chain->ids.size());
    kv.copy_ids(0, std::ssize(ids), ids.data());
    if (ids != memory.chain->ids) return who + "other ids";
  }
  for (const auto& [row, held] : memory.window) {
    if (!window_row_holds(kv, held.first, held.second)) return who + "another window row";
  }
  if (memory.open_rows && !open_rows_hold(kv, memory.open_rows)) return who + "other open rows";
  return "";
}

std::string KvTrace::compare_sequences() const {
  for (const auto& [name, ref] : refs_) {
    if (std::string difference = compare_sequence(name); !difference.empty()) return difference;
  }
  return "";
}

std::string KvTrace::finish() {
  end_steps();
  while (!refs_.empty()) release(refs_.begin()->first);
  while (!pins_.empty()) unpin();
  kv_.pool->trim(0);
  model_.trim(0);
  if (std::string difference = compare_counts(); !difference.empty()) return difference;
  const kv::PagePoolStats stats = kv_.pool->stats();
  return stats.global_pages_free == kPages && stats.window_slots_free == kSlots ? "" : "not everything is free";
}

}  // namespace dsv41::test
