// Forward: one step of the model over rows of one or more sequences, as a list of ops on a queue.
//
// A row is one token of one sequence. A step runs the encoder (layers below decoder_start, and the global KV of the
// first decoder layer) and, on the same rows or on rows brought back later, the decoder and the head. Chunked prefill,
// decode and verification are this one path: causality between rows of a step is by masks only.
//
// Nothing of a sequence's valid state changes before commit_*: window rows and compressor rows of the step stay in
// scratch, and global records go only to entries at or beyond the step's first position and its write floor. So a step
// that fails leaves the sequence usable.
//
// The residual streams of the rows are at streams() and pre() between the two halves: bf16 [n_rows, hc_mult, hidden]
// and f32 [n_rows, hc_mult].
//
// One thread at a time. A Forward is scratch memory for a number of rows and may be used for any sequence of its model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "model/model.h"
#include "tensor/paged_view.h"

namespace dsv41::model {

class EngramFetch;

// What one sequence brings to a step. Views point to device memory of the sequence.
struct StepSequence {
  int64_t first_position = 0;
  int64_t n_rows = 0;
  const int32_t* tokens = nullptr;   // host: the ids of the rows (encoder)
  const int32_t* history = nullptr;  // host: the n_history ids in front of tokens[0], oldest first (encoder)
  int64_t n_history = 0;             // min(first_position, engram_max_ngram_size - 1)
  int64_t floor = 0;                 // lowest window position that the layers of this half may read
  // Write floors of a replay (attention.md 7.4, 7.6): rows below window_from read the window rows and open rows that the
  // sequence has and leave them as they are; entries whose last position lies below records_from (a multiple of every
  // ratio) are not written.
  int64_t window_from = 0;
  int64_t records_from = 0;
  std::vector<tensor::PagedField> main;   // by position in kv_source_layer_ids
  std::vector<tensor::PagedField> index;  // likewise
  std::vector<float*> open_rows;          // likewise; null for ratio 1
  std::vector<tensor::WindowRing> rings;  // by layer
};

class Forward {
 public:
  // max_rows: rows of a step. max_positions: bound of positions (sizes the score rows).
  static Result<std::unique_ptr<Forward>> create(const Model& model, int64_t max_rows, int64_t max_positions);

  ~Forward();
  int64_t max_rows() const { return max_rows_; }
  int64_t max_positions() const { return max_positions_; }
  backend::Queue& queue() { return *queue_; }

  // Embedding, layers [0, decoder_start) and the global KV of layer decoder_start. Leaves streams() and pre().
  // CANCELLED when the flag is seen, which happens within one layer.
  Status run_encoder(std::span<const StepSequence> sequences, const CancelFlag* cancel);
  // Layers [decoder_start, num_hidden_layers) on the rows in streams() and pre(). Their global KV must be in place.
  Status run_decoder(std::span<const StepSequence> sequences, const CancelFlag* cancel);
  // Final collapse, norm and head for rows [first_row, first_row + n_rows) after run_decoder: f32 [n_rows, vocab] to
  // host memory. Waits. NUMERIC when a value is not finite.
  Status logits(int64_t first_row, int64_t n_rows, float* host);

  // Make the step's window rows (and open compressor rows) part of the sequences' state. `sequences` as given to the
  // run of that half; the encoder's may be committed after the decoder ran. Wait.
  Status commit_encoder(std::span<const StepSequence> sequences);
  Status commit_decoder(std::span<const StepSequence> sequences);

  uint16_t* streams() { return streams_; }
  float* pre() { return pre_; }
  int64_t stream_row_values() const { return config_.hc_mult * config_.hidden_size; }

  // ---- For tests and tools: one layer from given streams, and what its router and indexer chose or are made to
  // choose. Rows' sequences and tables must be set by begin_step.
  struct LayerChoices {
    const int32_t* expert_ids = nullptr;  // host [n_rows, k]: imposed when given
    const int32_t* selected = nullptr;    // host [n_rows, index_topk], -1 behind: imposed on the layer when given
    const int32_t* n_selected = nullptr;  // host [n_rows]
    int32_t* out_expert_ids = nullptr;    // host: filled when given
    int32_t* out_selected = nullptr;
    int32_t* out_n_selected = nullptr;
  };
  Status begin_step(std::span<const StepSequence> sequences);
  // What run_encoder does before its first layer: begin_step, the rows of the Engram tables, the embedding.
  Status begin_encoder(std::span<const StepSequence> sequences);
  // In front of run_layer; nothing where the layer has no Engram. The step was begun by begin_encoder.
  Status engram(int64_t layer);
  Status run_layer(int64_t layer, const LayerChoices* choices);
  // The last part of run_encoder: the global KV of layer decoder_start from streams() and pre(), which stay.
  Status run_first_decoder_kv();

