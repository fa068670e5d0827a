#include "session/session.h"

#include <algorithm>
#include <new>

namespace dsv41::session {

// ---- Beginning and end

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<Pool> pool, const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session);
  session->pool_ = std::move(pool);
  session->options_ = options;
  const int64_t limit = session->config().max_position_embeddings;
  if (options.max_tokens < 0 || options.max_tokens > limit) {
    return Status(Code::kINVALID_ARG, "max_tokens must be 0 to " + std::to_string(limit));
  }
  if (options.chunk_tokens < 0 || options.chunk_tokens > kMaxChunkTokens) {
    return Status(Code::kINVALID_ARG, "chunk_tokens must be 0 to " + std::to_string(kMaxChunkTokens));
  }
  if (options.salt.size() > kMaxSaltBytes) {
    return Status(Code::kINVALID_ARG, "a salt has at most " + std::to_string(kMaxSaltBytes) + " bytes");
  }
  if (session->options_.max_tokens == 0) session->options_.max_tokens = limit;
  if (session->options_.chunk_tokens == 0) session->options_.chunk_tokens = kDefaultChunkTokens;
  // The pool's keys stay as they are while a session is open, so it counts from here on.
  session->pool_->counters().sessions_open.fetch_add(1, std::memory_order_relaxed);
  session->is_counted_ = true;
  session->root_ = session->pool_->root(std::as_bytes(std::span(options.salt.data(), options.salt.size())));
  session->kv_ = kv::KvRef::create(session->pool_->pages(), session->root_, session->options_.max_tokens);
  session->pool_->counters().sessions_created.fetch_add(1, std::memory_order_relaxed);
  return session;
}

Session::~Session() {
  if (kv_) keep_windows(position_);
  if (is_counted_) pool_->counters().sessions_open.fetch_sub(1, std::memory_order_relaxed);
}

Result<std::unique_ptr<Session>> Session::fork(int64_t position) {
  if (position < 0 || position > position_) {
    return Status(Code::kINVALID_ARG, "cannot fork at " + std::to_string(position) + ": the session holds " +
                                          std::to_string(position_) + " tokens");
  }
  std::unique_ptr<Session> made(new Session);
  made->pool_ = pool_;
  made->options_ = options_;
  made->root_ = root_;
  const bool windows = covers(encoder_, position) || covers(decoder_, position);
  if (position == position_ || windows || position > kv_->n_sealed() * kv::kPageTokens) {
    made->kv_ = kv_.share();
    made->encoder_ = encoder_;
    made->decoder_ = decoder_;
    made->open_low_ = open_low_;
  } else {  // the window slot would be of no use: only the chain is shared
    const int64_t n_pages = kv::pages_for(position);
    const kv::PageId last = n_pages ? kv_->pages()[static_cast<size_t>(n_pages) - 1] : kv::kNoPage;
    if (last != kv::kNoPage) pool_->pages().add_user(last);
    made->kv_ = kv::KvRef::create_on(pool_->pages(), root_, options_.max_tokens, last);
    made->encoder_.present = made->decoder_.present = false;
  }
  pool_->counters().sessions_open.fetch_add(1, std::memory_order_relaxed);
  made->is_counted_ = true;
  made->position_ = position_;
  made->windows_provenance_ = windows_provenance_;
  made->tail_provenance_ = tail_provenance_;
  made->logprobs_ = logprobs_;
  made->logprobs_first_ = logprobs_first_;
  made->tail_ = tail_;
  made->n_stored_ = n_stored_;
  made->other_class_ = other_class_;
  if (position == position_) {
    made->logits_ = logits_;
  } else {
    made->cut(position, /*release_pages=*/false);
  }
  pool_->counters().sessions_created.fetch_add(1, std::memory_order_relaxed);
  pool_->counters().sessions_forked.fetch_add(1, std::memory_order_relaxed);
  return made;
}

// ---- Cuts

Status Session::truncate(int64_t position) {
  if (position < 0 || position > position_) {
    return Status(Code::kINVALID_ARG, "cannot truncate to " + std::to_string(position) + ": the session holds " +
                                          std::to_string(position_) + " tokens");
  }
  if (position == 0) {
    reset();
  } else if (position < position_) {
    keep_windows(position_);
    cut(position, /*release_pages=*/true);
  }
  return Status();
}

void Session::reset() {
  keep_windows(position_);
  kv_ = kv::KvRef::create(pool_->pages(), root_, options_.max_tokens);
  position_ = 0;
  tail_.clear();
  tail_provenance_.clear();
  encoder_ = decoder_ = kv::WindowRows{};
  open_low_ = 0;
  windows_provenance_ = nullptr;
  logits_ = logprobs_ = nullptr;
  n_stored_ = -1;
  other_class_ = false;
}

// What lies behind the full sealed pages after a cut inside one: its first rows. Reads pages that the session may have to
// give up for the cut.
Session::Tail Session::tail_in_chain(int64_t position) const {
  const int64_t first = position / kv::kPageTokens * kv::kPageTokens;
  Tail tail;
  tail.ids.resize(static_cast<size_t>(position - first));
  kv_->copy_ids(first, position, tail.ids.data());
  // A fork need not hold the page that begins at `position`.
  if (position > first) tail.provenance.push_back({first, provenance_of(first)});
  return tail;
}

