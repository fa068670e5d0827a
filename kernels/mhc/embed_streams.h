// Token embedding into the residual streams.
//
//   H[t,s] = embed[ids[t]] for every stream s,   pre[t] = (1, 0, 0, ...)
//
// Source: DeepSeek-V4.1-Flash inference/model.py; the one-hot `pre` makes the first collapse return the plain
// embedding. Ids outside [0, vocab) are the caller's error (checked by the session), not this op's.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"
#include "tensor/weight_view.h"

namespace dsv41::kernels {

struct EmbedStreamsArgs {
  tensor::WeightView embed;      // [vocab, dim] bf16
  const int32_t* ids = nullptr;  // [n_rows]
  uint16_t* streams = nullptr;   // [n_rows, n_streams, dim] bf16, contiguous
  float* pre = nullptr;          // [n_rows, n_streams]
  int64_t n_rows = 0;
  int64_t n_streams = 0;
};

Status check_embed_streams(const EmbedStreamsArgs& args);
void embed_streams_ref(const EmbedStreamsArgs& args);
void embed_streams_cpu(const EmbedStreamsArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
