#include "model/forward.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "model/engram_rows.h"

namespace dsv41::model {
namespace {

template <class T>
Status copy_table(backend::Queue& queue, T* device, const std::vector<T>& host) {
  return queue.copy_to_device(device, host.data(), host.size() * sizeof(T));
}

template <class T>
const T* data_of(const tensor::WeightView& weight) {
  return static_cast<const T*>(weight.codes);
}

}  // namespace

// ---- A step: its rows and tables

Status Forward::begin_step(std::span<const StepSequence> sequences) {
  cancel_ = nullptr;
  sequences_.assign(sequences.begin(), sequences.end());
  DSV41_TRY(set_rows());
  DSV41_TRY(set_sequence_tables());
  return set_rope_tables();
}

Status Forward::set_rows() {
  n_rows_ = n_entries2_ = 0;
  row_offset_.clear();
  entry_offset2_.clear();
  host_ids_.clear();
  host_positions_.clear();
  host_sequences_.clear();
  host_entry_positions_.clear();
  if (static_cast<int64_t>(sequences_.size()) > max_sequences_)
    return Status(Code::kLIMIT, "too many sequences in a step");
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const StepSequence& sequence = sequences_[s];
    const int64_t begin = sequence.first_position, end = begin + sequence.n_rows;
    if (n_rows_ + sequence.n_rows > max_rows_ || end > max_positions_) return Status(Code::kLIMIT, "step too large");
    row_offset_.push_back(n_rows_);
    entry_offset2_.push_back(n_entries2_);
    for (int64_t p = begin; p < end; ++p) {
      host_positions_.push_back(static_cast<int32_t>(p));
      host_sequences_.push_back(static_cast<int32_t>(s));
      if (sequence.tokens) host_ids_.push_back(sequence.tokens[p - begin]);
      if (p % 2 == 1) host_entry_positions_.push_back(static_cast<int32_t>(p - 1));
    }
    n_rows_ += sequence.n_rows;
    n_entries2_ += end / 2 - begin / 2;
  }
  DSV41_TRY(copy_table(*queue_, positions_, host_positions_));
  DSV41_TRY(copy_table(*queue_, sequence_of_row_, host_sequences_));
  DSV41_TRY(copy_table(*queue_, entry_positions_, host_entry_positions_));
  return copy_table(*queue_, ids_, host_ids_);
}

Status Forward::set_sequence_tables() {
  host_attention_.clear();
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    for (size_t s = 0; s < sequences_.size(); ++s) {
      const StepSequence& sequence = sequences_[s];
      kernels::AttentionSequence entry;
      entry.ring = sequence.rings[static_cast<size_t>(layer)];
      entry.fresh_first = std::max(sequence.first_position, sequence.window_from);
      entry.fresh = fresh(layer) + (row_offset_[s] + entry.fresh_first - sequence.first_position) * window_row_bytes_;
      entry.floor = sequence.floor;
      if (config_.compress_ratio(layer)) entry.main = sequence.main[source_of(layer)];
      host_attention_.push_back(entry);
    }
  }
  host_keys_.clear();
  for (size_t source = 0; source < config_.kv_source_layer_ids.size(); ++source) {
    for (const StepSequence& sequence : sequences_) host_keys_.push_back(sequence.index[source]);
  }
  DSV41_TRY(copy_table(*queue_, attention_sequences_, host_attention_));
  return copy_table(*queue_, key_fields_, host_keys_);
}

Status Forward::set_rope_tables() {
  const int64_t n_pairs = config_.qk_rope_head_dim / 2;
  const float *plain = model_.rope_freqs(false), *yarn = model_.rope_freqs(true);
  DSV41_TRY(queue_->rope_table({plain, positions_, rope_plain_.cos, rope_plain_.sin, n_rows_, n_pairs}));
  DSV41_TRY(queue_->rope_table({yarn, positions_, rope_yarn_.cos, rope_yarn_.sin, n_rows_, n_pairs}));
  return queue_->rope_table({yarn, entry_positions_, rope_entries_.cos, rope_entries_.sin, n_entries2_, n_pairs});
}

