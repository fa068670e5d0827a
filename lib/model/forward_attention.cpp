// The attention sublayer of a step (attention.md 2 to 6): from x_ to o_.
#include <algorithm>
#include <cmath>

#include "model/forward.h"

namespace dsv41::model {

Status Forward::attention(int64_t layer, const LayerChoices* choices) {
  DSV41_TRY(quantise(x_, n_rows_, config_.hidden_size, &x_quant_));
  DSV41_TRY(query_path(layer));
  DSV41_TRY(check_wanted(layer));
  DSV41_TRY(window_rows(layer));
  // The first decoder layer's records were written by the encoder half, for all tokens.
  if (config_.owns_kv(layer) && layer != config_.decoder_start()) DSV41_TRY(global_kv(layer));
  DSV41_TRY(check_wanted(layer));
  if (config_.owns_index(layer)) DSV41_TRY(select(layer, choices));
  DSV41_TRY(check_wanted(layer));
  DSV41_TRY(attend(layer));
  DSV41_TRY(check_wanted(layer));
  return output_path(layer);
}

// qr = norm(wq_a x); q = rope(wq_b qr)
Status Forward::query_path(int64_t layer) {
  const LayerWeights& w = weights(layer);
  DSV41_TRY(fp8_linear(w.wq_a, x_quant_, n_rows_, qr_));
  DSV41_TRY(norm_in_place(qr_, n_rows_, w.q_norm));
  DSV41_TRY(quantise(qr_, n_rows_, config_.q_lora_rank, &qr_quant_));
  DSV41_TRY(fp8_linear(w.wq_b, qr_quant_, n_rows_, q_));
  return rotate(q_, n_rows_, config_.num_attention_heads, config_.head_dim, rope_of(layer), /*inverse=*/false);
}

// Window records of the step's rows: rope(norm(wkv x)), quantised straight into the layer's scratch records.
Status Forward::window_rows(int64_t layer) {
  const LayerWeights& w = weights(layer);
  const int64_t dim = config_.head_dim;
  DSV41_TRY(fp8_linear(w.wkv, x_quant_, n_rows_, window_));
  DSV41_TRY(norm_in_place(window_, n_rows_, w.kv_norm));
  DSV41_TRY(rotate(window_, n_rows_, 1, dim, rope_of(layer), /*inverse=*/false));
  uint8_t* records = fresh(layer);
  return queue_->act_quant({window_, dim, records, window_row_bytes_, records + dim, window_row_bytes_, n_rows_, dim});
}

// ---- Global KV of an owner (attention.md 4.4): index keys come from the latent before rotation, main records after it

Status Forward::global_kv(int64_t layer) {
  const LayerWeights& w = weights(layer);
  int64_t n_entries = 0;
  DSV41_TRY(compress(layer, &n_entries));
  if (n_entries == 0) return Status();
  const RopeRows& rope = config_.compress_ratio(layer) == 2 ? rope_entries_ : rope_yarn_;

  kernels::LinearArgs key;
  key.weight = w.indexer.wk;
  key.x = latent_;
  key.x_stride = config_.head_dim;
  key.y = key_;
  key.y_stride = config_.index_head_dim;
  key.n_rows = n_entries;
  DSV41_TRY(queue_->linear(key));
  DSV41_TRY(norm_in_place(key_, n_entries, w.indexer.k_norm));
  DSV41_TRY(rotate(key_, n_entries, 1, config_.index_head_dim, rope, /*inverse=*/false));
  DSV41_TRY(store(layer, /*is_index=*/true, n_entries, config_.index_head_dim));

  DSV41_TRY(rotate(latent_, n_entries, 1, config_.head_dim, rope, /*inverse=*/false));
  return store(layer, /*is_index=*/false, n_entries, config_.head_dim);
}

// Normed latents of the entries that complete in this step, all sequences behind each other, in latent_.
Status Forward::compress(int64_t layer, int64_t* n_entries) {
  const LayerWeights& w = weights(layer);
  const int64_t dim = config_.head_dim;
  kernels::LinearArgs project;
  project.weight = w.compressor.wkv;
  project.x = x_;
  project.x_stride = config_.hidden_size;
  project.y = latent_;
  project.y_stride = dim;
  project.n_rows = n_rows_;
  if (config_.compress_ratio(layer) == 1) {
    *n_entries = n_rows_;
    DSV41_TRY(queue_->linear(project));
    return norm_in_place(latent_, n_rows_, w.compressor.norm);
  }
  const size_t source = source_of(layer);
  float* k = compressor_k_ + n_ratio2_before(source) * max_rows_ * dim;
  float* gate = compressor_gate_ + n_ratio2_before(source) * max_rows_ * dim;
  project.y_is_f32 = true;
  project.y = k;
  DSV41_TRY(queue_->linear(project));
  project.weight = w.compressor.wgate;
  project.y = gate;
  DSV41_TRY(queue_->linear(project));
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const StepSequence& sequence = sequences_[s];
    kernels::CompressorPoolArgs pool;
    pool.k = k + row_offset_[s] * dim;
    pool.gate = gate + row_offset_[s] * dim;
    pool.open_rows = sequence.open_rows[source];
    pool.pooled = latent_ + entry_offset2_[s] * dim;
    pool.first_position = sequence.first_position;
    pool.n_rows = sequence.n_rows;
    pool.first_entry = sequence.first_position / 2;
    pool.n_entries = (sequence.first_position + sequence.n_rows) / 2 - pool.first_entry;
    pool.dim = dim;
    DSV41_TRY(queue_->compressor_pool(pool));
  }
  *n_entries = n_entries2_;
  return norm_in_place(latent_, n_entries2_, w.compressor.norm);
}

