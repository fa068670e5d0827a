// plan_model: the KV memory that N sessions of T tokens of a model need, by kind, and what its weights weigh, from the
// model's name or its config.json alone. No checkpoint, no device.
//
// V4.1 plans go through the PageGeometry of the page pool. The V4 models are described so that a host can size machines
// for them; this library does not run them, and does not know their weights. Not counted: scratch memory of the forward
// pass, page tables, token lists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/kv_layout.h"
#include "kv/page_geometry.h"
#include "model/config.h"
#include "model/weight_bytes.h"

namespace dsv41::session {

// The shape of a model's KV memory; with_drafts adds the window rings of its draft layers behind those of the main ones.
kv::KvShape kv_shape_of(const model::ModelConfig& config, bool with_drafts);
// Of the pages that sessions of the model have.
Result<Sha256Digest> layout_id_of(const model::ModelConfig& config);

enum class KvFormat : uint8_t {
  kNative,    // V4.1: FP4 records; V4: FP8 records, FP4 index keys
  kFp8Index,  // V4 only: FP8 records and index keys
  kBf16,      // V4 only: records, index keys and window rows in BF16
};

// Names for PlanOptions::preset, in a fixed order.
std::vector<std::string> plan_preset_names();

struct PlanOptions {
  std::string preset;  // one of plan_preset_names()
  std::string path;    // a config.json or a folder that holds one; used when not empty, preset must be empty then
  KvFormat format = KvFormat::kNative;
  bool with_drafts = false;  // window rows of the draft layers too
  uint64_t n_sessions = 1;
  uint64_t n_tokens = 0;  // of each session; 0: the model's longest
};

struct ModelPlan {
  uint64_t n_layers = 0;
  uint64_t n_draft_layers = 0;  // that the plan counts
  uint64_t max_tokens = 0;      // the model's longest session
  uint64_t n_tokens = 0;        // of each session
  kv::KvLayout layout;
  kv::KvPlan bytes;
  model::WeightBytes weights;  // zeros for the V4 models
};

// INVALID_ARG: unknown preset, both or neither of preset and path, no sessions. UNSUPPORTED: a format that the model
// does not have. LIMIT: more tokens than the model's longest session, or more than 2^64 bytes. For a path also
// NOT_FOUND, IO, PERMISSION, CHECKPOINT, CHECKPOINT_UNSUPPORTED.
Result<ModelPlan> plan_model(const PlanOptions& options);

}  // namespace dsv41::session