// Engram rows depend on token ids only, so all layers' are known here.
Status Forward::set_engram_rows() {
  if (!model_.engram_hash()) return Status();
  const EngramHash& hash = *model_.engram_hash();
  const int64_t n_layers = static_cast<int64_t>(config_.engram_layer_ids.size()), n_columns = hash.n_columns();
  host_engram_rows_.resize(static_cast<size_t>(n_layers * n_rows_ * n_columns));
  std::vector<int32_t> compressed;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const StepSequence& sequence = sequences_[s];
    compressed.clear();
    for (int64_t i = 0; i < sequence.n_history; ++i) compressed.push_back(hash.compress(sequence.history[i]));
    for (int64_t i = 0; i < sequence.n_rows; ++i) compressed.push_back(hash.compress(sequence.tokens[i]));
    for (int64_t e = 0; e < n_layers; ++e) {
      hash.hash(e, compressed, sequence.n_rows, host_engram_rows_.data() + (e * n_rows_ + row_offset_[s]) * n_columns);
    }
  }
  fetch_engram_rows();
  return copy_table(*queue_, engram_rows_, host_engram_rows_);
}

// From disk: ids become places among the staged rows, which are read while the layers below run.
void Forward::fetch_engram_rows() {
  const int64_t n_columns = config_.engram_n_columns(), dim = config_.engram_head_dim;
  for (size_t e = 0; e < engram_fetches_.size(); ++e) {
    const int64_t n_ids = n_rows_ * n_columns, first = static_cast<int64_t>(e) * max_rows_ * n_columns;
    const std::span<int64_t> all(host_engram_rows_);
    engram_fetches_[e]->begin(all.subspan(e * static_cast<size_t>(n_ids), static_cast<size_t>(n_ids)),
                              engram_codes_ + first * dim, engram_scales_ + first * (dim / 32));
  }
}

Result<tensor::WeightView> Forward::engram_table(int64_t e, const tensor::WeightView& table) {
  if (engram_fetches_.empty()) return table;
  DSV41_TRY(engram_fetches_[static_cast<size_t>(e)]->finish(cancel_));
  const int64_t n_staged = max_rows_ * config_.engram_n_columns();
  tensor::WeightView staged = table;
  staged.rows = n_staged;
  staged.codes = engram_codes_ + e * n_staged * table.cols;
  staged.scales = engram_scales_ + e * n_staged * (table.cols / 32);
  return staged;
}

// ---- The halves

Status Forward::embed() {
  return queue_->embed_streams({model_.weights().embed, ids_, streams_, pre_, n_rows_, config_.hc_mult});
}

Status Forward::begin_encoder(std::span<const StepSequence> sequences) {
  DSV41_TRY(begin_step(sequences));
  DSV41_TRY(set_engram_rows());
  return embed();
}

Status Forward::run_encoder(std::span<const StepSequence> sequences, const CancelFlag* cancel) {
  DSV41_TRY(begin_encoder(sequences));
  DSV41_TRY(run_layers(0, config_.decoder_start(), cancel));
  return run_first_decoder_kv();
}

// It needs only what the encoder leaves (attention.md 7.5, step 1).
Status Forward::run_first_decoder_kv() {
  DSV41_TRY(collapse_and_norm(pre_, weights(config_.decoder_start()).attn_norm));
  return global_kv(config_.decoder_start());
}

Status Forward::run_decoder(std::span<const StepSequence> sequences, const CancelFlag* cancel) {
  DSV41_TRY(begin_step(sequences));
  return run_layers(config_.decoder_start(), config_.num_hidden_layers, cancel);
}

Status Forward::run_layers(int64_t first, int64_t last, const CancelFlag* cancel) {
  cancel_ = cancel;
  for (int64_t layer = first; layer < last; ++layer) {
    DSV41_TRY(check_wanted(layer));
    DSV41_TRY(engram(layer));
    DSV41_TRY(run_layer(layer, nullptr));
  }
  cancel_ = nullptr;
  return Status();
}

// A layer of a long chunk takes seconds at the released size, so it asks before each of its larger parts.
Status Forward::check_wanted(int64_t layer) {
  if (!cancel_ || !cancel_->triggered()) return Status();
  cancel_ = nullptr;
  return Status(Code::kCANCELLED, "cancelled in layer " + std::to_string(layer));
}