// Quantises the step's entries (keys in key_, main latents in latent_) and writes them to the sequences' pages.
Status Forward::store(int64_t layer, bool is_index, int64_t n_entries, int64_t dim) {
  const int64_t ratio = config_.compress_ratio(layer), n_codes = dim / 2, n_scales = is_index ? dim / 32 : dim / 16;
  kernels::Fp4QuantArgs quant;
  quant.format = is_index ? kernels::Fp4Format::kIndex : kernels::Fp4Format::kMain;
  quant.x = is_index ? key_ : latent_;
  quant.x_stride = dim;
  quant.codes = record_quant_.codes;
  quant.code_stride = n_codes;
  quant.scales = record_quant_.scales;
  quant.scale_stride = n_scales;
  quant.n_rows = n_entries;
  quant.dim = dim;
  DSV41_TRY(queue_->fp4_quant(quant));
  const size_t source = source_of(layer);
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const StepSequence& sequence = sequences_[s];
    const int64_t first_done = sequence.first_position / ratio,
                  end = (sequence.first_position + sequence.n_rows) / ratio;
    const int64_t first = std::max(first_done, sequence.records_from / ratio);
    if (first >= end) continue;
    const int64_t at = (ratio == 2 ? entry_offset2_[s] : row_offset_[s]) + first - first_done;
    DSV41_TRY(queue_->store_records({record_quant_.codes + at * n_codes, record_quant_.scales + at * n_scales,
                                     is_index ? sequence.index[source] : sequence.main[source], first, end - first}));
  }
  return Status();
}

// ---- Selection (attention.md 5): fills selected_ and n_selected_ for this layer and the Reuse layers after it

Status Forward::select(int64_t layer, const LayerChoices* choices) {
  const int64_t k = config_.index_topk;
  if (choices && choices->selected) {
    DSV41_TRY(
        queue_->copy_to_device(selected_, choices->selected, static_cast<uint64_t>(n_rows_ * k) * sizeof(int32_t)));
    DSV41_TRY(
        queue_->copy_to_device(n_selected_, choices->n_selected, static_cast<uint64_t>(n_rows_) * sizeof(int32_t)));
    return queue_->wait();
  }
  DSV41_TRY(score_and_select(layer, (max_position() + 1) / config_.compress_ratio(layer)));
  if (choices && choices->out_selected) {
    DSV41_TRY(
        queue_->copy_to_host(choices->out_selected, selected_, static_cast<uint64_t>(n_rows_ * k) * sizeof(int32_t)));
    DSV41_TRY(
        queue_->copy_to_host(choices->out_n_selected, n_selected_, static_cast<uint64_t>(n_rows_) * sizeof(int32_t)));
    return queue_->wait();
  }
  return Status();
}

