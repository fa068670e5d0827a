// The scratch memory of a Forward: one piece of device memory, carved into the arrays of forward.h.
#include <algorithm>

#include "model/engram_rows.h"
#include "model/forward.h"

namespace dsv41::model {

// Hands out aligned pieces behind each other; with a null base it only counts.
struct Forward::Carver {
  std::byte* base = nullptr;
  uint64_t used = 0;

  template <class T>
  void take(T** pointer, int64_t count) {
    constexpr uint64_t kAlignment = 64;
    *pointer = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used = (used + static_cast<uint64_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  void take(Quantised* q, int64_t n_codes, int64_t n_scales) {
    take(&q->codes, n_codes);
    take(&q->scales, n_scales);
  }
  void take(RopeRows* rows, int64_t count) {
    take(&rows->cos, count);
    take(&rows->sin, count);
  }
};

Forward::Forward(const Model& model) : model_(model), config_(model.config()) {}

// A step that ended early may have left reads into memory_ behind: they end before it goes.
Forward::~Forward() { engram_fetches_.clear(); }

Result<std::unique_ptr<Forward>> Forward::create(const Model& model, int64_t max_rows, int64_t max_positions) {
  std::unique_ptr<Forward> forward(new Forward(model));
  forward->max_rows_ = max_rows;
  forward->max_positions_ = max_positions;
  forward->max_sequences_ = std::min(max_rows, kMaxSequences);
  DSV41_TRY(forward->allocate());
  return forward;
}

Status Forward::allocate() {
  const ModelConfig& c = config_;
  window_row_bytes_ = c.head_dim + c.head_dim / 32;
  score_values_ = std::max(max_positions_, std::min<int64_t>(kScoreBytes / sizeof(float), max_rows_ * max_positions_));
  wide_dim_ = std::max({c.engram_n_columns() * c.engram_head_dim, c.o_groups * c.o_lora_rank, c.moe_intermediate_size});
  kernels::ExpertsArgs experts;
  experts.n_rows = max_rows_;
  experts.dim = c.hidden_size;
  experts.inter = c.moe_intermediate_size;
  experts.n_experts = c.n_routed_experts;
  experts.k = c.num_experts_per_tok;
  experts_workspace_bytes_ = kernels::experts_workspace_bytes(experts);
  Carver measure;
  carve(measure);
  DSV41_TRY_ASSIGN(memory_, model_.backend()->allocate(measure.used, backend::MemoryUse::kWorkspace));
  Carver place{memory_.data(), 0};
  carve(place);
  DSV41_TRY_ASSIGN(queue_, model_.backend()->create_queue());
  if (model_.engram_rows()) {
    for (size_t table = 0; table < c.engram_layer_ids.size(); ++table) {
      engram_fetches_.push_back(std::make_unique<EngramFetch>(*model_.engram_rows(), static_cast<int64_t>(table)));
    }
  }
  return Status();
}

void Forward::carve(Carver& carver) {
  const ModelConfig& c = config_;
  const int64_t t = max_rows_, n = c.hc_mult, n_layers = c.num_hidden_layers;
  const int64_t n_sources = static_cast<int64_t>(c.kv_source_layer_ids.size());
  const int64_t n_engram = static_cast<int64_t>(c.engram_layer_ids.size());
  const int64_t n_pairs = c.qk_rope_head_dim / 2, n_ratio2 = n_ratio2_before(c.kv_source_layer_ids.size());
  carver.take(&ids_, t);
  carver.take(&positions_, t);
  carver.take(&sequence_of_row_, t);
  carver.take(&entry_positions_, t);
  carver.take(&attention_sequences_, n_layers * max_sequences_);
  carver.take(&key_fields_, n_sources * max_sequences_);
  carver.take(&engram_rows_, n_engram * t * c.engram_n_columns());
  carver.take(&rope_plain_, t * n_pairs);
  carver.take(&rope_yarn_, t * n_pairs);
  carver.take(&rope_entries_, t * n_pairs);
  carver.take(&streams_, t * n * c.hidden_size);
  carver.take(&pre_, t * n);
  carver.take(&pre_ffn_, t * n);
  carver.take(&post_, t * n);
  carver.take(&comb_, t * n * n);
  carver.take(&x_, t * c.hidden_size);
  carver.take(&o_, t * c.hidden_size);
  carver.take(&x_quant_, t * c.hidden_size, t * c.hidden_size / 32);
  carver.take(&qr_quant_, t * c.q_lora_rank, t * c.q_lora_rank / 32);
  carver.take(&wide_quant_, t * wide_dim_, t * wide_dim_ / 32);
  carver.take(&qr_, t * c.q_lora_rank);
  carver.take(&q_, t * c.num_attention_heads * c.head_dim);
  carver.take(&attn_, t * c.num_attention_heads * c.head_dim);
  carver.take(&z_, t * c.o_groups * c.o_lora_rank);
  carver.take(&window_, t * c.head_dim);
  carver.take(&fresh_, n_layers * t * window_row_bytes_);
  carver.take(&compressor_k_, n_ratio2 * t * c.head_dim);
  carver.take(&compressor_gate_, n_ratio2 * t * c.head_dim);
  carver.take(&latent_, t * c.head_dim);
  carver.take(&key_, t * c.index_head_dim);
  carver.take(&record_quant_, t * std::max(c.head_dim, c.index_head_dim) / 2,
              t * std::max(c.head_dim, c.index_head_dim) / 16);
  carver.take(&index_q_, t * c.index_n_heads * c.index_head_dim);
  carver.take(&index_q_quant_, t * c.index_n_heads * c.index_head_dim / 2, t * c.index_n_heads * c.index_head_dim / 32);
  carver.take(&head_weights_, t * c.index_n_heads);
  carver.take(&scores_, score_values_);
  carver.take(&selected_, t * c.index_topk);
  carver.take(&n_selected_, t);
  carver.take(&candidates_.blocks, t * c.candidate_topk_blocks);
  carver.take(&candidates_.n, t);
  candidates_.stride = c.candidate_topk_blocks;
  candidates_.size = c.candidate_block_size;
  const int64_t n_staged = model_.engram_rows() ? n_engram * t * c.engram_n_columns() : 0;
  carver.take(&engram_codes_, n_staged * c.engram_head_dim);
  carver.take(&engram_scales_, n_staged * (c.engram_head_dim / 32));
  carver.take(&engram_e_, n_engram ? t * c.engram_n_columns() * c.engram_head_dim : 0);
  carver.take(&engram_kv_, n_engram ? t * (n + 1) * c.hidden_size : 0);
  carver.take(&gate_z_, t * c.n_routed_experts);
  carver.take(&imposed_bias_, c.n_routed_experts);
  carver.take(&expert_ids_, t * c.num_experts_per_tok);
  carver.take(&expert_weights_, t * c.num_experts_per_tok);
  carver.take(&expert_views_, model_.expert_cache() ? c.n_routed_experts : 0);
  carver.take(&routed_, t * c.hidden_size);
  carver.take(&shared_g_, t * c.moe_intermediate_size);
  carver.take(&shared_u_, t * c.moe_intermediate_size);
  carver.take(&experts_workspace_, static_cast<int64_t>(experts_workspace_bytes_));
  carver.take(&logits_, std::min(t, kLogitsRows) * c.vocab_size);
}

}  // namespace dsv41::model