 private:
  // Rotation tables of a step: one row a token, or one row an entry of ratio 2.
  struct RopeRows {
    float* cos = nullptr;
    float* sin = nullptr;
  };
  // A bf16 activation's quantised form.
  struct Quantised {
    uint8_t* codes = nullptr;
    uint8_t* scales = nullptr;
  };

  explicit Forward(const Model& model);
  Status allocate();
  struct Carver;
  void carve(Carver& carver);
  Status set_rows();
  Status set_sequence_tables();
  Status set_rope_tables();
  Status set_engram_rows();
  void fetch_engram_rows();
  Result<tensor::WeightView> engram_table(int64_t e, const tensor::WeightView& table);
  Status embed();
  Status run_layers(int64_t first, int64_t last, const CancelFlag* cancel);
  Status check_wanted(int64_t layer);  // CANCELLED once the flag is set
  Status attention(int64_t layer, const LayerChoices* choices);
  Status query_path(int64_t layer);
  Status window_rows(int64_t layer);
  Status global_kv(int64_t layer);
  Status compress(int64_t layer, int64_t* n_entries);
  Status store(int64_t layer, bool is_index, int64_t n_entries, int64_t dim);
  Status select(int64_t layer, const LayerChoices* choices);
  Status score_and_select(int64_t layer, int64_t max_visible);
  Status attend(int64_t layer);
  Status output_path(int64_t layer);
  Status moe(int64_t layer, const LayerChoices* choices);
  Status route(const LayerWeights& w, const LayerChoices* choices);
  Status shared_expert(const LayerWeights& w);
  kernels::ExpertsArgs experts_args() const;
  Result<std::vector<int32_t>> chosen_experts();
  Status experts_from_disk(int64_t layer, const LayerWeights& w);
  Status coefficients(const MhcSite& site, float* pre);
  Status collapse_and_norm(const float* pre, const tensor::WeightView& norm);
  Status combine();
  Status quantise(const uint16_t* x, int64_t n_rows, int64_t dim, Quantised* out);
  Status fp8_linear(const tensor::WeightView& weight, const Quantised& x, int64_t n_rows, uint16_t* y);
  Status norm_in_place(uint16_t* x, int64_t n_rows, const tensor::WeightView& weight);
  Status rotate(uint16_t* x, int64_t n_rows, int64_t n_heads, int64_t dim, const RopeRows& rows, bool inverse);
  Status commit_windows(std::span<const StepSequence> sequences, int64_t first_layer, int64_t last_layer);
  const LayerWeights& weights(int64_t layer) const { return model_.weights().layers[static_cast<size_t>(layer)]; }
  const RopeRows& rope_of(int64_t layer) const { return config_.compress_ratio(layer) ? rope_yarn_ : rope_plain_; }
  size_t source_of(int64_t layer) const;  // position of the layer's KV owner in kv_source_layer_ids
  int64_t n_ratio2_before(size_t source) const;
  int64_t max_position() const;
  uint8_t* fresh(int64_t layer) const { return fresh_ + layer * max_rows_ * window_row_bytes_; }

  static constexpr int64_t kMaxSequences = 256;
  static constexpr int64_t kScoreBytes = int64_t{16} << 20;  // score rows held at a time (at least one row)
  static constexpr int64_t kLogitsRows = 16;                 // rows of logits held at a time

  const Model& model_;
  const ModelConfig& config_;
  std::unique_ptr<backend::Queue> queue_;
  int64_t max_rows_ = 0;
  int64_t max_positions_ = 0;
  int64_t max_sequences_ = 0;
  int64_t window_row_bytes_ = 0;
  int64_t score_values_ = 0;  // capacity of scores_
  int64_t wide_dim_ = 0;      // largest dim that wide_quant_ takes
  // Of rows that the disk serves, one an Engram layer; empty where it serves none.
  std::vector<std::unique_ptr<EngramFetch>> engram_fetches_;
  const CancelFlag* cancel_ = nullptr;  // of the half that runs
  // The step.
  int64_t n_rows_ = 0;
  int64_t n_entries2_ = 0;  // ratio-2 entries that complete in this step, all sequences
  std::vector<StepSequence> sequences_;
  std::vector<int64_t> row_offset_;     // by sequence: its first row
  std::vector<int64_t> entry_offset2_;  // by sequence: its first row among the ratio-2 entries
  // Host sides of the small tables; they stay valid until the next step.
  std::vector<int32_t> host_ids_, host_positions_, host_sequences_, host_entry_positions_;
  std::vector<int64_t> host_engram_rows_;
  std::vector<kernels::AttentionSequence> host_attention_;  // [layers, sequences]
  std::vector<tensor::PagedField> host_keys_;               // [sources, sequences]

