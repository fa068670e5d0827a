#include "model/expert_cache.h"

#include <algorithm>
#include <cassert>

#include "model/checkpoint_files.h"

namespace dsv41::model {
namespace {

constexpr const char* kPieceNames[] = {"w1.weight", "w1.scale", "w2.weight", "w2.scale", "w3.weight", "w3.scale"};
constexpr int64_t kReadsAhead = 16;  // experts of a run that are being read: enough for the disk, and others get a turn
constexpr std::chrono::milliseconds kCancelPoll(2);

uint64_t round_up(uint64_t bytes) { return (bytes + kReadAlignment - 1) / kReadAlignment * kReadAlignment; }

uint64_t slots_for(uint64_t cache_bytes, uint64_t memory_bytes, uint64_t slot_bytes, uint64_t n_all, uint64_t k) {
  if (cache_bytes) return std::min(n_all, cache_bytes / slot_bytes);
  return std::min(n_all, std::max(memory_bytes / 4 / slot_bytes, 4 * k));
}

}  // namespace

// ---- Opening

Result<std::unique_ptr<ExpertCache>> ExpertCache::create(const Checkpoint& checkpoint, backend::Backend& backend,
                                                         const ReaderOptions& reader, uint64_t cache_bytes,
                                                         uint64_t memory_bytes) {
  if (!backend.can_stream_weights()) {
    return Status(Code::kUNSUPPORTED, std::string("backend ") + backend.name() + " takes no experts from disk");
  }
  const ModelConfig& config = checkpoint.config();
  std::unique_ptr<ExpertCache> cache(new ExpertCache);
  cache->backend_ = &backend;
  cache->n_experts_ = config.n_routed_experts;
  cache->inter_ = config.moe_intermediate_size;
  cache->dim_ = config.hidden_size;
  DSV41_TRY_ASSIGN(cache->reader_, AsyncReader::create(reader));
  DSV41_TRY(cache->measure(checkpoint));
  DSV41_TRY(cache->find_places(checkpoint));
  const uint64_t k = static_cast<uint64_t>(config.num_experts_per_tok);
  const uint64_t n_all = static_cast<uint64_t>(config.n_routed_experts * config.num_hidden_layers);
  const uint64_t n_slots = slots_for(cache_bytes, memory_bytes, cache->slot_bytes_, n_all, k);
  if (n_slots < k) {
    return Status(Code::kINVALID_ARG, "an expert cache of " + std::to_string(cache_bytes) + " bytes holds " +
                                          std::to_string(n_slots) + " experts, a token takes " + std::to_string(k) +
                                          ": give it " + std::to_string(k * cache->slot_bytes_) + " bytes at least");
  }
  Result<backend::Buffer> memory = backend.allocate(n_slots * cache->slot_bytes_, backend::MemoryUse::kWeights);
  if (!memory.ok()) return std::move(memory).status().with_context("expert cache");
  cache->memory_ = std::move(memory).value();
  cache->slots_ = LruSlots(static_cast<int32_t>(n_slots));
  cache->states_ = std::vector<Slot>(n_slots);
  return cache;
}

// All experts have the shapes of the config: the inventory has been checked.
Status ExpertCache::measure(const Checkpoint& checkpoint) {
  for (size_t piece = 0; piece < kPieces; ++piece) {
    const StoredTensor* tensor = checkpoint.find(std::string("layers.0.ffn.experts.0.") + kPieceNames[piece]);
    if (!tensor) return Status(Code::kINTERNAL, "an expert is not in the inventory");
    piece_bytes_[piece] = tensor->bytes;
    piece_at_[piece] = slot_bytes_;
    slot_bytes_ += round_up(tensor->bytes) + kReadAlignment;
  }
  return {};
}

Status ExpertCache::find_places(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  CheckpointFiles files(checkpoint, *reader_);
  places_.reserve(static_cast<size_t>(config.num_hidden_layers * n_experts_) * kPieces);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (int64_t e = 0; e < n_experts_; ++e) {
      const std::string stem = "layers." + std::to_string(layer) + ".ffn.experts." + std::to_string(e) + ".";
      for (const char* name : kPieceNames) {
        FilePlace place;
        DSV41_TRY(files.find(stem + name, &place.file, &place.offset));
        places_.push_back(place);
      }
    }
  }
  return {};
}

void ExpertCache::add_stats(DiskStats* stats) const {
  stats->expert_cache_bytes = bytes();
  stats->experts = reader_->stats();
  const std::lock_guard lock(mutex_);
  stats->experts_hit = n_hit_;
  stats->experts_missed = n_missed_;
  stats->expert_waits = n_waits_;
  stats->expert_wait_ns = wait_ns_;
}

void ExpertCache::count_wait(uint64_t ns) {
  const std::lock_guard lock(mutex_);
  n_waits_ += 1;
  wait_ns_ += ns;
}

// ---- Slots

Result<ExpertCache::Taken> ExpertCache::take(uint64_t expert) {
  const std::lock_guard lock(mutex_);
  int32_t slot = slots_.find(expert);
  if (slot >= 0) {
    slots_.pin(slot);
    ++n_hit_;
    return Taken{slot, false};
  }
  slot = slots_.claim(expert);
  if (slot < 0) return Taken{};
  // Others find the expert from now on and wait for its batch: it must have been started when the lock goes.
  Status loaded;
  try {
    loaded = load(expert, slot);
  } catch (...) {
    slots_.forget(slot);
    throw;
  }
  if (!loaded.ok()) {
    slots_.forget(slot);
    return loaded;
  }
  slots_.pin(slot);
  ++n_missed_;
  return Taken{slot, true};
}

