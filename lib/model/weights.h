// Weights: every tensor of the main model as the backend holds it, by the names of the checkpoint. Vision and draft
// tensors are checked when the checkpoint opens and uploaded by the parts that run them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/cancel.h"
#include "model/checkpoint.h"
#include "model/weight_placement.h"

namespace dsv41::model {

// One mHC site (model.md 4.1).
struct MhcSite {
  tensor::WeightView fn;     // [n(n+2), n * hidden] f32
  tensor::WeightView base;   // [1, n(n+2)] f32
  tensor::WeightView scale;  // [1, 3] f32
};

struct CompressorWeights {   // layers that own KV
  tensor::WeightView wkv;    // [head_dim, hidden] bf16
  tensor::WeightView wgate;  // [head_dim, hidden] bf16; absent (null codes) for ratio 1
  tensor::WeightView norm;   // [1, head_dim] bf16
};

struct IndexerWeights {             // layers that own an index
  tensor::WeightView wq_b;          // [n_heads * dim, q_lora_rank] fp8
  tensor::WeightView weights_proj;  // [n_heads, hidden] bf16
  tensor::WeightView wk;            // [dim, head_dim] bf16; with k_norm only on layers that own KV
  tensor::WeightView k_norm;        // [1, dim] bf16
};

struct EngramWeights {
  tensor::WeightView table;     // [rows, engram_head_dim] fp8 by row; no codes where its rows are served from disk
  tensor::WeightView wkv;       // [(n_streams + 1) * hidden, n_columns * engram_head_dim] fp8
  tensor::WeightView q_weight;  // [n_streams, hidden] bf16
  tensor::WeightView k_weight;  // [n_streams, hidden] bf16
};

struct LayerWeights {
  MhcSite hc_attn, hc_ffn;
  tensor::WeightView attn_norm, ffn_norm;  // [1, hidden] bf16
  // Attention.
  tensor::WeightView attn_sink;  // [1, n_heads] f32
  tensor::WeightView wq_a, q_norm, wq_b, wkv, kv_norm, wo_a, wo_b;
  CompressorWeights compressor;
  IndexerWeights indexer;
  EngramWeights engram;
  // Mixture of experts.
  tensor::WeightView gate, gate_bias;  // [n_experts, hidden] bf16, [1, n_experts] f32
  tensor::WeightView shared_w1, shared_w2, shared_w3;
  backend::Buffer experts;  // device: ExpertView [n_experts]; empty where they are served from disk
};

enum class LayoutChoice : uint8_t {
  kAuto,    // packed where that takes at most half of the memory, else mapped
  kMapped,  // the checkpoint's bytes as they lie in its files
  kPacked,  // matrices copied into the backend's own order
};

struct OpenOptions {
  LayoutChoice layout = LayoutChoice::kAuto;
  Placement experts = Placement::kAuto;
  Placement engram = Placement::kAuto;
  uint64_t expert_cache_bytes = 0;                // of experts on disk; 0: ExpertCache chooses
  uint64_t engram_cache_bytes = 0;                // likewise, EngramRows
  ReaderOptions reader;                           // of what is read past the page cache
  uint64_t memory_bytes = 0;                      // of the machine; 0: usable_memory_bytes()
  const CancelFlag* cancel = nullptr;             // looked at before each tensor
  std::function<bool(double fraction)> progress;  // may be empty; false cancels
};

struct Weights {
  tensor::WeightView embed, head;  // [vocab, hidden] bf16
  tensor::WeightView norm;         // [1, hidden] bf16
  std::vector<LayerWeights> layers;
  std::vector<backend::Buffer> memory;  // of the weights that the backend copied
  uint64_t packed_bytes = 0;            // of these, in the order of products; 0: none
  uint64_t copied_bytes = 0;            // of these, as they lie in the files: Placement::kMemory
};

// Whether weights that take `packed_bytes` when packed are packed on a machine with `memory_bytes` (0: not known). NO_MEMORY
// when they are wanted so and do not fit.
Result<bool> choose_packed(LayoutChoice choice, uint64_t packed_bytes, uint64_t memory_bytes);

// Uploads everything. Progress gets the fraction done; false from it, or a triggered flag, ends in CANCELLED. Packing reads each
// matrix once, with all threads of the backend, and lets its pages go.
Result<Weights> upload_weights(const Checkpoint& checkpoint, backend::Backend& backend, const OpenOptions& options);

}  // namespace dsv41::model