Status Forward::engram(int64_t layer) {
  const int64_t e = config_.engram_index(layer);
  if (e < 0) return Status();
  const EngramWeights& w = weights(layer).engram;
  const int64_t n_columns = config_.engram_n_columns(), wide = n_columns * config_.engram_head_dim;
  DSV41_TRY_ASSIGN(const tensor::WeightView table, engram_table(e, w.table));
  DSV41_TRY(queue_->engram_gather({table, engram_rows_ + e * n_rows_ * n_columns, engram_e_, n_rows_, n_columns}));
  DSV41_TRY(quantise(engram_e_, n_rows_, wide, &wide_quant_));
  DSV41_TRY(fp8_linear(w.wkv, wide_quant_, n_rows_, engram_kv_));
  return queue_->engram_gate({streams_, engram_kv_, data_of<uint16_t>(w.q_weight), data_of<uint16_t>(w.k_weight),
                              n_rows_, config_.hc_mult, config_.hidden_size, config_.rms_norm_eps});
}

// ---- One layer (model.md 4.2): each site is collapsed with the `pre` that the site before it computed

Status Forward::run_layer(int64_t layer, const LayerChoices* choices) {
  const LayerWeights& w = weights(layer);
  DSV41_TRY(coefficients(w.hc_attn, pre_ffn_));
  DSV41_TRY(collapse_and_norm(pre_, w.attn_norm));
  DSV41_TRY(attention(layer, choices));
  DSV41_TRY(combine());
  DSV41_TRY(coefficients(w.hc_ffn, pre_));
  DSV41_TRY(collapse_and_norm(pre_ffn_, w.ffn_norm));
  DSV41_TRY(moe(layer, choices));
  return combine();
}

Status Forward::coefficients(const MhcSite& site, float* pre) {
  kernels::MhcCoefficientsArgs args;
  args.streams = streams_;
  args.fn = data_of<float>(site.fn);
  args.base = data_of<float>(site.base);
  args.scale = data_of<float>(site.scale);
  args.pre = pre;
  args.post = post_;
  args.comb = comb_;
  args.n_rows = n_rows_;
  args.n_streams = config_.hc_mult;
  args.dim = config_.hidden_size;
  args.sinkhorn_iters = config_.hc_sinkhorn_iters;
  args.norm_eps = config_.rms_norm_eps;
  args.hc_eps = config_.hc_eps;
  return queue_->mhc_coefficients(args);
}

Status Forward::collapse_and_norm(const float* pre, const tensor::WeightView& norm) {
  DSV41_TRY(queue_->mhc_collapse({streams_, pre, x_, n_rows_, config_.hc_mult, config_.hidden_size}));
  return norm_in_place(x_, n_rows_, norm);
}

Status Forward::combine() {
  return queue_->mhc_combine({streams_, o_, post_, comb_, n_rows_, config_.hc_mult, config_.hidden_size});
}

// ---- Head

Status Forward::logits(int64_t first_row, int64_t n_rows, float* host) {
  const int64_t n = config_.hc_mult, vocab = config_.vocab_size;
  assert(first_row >= 0 && first_row + n_rows <= n_rows_);
  for (int64_t done = 0; done < n_rows; done += kLogitsRows) {
    const int64_t row = first_row + done, count = std::min(kLogitsRows, n_rows - done);
    DSV41_TRY(queue_->mhc_collapse(
        {streams_ + row * stream_row_values(), pre_ + row * n, x_, count, n, config_.hidden_size}));
    DSV41_TRY(norm_in_place(x_, count, model_.weights().norm));
    kernels::LinearArgs head;
    head.weight = model_.weights().head;
    head.x = x_;
    head.x_stride = config_.hidden_size;
    head.y = logits_;
    head.y_stride = vocab;
    head.y_is_f32 = true;
    head.n_rows = count;
    DSV41_TRY(queue_->linear(head));
    float* out = host + done * vocab;
    DSV41_TRY(queue_->copy_to_host(out, logits_, static_cast<uint64_t>(count * vocab) * sizeof(float)));
    DSV41_TRY(queue_->wait());
    if (!std::all_of(out, out + count * vocab, [](float x) { return std::isfinite(x); })) {
      return Status(Code::kNUMERIC, "NaN or infinity in the logits");
    }
  }
  return Status();
}