// max_visible: the most entries that any row of the step sees. Where all rows take everything, nothing is scored.
Status Forward::score_and_select(int64_t layer, int64_t max_visible) {
  const LayerWeights& w = weights(layer);
  const int64_t heads = config_.index_n_heads, dim = config_.index_head_dim, k = config_.index_topk;
  const bool publishes = layer == config_.candidate_source_layer_id;
  if (publishes) candidates_restrict_ = max_visible > config_.candidate_topk_blocks * config_.candidate_block_size;
  const bool restricted = config_.uses_candidates(layer) && candidates_restrict_;
  const bool scored = max_visible > k;

  kernels::IndexScoresArgs scores;
  if (scored) {
    DSV41_TRY(fp8_linear(w.indexer.wq_b, qr_quant_, n_rows_, index_q_));
    DSV41_TRY(rotate(index_q_, n_rows_, heads, dim, rope_of(layer), /*inverse=*/false));
    kernels::Fp4QuantArgs quant{kernels::Fp4Format::kIndex,
                                index_q_,
                                dim,
                                index_q_quant_.codes,
                                dim / 2,
                                index_q_quant_.scales,
                                dim / 32,
                                n_rows_ * heads,
                                dim};
    DSV41_TRY(queue_->fp4_quant(quant));
    kernels::LinearArgs project;
    project.weight = w.indexer.weights_proj;
    project.x = x_;
    project.x_stride = config_.hidden_size;
    project.y = head_weights_;
    project.y_stride = heads;
    project.n_rows = n_rows_;
    DSV41_TRY(queue_->linear(project));
    scores.factor = 1 / std::sqrt(static_cast<double>(dim * heads));
    scores.keys = key_fields_ + static_cast<int64_t>(source_of(layer) * sequences_.size());
    scores.scores = scores_;
    scores.score_stride = max_visible;
    scores.n_heads = heads;
    scores.dim = dim;
    scores.ratio = config_.compress_ratio(layer);
  }
  const int64_t tile = scored ? std::clamp<int64_t>(score_values_ / max_visible, 1, n_rows_) : n_rows_;
  for (int64_t row = 0; row < n_rows_; row += tile) {
    const int64_t count = std::min(tile, n_rows_ - row);
    kernels::CandidateBlocks blocks = candidates_;
    blocks.blocks += row * blocks.stride;
    blocks.n += row;
    const kernels::CandidateBlocks allowed = restricted ? blocks : kernels::CandidateBlocks{};
    if (scored) {
      scores.query_codes = index_q_quant_.codes + row * heads * dim / 2;
      scores.query_scales = index_q_quant_.scales + row * heads * dim / 32;
      scores.head_weights = head_weights_ + row * heads;
      scores.row_sequence = sequence_of_row_ + row;
      scores.row_position = positions_ + row;
      scores.candidates = allowed;
      scores.n_rows = count;
      DSV41_TRY(queue_->index_scores(scores));
    }
    DSV41_TRY(queue_->select_top_k({scores_, max_visible, positions_ + row, config_.compress_ratio(layer), allowed,
                                    selected_ + row * k, n_selected_ + row, count, k}));
    if (publishes && candidates_restrict_) {
      DSV41_TRY(queue_->select_candidates({scores_, max_visible, positions_ + row, config_.compress_ratio(layer),
                                           blocks, count, config_.candidate_topk_blocks}));
    }
  }
  return Status();
}

// ---- Core and output

Status Forward::attend(int64_t layer) {
  kernels::SparseAttentionArgs args;
  args.q = q_;
  args.o = attn_;
  args.sink = static_cast<const float*>(weights(layer).attn_sink.codes);
  args.sequences = attention_sequences_ + layer * static_cast<int64_t>(sequences_.size());
  args.row_sequence = sequence_of_row_;
  args.row_position = positions_;
  if (config_.compress_ratio(layer)) {
    args.selected = selected_;
    args.n_selected = n_selected_;
    args.k = config_.index_topk;
  }
  args.n_rows = n_rows_;
  args.n_heads = config_.num_attention_heads;
  args.dim = config_.head_dim;
  args.window = config_.sliding_window;
  return queue_->sparse_attention(args);
}

// o = inverse rope; z = wo_a o by groups (no activation quantisation); y = wo_b z
Status Forward::output_path(int64_t layer) {
  const LayerWeights& w = weights(layer);
  const int64_t heads = config_.num_attention_heads, wide = config_.o_groups * config_.o_lora_rank;
  DSV41_TRY(rotate(attn_, n_rows_, heads, config_.head_dim, rope_of(layer), /*inverse=*/true));
  kernels::LinearArgs group;
  group.weight = w.wo_a;
  group.x = attn_;
  group.x_stride = heads * config_.head_dim;
  group.y = z_;
  group.y_stride = wide;
  group.n_rows = n_rows_;
  group.n_groups = config_.o_groups;
  DSV41_TRY(queue_->linear(group));
  DSV41_TRY(quantise(z_, n_rows_, wide, &wide_quant_));
  return fp8_linear(w.wo_b, wide_quant_, n_rows_, o_);
}

}  // namespace dsv41::model