void Session::cut(int64_t position, bool release_pages) {
  const bool in_chain = position < tail_first();
  cut(position, in_chain ? tail_in_chain(position) : Tail());
  if (release_pages) kv_.release_beyond(position);
}

void Session::cut(int64_t position, Tail tail_in_chain) {
  // What may run out of memory comes first.
  std::shared_ptr<const std::vector<float>> logprobs = logprobs_;
  if (logprobs && logprobs_first_ + static_cast<int64_t>(logprobs->size()) > position) {
    const int64_t n_left = std::max<int64_t>(0, position - logprobs_first_);
    logprobs = std::make_shared<const std::vector<float>>(logprobs->begin(), logprobs->begin() + n_left);
  }
  if (position >= tail_first()) {
    tail_.resize(static_cast<size_t>(position - tail_first()));
    std::erase_if(tail_provenance_, [&](const TailRange& range) { return range.first >= position; });
  } else {
    tail_ = std::move(tail_in_chain.ids);
    tail_provenance_ = std::move(tail_in_chain.provenance);
  }
  logprobs_ = std::move(logprobs);
  position_ = position;
  logits_ = nullptr;
  n_stored_ = std::min(n_stored_, position / kv::kPageTokens);
}

void Session::keep_windows(int64_t end) {
  kv::WindowPool& windows = pool_->windows();
  kv::PagePool& pages = pool_->pages();
  if (!windows.enabled() || end <= 0 || !kv_->has_windows() || !covers(encoder_, end) || !has_open_row(end)) return;
  const int64_t n_chain = end / kv::kPageTokens;
  if (n_chain > kv_->n_sealed()) return;
  try {
    const kv::PageId page = n_chain ? kv_->pages()[static_cast<size_t>(n_chain) - 1] : kv::kNoPage;
    kv::WindowSave save;
    save.end = end;
    save.tail.resize(static_cast<size_t>(end - n_chain * kv::kPageTokens));
    copy_tokens(n_chain * kv::kPageTokens, end, save.tail.data());
    save.encoder = encoder_;
    save.decoder = decoder_;
    save.n_encoder_layers = pool_->shape().n_encoder_layers;
    save.with_decoder = pool_->options().window_cache_decoder && covers(decoder_, end);
    save.provenance = windows_provenance_;
    if (!save.tail.empty()) save.tail_provenance = provenance_of(end - 1);
    if (windows.renew(*root_, {page, page == kv::kNoPage ? 0 : pages.serial(page)}, save)) return;
    Result<std::unique_ptr<backend::Queue>> queue = pages.backend().create_queue();
    if (!queue.ok()) return;
    Result<kv::WindowEntryRef> entry = kv::save_windows(*kv_, std::move(save), *queue.value());
    if (entry.ok()) windows.put(std::move(entry).value());
  } catch (const std::bad_alloc&) {  // less memory, more replay
  }
}

// ---- Reads

void Session::copy_tokens(int64_t from, int64_t to, int32_t* out) const {
  const int64_t n_chain = std::max<int64_t>(0, std::min(to, tail_first()) - from);
  if (n_chain > 0) kv_->copy_ids(from, from + n_chain, out);
  const int64_t first = std::max(from, tail_first());
  if (first < to) std::copy(tail_.begin() + (first - tail_first()), tail_.begin() + (to - tail_first()), out + n_chain);
}

std::vector<int32_t> Session::tokens() const {
  std::vector<int32_t> all(static_cast<size_t>(position_));
  copy_tokens(0, position_, all.data());
  return all;
}

int64_t Session::common_prefix(std::span<const int32_t> tokens) const {
  int64_t at = 0;
  while (at < tail_first()) {
    const std::span<const int32_t> ids = pool_->pages().ids(kv_->pages()[static_cast<size_t>(at / kv::kPageTokens)]);
    const std::span<const int32_t> rest = tokens.subspan(static_cast<size_t>(at));
    const int64_t n_equal = std::ranges::mismatch(ids, rest).in1 - ids.begin();
    at += n_equal;
    if (n_equal < kv::kPageTokens) return at;
  }
  return at + (std::ranges::mismatch(tail_, tokens.subspan(static_cast<size_t>(at))).in1 - tail_.begin());
}

Result<std::span<const float>> Session::logits() const {
  if (!logits_) return Status(Code::kSTATE, "the session has no logits: prefill or decode first");
  return std::span<const float>(*logits_);
}

Result<std::span<const float>> Session::logprobs(int64_t from) const {
  if (from < 0 || from > position_) return Status(Code::kINVALID_ARG, "no such position: " + std::to_string(from));
  const int64_t have_end = logprobs_ ? logprobs_first_ + static_cast<int64_t>(logprobs_->size()) : 0;
  if (!logprobs_ || logprobs_->empty() || from < logprobs_first_ || have_end != position_) {
    return Status(Code::kSTATE, "log-probabilities from token " + std::to_string(from) + " on were not computed");
  }
  return std::span<const float>(*logprobs_).subspan(static_cast<size_t>(from - logprobs_first_));
}

}  // namespace dsv41::session