// ---- Commits

Status Forward::commit_windows(std::span<const StepSequence> sequences, int64_t first_layer, int64_t last_layer) {
  for (int64_t layer = first_layer; layer < last_layer; ++layer) {
    const uint8_t* records = fresh(layer);
    for (const StepSequence& sequence : sequences) {
      const tensor::WindowRing& ring = sequence.rings[static_cast<size_t>(layer)];
      const int64_t below = std::max<int64_t>(0, sequence.window_from - sequence.first_position);
      const int64_t skip = std::max(below, sequence.n_rows - ring.capacity);
      if (skip < sequence.n_rows) {
        DSV41_TRY(queue_->store_window(
            {records + skip * window_row_bytes_, ring, sequence.first_position + skip, sequence.n_rows - skip}));
      }
      records += sequence.n_rows * window_row_bytes_;
    }
  }
  return queue_->wait();
}

Status Forward::commit_encoder(std::span<const StepSequence> sequences) {
  for (size_t source = 0; source < config_.kv_source_layer_ids.size(); ++source) {
    if (config_.compress_ratio(config_.kv_source_layer_ids[source]) != 2) continue;
    int64_t at = n_ratio2_before(source) * max_rows_ * config_.head_dim;
    for (const StepSequence& sequence : sequences) {
      const int64_t below = std::max<int64_t>(0, sequence.window_from - sequence.first_position);
      if (below < sequence.n_rows) {
        const int64_t from = at + below * config_.head_dim;
        DSV41_TRY(
            queue_->store_open_rows({compressor_k_ + from, compressor_gate_ + from, sequence.open_rows[source],
                                     sequence.first_position + below, sequence.n_rows - below, config_.head_dim}));
      }
      at += sequence.n_rows * config_.head_dim;
    }
  }
  return commit_windows(sequences, 0, config_.decoder_start());
}

Status Forward::commit_decoder(std::span<const StepSequence> sequences) {
  return commit_windows(sequences, config_.decoder_start(), config_.num_hidden_layers);
}

// ---- Pieces

Status Forward::quantise(const uint16_t* x, int64_t n_rows, int64_t dim, Quantised* out) {
  return queue_->act_quant({x, dim, out->codes, dim, out->scales, dim / 32, n_rows, dim});
}

Status Forward::fp8_linear(const tensor::WeightView& weight, const Quantised& x, int64_t n_rows, uint16_t* y) {
  kernels::LinearArgs args;
  args.weight = weight;
  args.x_codes = x.codes;
  args.x_scales = x.scales;
  args.y = y;
  args.y_stride = weight.rows;
  args.n_rows = n_rows;
  return queue_->linear(args);
}

Status Forward::norm_in_place(uint16_t* x, int64_t n_rows, const tensor::WeightView& weight) {
  const int64_t dim = weight.cols;
  return queue_->rms_norm({x, data_of<uint16_t>(weight), x, dim, dim, n_rows, dim, config_.rms_norm_eps});
}

Status Forward::rotate(uint16_t* x, int64_t n_rows, int64_t n_heads, int64_t dim, const RopeRows& rows, bool inverse) {
  return queue_->rope_apply(
      {x, n_heads * dim, rows.cos, rows.sin, n_rows, n_heads, dim, config_.qk_rope_head_dim / 2, inverse});
}

size_t Forward::source_of(int64_t layer) const {
  const std::vector<int>& sources = config_.kv_source_layer_ids;
  return static_cast<size_t>(std::upper_bound(sources.begin(), sources.end(), layer) - sources.begin()) - 1;
}

int64_t Forward::n_ratio2_before(size_t source) const {
  int64_t n = 0;
  for (size_t i = 0; i < source; ++i) n += config_.compress_ratio(config_.kv_source_layer_ids[i]) == 2;
  return n;
}

int64_t Forward::max_position() const {
  int64_t position = 0;
  for (const StepSequence& sequence : sequences_) {
    position = std::max(position, sequence.first_position + sequence.n_rows - 1);
  }
  return position;
}

}  // namespace dsv41::model