  backend::Buffer memory_;              // everything below, carved from one piece of device memory; T = max_rows
  int32_t* ids_ = nullptr;              // [T]
  int32_t* positions_ = nullptr;        // [T]
  int32_t* sequence_of_row_ = nullptr;  // [T]
  int32_t* entry_positions_ = nullptr;  // [T]: 2j of each ratio-2 entry
  kernels::AttentionSequence* attention_sequences_ = nullptr;  // [layers, sequences]
  tensor::PagedField* key_fields_ = nullptr;                   // [sources, sequences]
  int64_t* engram_rows_ = nullptr;                             // [engram layers, n_rows, columns]
  RopeRows rope_plain_, rope_yarn_;                            // by row
  RopeRows rope_entries_;                                      // by ratio-2 entry
  uint16_t* streams_ = nullptr;                                // [T, n_streams, hidden] bf16
  float* pre_ = nullptr;                                       // [T, n_streams]: for the next attention site
  float* pre_ffn_ = nullptr;                                   // [T, n_streams]: for the FFN site
  float* post_ = nullptr;                                      // [T, n_streams]
  float* comb_ = nullptr;                                      // [T, n_streams, n_streams]
  uint16_t* x_ = nullptr;                                      // [T, hidden] bf16: a sublayer's input
  uint16_t* o_ = nullptr;                                      // [T, hidden] bf16: a sublayer's output
  Quantised x_quant_, qr_quant_, wide_quant_;
  uint16_t* qr_ = nullptr;            // [T, q_lora_rank]
  uint16_t* q_ = nullptr;             // [T, n_heads, head_dim]
  uint16_t* attn_ = nullptr;          // [T, n_heads, head_dim]
  uint16_t* z_ = nullptr;             // [T, o_groups * o_lora_rank]
  uint16_t* window_ = nullptr;        // [T, head_dim]
  uint8_t* fresh_ = nullptr;          // [layers, T, window_row_bytes]: window records of the step
  float* compressor_k_ = nullptr;     // [ratio-2 sources, T, head_dim]
  float* compressor_gate_ = nullptr;  // [ratio-2 sources, T, head_dim]
  uint16_t* latent_ = nullptr;        // [T, head_dim]
  uint16_t* key_ = nullptr;           // [T, index_head_dim]
  Quantised record_quant_;            // main or index records of the step's entries
  uint16_t* index_q_ = nullptr;       // [T, index_n_heads, index_head_dim]
  Quantised index_q_quant_;
  uint16_t* head_weights_ = nullptr;  // [T, index_n_heads]
  float* scores_ = nullptr;           // [score_values_]
  int32_t* selected_ = nullptr;       // [T, index_topk]
  int32_t* n_selected_ = nullptr;     // [T]
  kernels::CandidateBlocks candidates_;
  bool candidates_restrict_ = false;            // in this step some row has more blocks than may be candidates
  uint8_t* engram_codes_ = nullptr;             // [engram layers, T * columns, engram_head_dim]: staged rows
  uint8_t* engram_scales_ = nullptr;            // [engram layers, T * columns, engram_head_dim / 32]
  uint16_t* engram_e_ = nullptr;                // [T, columns * engram_head_dim]
  uint16_t* engram_kv_ = nullptr;               // [T, n_streams + 1, hidden]
  float* gate_z_ = nullptr;                     // [T, n_experts]
  float* imposed_bias_ = nullptr;               // [n_experts]
  int32_t* expert_ids_ = nullptr;               // [T, k]
  float* expert_weights_ = nullptr;             // [T, k]
  tensor::ExpertView* expert_views_ = nullptr;  // [n_experts]: those that the disk has served
  float* routed_ = nullptr;                     // [T, hidden]
  uint16_t* shared_g_ = nullptr;                // [T, inter]
  uint16_t* shared_u_ = nullptr;                // [T, inter]
  std::byte* experts_workspace_ = nullptr;
  uint64_t experts_workspace_bytes_ = 0;
  float* logits_ = nullptr;  // [min(T, kLogitsRows), vocab]
};

}  // namespace dsv41::model