// For a run that holds no slot: who holds one gives it back without waiting for us.
Result<ExpertCache::Taken> ExpertCache::take_waiting(uint64_t expert, const CancelFlag* cancel) {
  for (;;) {
    DSV41_TRY_ASSIGN(const Taken taken, take(expert));
    if (taken.slot >= 0) return taken;
    if (cancel && cancel->triggered()) return Status(Code::kCANCELLED, "cancelled while waiting for the expert cache");
    std::unique_lock lock(mutex_);
    if (slots_.n_pinned() == slots_.n_slots()) given_back_.wait_for(lock, kCancelPoll);
  }
}

// Under the lock.
Status ExpertCache::load(uint64_t expert, int32_t slot) {
  std::byte* const memory = memory_.data() + static_cast<uint64_t>(slot) * slot_bytes_;
  const FilePlace* const places = &places_[expert * kPieces];
  ReadPiece pieces[kPieces];
  for (size_t i = 0; i < kPieces; ++i) {
    std::byte* const to = memory + piece_at_[i] + places[i].offset % kReadAlignment;
    pieces[i] = {places[i].file, places[i].offset, piece_bytes_[i], to, true};
  }
  tensor::ExpertView& view = at(slot).view;
  tensor::WeightView* const matrices[] = {&view.w1, &view.w2, &view.w3};
  for (size_t m = 0; m < std::size(matrices); ++m) {
    backend::HostWeight weight;
    weight.format = tensor::WeightFormat::kFp4Row32;
    weight.rows = m == 1 ? dim_ : inter_;
    weight.cols = m == 1 ? inter_ : dim_;
    weight.codes = pieces[2 * m].to;
    weight.scales = pieces[2 * m + 1].to;
    DSV41_TRY_ASSIGN(const backend::DeviceWeight uploaded, backend_->upload(weight));
    assert(!uploaded.memory);
    *matrices[m] = uploaded.view;
  }
  reader_->start(pieces, &at(slot).batch);
  return {};
}

void ExpertCache::give_back(int32_t slot) {
  const std::lock_guard lock(mutex_);
  ReadBatch& batch = at(slot).batch;
  slots_.unpin(slot);
  if (!slots_.is_pinned(slot)) {
    if (!reader_->is_done(batch)) reader_->drop(batch);
    if (!reader_->wait(batch, nullptr).ok()) slots_.forget(slot);
  }
  given_back_.notify_all();
}

// ---- One layer of one step

ExpertRun::ExpertRun(ExpertCache& cache, int64_t layer, std::vector<int32_t> experts)
    : cache_(cache), first_key_(static_cast<uint64_t>(layer * cache.n_experts_)), experts_(std::move(experts)) {
  taken_.reserve(experts_.size());
  failure_ = extend();
}

ExpertRun::~ExpertRun() {
  for (size_t i = given_begin_; i < taken_.size(); ++i) cache_.give_back(taken_[i].slot);
}

Status ExpertRun::extend() {
  int64_t n_reading = std::count_if(taken_.begin() + static_cast<ptrdiff_t>(given_end_), taken_.end(),
                                    [](const ExpertCache::Taken& taken) { return taken.is_miss; });
  while (taken_.size() < experts_.size() && n_reading < kReadsAhead) {
    const uint64_t key = first_key_ + static_cast<uint64_t>(experts_[taken_.size()]);
    DSV41_TRY_ASSIGN(const ExpertCache::Taken taken, cache_.take(key));
    if (taken.slot < 0) return {};
    taken_.push_back(taken);
    n_reading += taken.is_miss;
  }
  return {};
}

Status ExpertRun::wait_for_first(const CancelFlag* cancel) {
  if (taken_.size() == given_end_) {
    const uint64_t key = first_key_ + static_cast<uint64_t>(experts_[given_end_]);
    DSV41_TRY_ASSIGN(const ExpertCache::Taken taken, cache_.take_waiting(key, cancel));
    taken_.push_back(taken);
  }
  ReadBatch& batch = cache_.at(taken_[given_end_].slot).batch;
  if (cache_.reader_->is_done(batch)) return cache_.reader_->wait(batch, nullptr);
  const uint64_t start = monotonic_ns();
  Status status = cache_.reader_->wait(batch, cancel);
  cache_.count_wait(monotonic_ns() - start);
  return status;
}

Result<std::span<const int32_t>> ExpertRun::next(const CancelFlag* cancel) {
  DSV41_TRY(failure_);
  for (; given_begin_ < given_end_; ++given_begin_) cache_.give_back(taken_[given_begin_].slot);
  if (given_end_ == experts_.size()) return std::span<const int32_t>();
  DSV41_TRY(extend());
  DSV41_TRY(wait_for_first(cancel));
  do {
    ++given_end_;
    DSV41_TRY(extend());
  } while (given_end_ < taken_.size() && cache_.reader_->is_done(cache_.at(taken_[given_end_].slot).batch) &&
           cache_.reader_->wait(cache_.at(taken_[given_end_].slot).batch, nullptr).ok());
  return std::span(experts_).subspan(given_begin_, given_end_ - given_begin_);
}

const tensor::ExpertView& ExpertRun::view(int32_t expert) const {
  const auto at = std::lower_bound(experts_.begin(), experts_.end(), expert);
  const size_t i = static_cast<size_t>(at - experts_.begin());
  assert(i >= given_begin_ && i < given_end_);
  return cache_.at(taken_[i].slot).view;
}

}  // namespace dsv41::model
