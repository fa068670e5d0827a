// The mixture of experts of a layer (model.md 5.3, 5.4), from x_ to o_.
//
// Experts from disk: reads start as soon as the router has chosen, the shared expert runs meanwhile, and then the chosen ones in
// parts, ascending, each as soon as its bytes are there.
#include <algorithm>

#include "model/expert_cache.h"
#include "model/forward.h"

namespace dsv41::model {

Status Forward::moe(int64_t layer, const LayerChoices* choices) {
  const LayerWeights& w = weights(layer);
  DSV41_TRY(check_wanted(layer));
  DSV41_TRY(quantise(x_, n_rows_, config_.hidden_size, &x_quant_));
  DSV41_TRY(route(w, choices));
  DSV41_TRY(check_wanted(layer));
  if (model_.expert_cache()) {
    DSV41_TRY(experts_from_disk(layer, w));
  } else {
    kernels::ExpertsArgs experts = experts_args();
    experts.experts = w.experts.as<const tensor::ExpertView>();
    DSV41_TRY(queue_->experts(experts));
    DSV41_TRY(check_wanted(layer));
    DSV41_TRY(shared_expert(w));
  }
  return queue_->moe_combine({routed_, o_, o_, n_rows_ * config_.hidden_size});
}

Status Forward::shared_expert(const LayerWeights& w) {
  const int64_t inter = config_.moe_intermediate_size;
  DSV41_TRY(fp8_linear(w.shared_w1, x_quant_, n_rows_, shared_g_));
  DSV41_TRY(fp8_linear(w.shared_w3, x_quant_, n_rows_, shared_u_));
  DSV41_TRY(queue_->swiglu({shared_g_, shared_u_, nullptr, shared_g_, n_rows_, inter, config_.swiglu_limit}));
  DSV41_TRY(quantise(shared_g_, n_rows_, inter, &wide_quant_));
  return fp8_linear(w.shared_w2, wide_quant_, n_rows_, o_);
}

// All but the views.
kernels::ExpertsArgs Forward::experts_args() const {
  kernels::ExpertsArgs args;
  args.x_codes = x_quant_.codes;
  args.x_scales = x_quant_.scales;
  args.ids = expert_ids_;
  args.weights = expert_weights_;
  args.y = routed_;
  args.n_rows = n_rows_;
  args.dim = config_.hidden_size;
  args.inter = config_.moe_intermediate_size;
  args.n_experts = config_.n_routed_experts;
  args.k = config_.num_experts_per_tok;
  args.limit = config_.swiglu_limit;
  args.workspace = experts_workspace_;
  args.workspace_bytes = experts_workspace_bytes_;
  return args;
}

// Ascending, each once.
Result<std::vector<int32_t>> Forward::chosen_experts() {
  std::vector<int32_t> ids(static_cast<size_t>(n_rows_ * config_.num_experts_per_tok));
  DSV41_TRY(queue_->copy_to_host(ids.data(), expert_ids_, ids.size() * sizeof(int32_t)));
  DSV41_TRY(queue_->wait());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Status Forward::experts_from_disk(int64_t layer, const LayerWeights& w) {
  DSV41_TRY_ASSIGN(std::vector<int32_t> chosen, chosen_experts());
  ExpertRun run(*model_.expert_cache(), layer, std::move(chosen));
  DSV41_TRY(shared_expert(w));
  kernels::ExpertsArgs args = experts_args();
  args.experts = expert_views_;
  for (;;) {
    DSV41_TRY_ASSIGN(const std::span<const int32_t> experts, run.next(cancel_));
    if (experts.empty()) return {};
    for (const int32_t expert : experts) {
      DSV41_TRY(queue_->copy_to_device(expert_views_ + expert, &run.view(expert), sizeof(tensor::ExpertView)));
    }
    args.first_expert = experts.front();
    args.end_expert = experts.back() + 1;
    DSV41_TRY(queue_->experts(args));
    DSV41_TRY(queue_->wait());
    args.adds = true;
  }
}

Status Forward::route(const LayerWeights& w, const LayerChoices* choices) {
  const int64_t n_experts = config_.n_routed_experts, k = config_.num_experts_per_tok;
  kernels::LinearArgs gate;
  gate.weight = w.gate;
  gate.x = x_;
  gate.x_stride = config_.hidden_size;
  gate.y = gate_z_;
  gate.y_stride = n_experts;
  gate.y_is_f32 = true;
  gate.n_rows = n_rows_;
  DSV41_TRY(queue_->linear(gate));
  kernels::GateSelectArgs args{gate_z_,     static_cast<const float*>(w.gate_bias.codes),
                               expert_ids_, expert_weights_,
                               n_rows_,     n_experts,
                               k,           config_.routed_scaling_factor};
  if (!choices || !choices->expert_ids) {
    DSV41_TRY(queue_->gate_select(args));
  } else {
    // Imposed ids: a bias that lifts them above all others; the weights come from the unbiased scores as always.
    std::vector<float> bias(static_cast<size_t>(n_experts));
    for (int64_t row = 0; row < n_rows_; ++row) {
      std::fill(bias.begin(), bias.end(), 0.0f);
      for (int64_t i = 0; i < k; ++i) bias[static_cast<size_t>(choices->expert_ids[row * k + i])] = 1e30f;
      DSV41_TRY(queue_->copy_to_device(imposed_bias_, bias.data(), bias.size() * sizeof(float)));
      kernels::GateSelectArgs one = args;
      one.z += row * n_experts;
      one.bias = imposed_bias_;
      one.ids += row * k;
      one.weights += row * k;
      one.n_rows = 1;
      DSV41_TRY(queue_->gate_select(one));
      DSV41_TRY(queue_->wait());
    }
  }
  if (choices && choices->out_expert_ids) {
    DSV41_TRY(queue_->copy_to_host(choices->out_expert_ids, expert_ids_,
                                   static_cast<uint64_t>(n_rows_ * k) * sizeof(int32_t)));
    DSV41_TRY(queue_->wait());
  }
  return Status();
}

}  // namespace dsv41::model
