// The inventory: every tensor that a checkpoint of a given config holds, with dtype and shape (model.md 2.3). Names are
// bare (no "model." prefix). Quantised weights come as two tensors:
//
//   NAME.weight F8_E4M3 [out, in]   and NAME.scale F8_E8M0 [out/32, in/32]   dense: one scale per 32x32 tile
//   NAME.weight I8 [out, in/2]      and NAME.scale F8_E8M0 [out, in/32]      routed experts: packed e2m1
//   NAME.weight F8_E4M3 [rows, dim] and NAME.scale F8_E8M0 [rows, dim/32]    Engram rows
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"

namespace dsv41::model {

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<int64_t> shape;  // row-major [out, in]

  uint64_t bytes() const;
};

// Calls visit for every tensor: embedding, layers, head, draft layers, Engram, vision. The reference is valid during
// the call. Nothing is stored, so an absurd config costs time, not memory.
void for_each_expected_tensor(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit);

// The same as a list.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

}  // namespace dsv41::model
