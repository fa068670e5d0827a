#include "kernels/moe/experts_plan.h"

#include <algorithm>
#include <cassert>
#include <cstddef>

namespace dsv41::kernels {
namespace {

constexpr uint64_t kAlignment = 64;

// Hands out aligned pieces of the workspace, or counts bytes where there is none.
class Pieces {
 public:
  explicit Pieces(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<uint64_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  uint64_t used() const { return used_; }

 private:
  std::byte* base_;
  uint64_t used_ = 0;
};

}  // namespace

uint64_t lay_out(const ExpertsArgs& args, ExpertsPlan* plan) {
  const int64_t n_slots = args.n_rows * args.k;
  Pieces pieces(args.workspace);
  plan->n_slots = n_slots;
  plan->first_slot = pieces.take<int32_t>(args.n_experts + 1);
  plan->slot_row = pieces.take<int32_t>(n_slots);
  plan->slot_weight = pieces.take<float>(n_slots);
  plan->slot_of = pieces.take<int32_t>(n_slots);
  plan->parts = pieces.take<ExpertPart>(std::min(args.n_experts, n_slots));
  plan->h_codes = pieces.take<uint8_t>(n_slots * args.inter);
  plan->h_scales = pieces.take<uint8_t>(n_slots * (args.inter / 32));
  plan->integers =
      pieces.take<IntegerGroup>(std::max(args.n_rows * integer_groups(args.dim), n_slots * integer_groups(args.inter)));
  plan->usable = pieces.take<uint8_t>(std::max(args.n_rows, n_slots));
  const int64_t hidden = n_slots * args.inter, outputs = n_slots * args.dim, one_hidden = args.n_rows * args.inter;
  const int64_t one_bytes = 4 * one_hidden + args.n_rows * (args.dim + args.dim / 32);
  std::byte* shared = pieces.take<std::byte>(std::max(4 * hidden, 2 * outputs + one_bytes));
  if (shared != nullptr) {
    plan->g = reinterpret_cast<uint16_t*>(shared);
    plan->u = plan->g + hidden;
    plan->o = plan->g;
    plan->one.g = plan->o + outputs;
    plan->one.u = plan->one.g + one_hidden;
    plan->one.codes = reinterpret_cast<uint8_t*>(plan->one.u + one_hidden);
    plan->one.scales = plan->one.codes + args.n_rows * args.dim;
  }
  return pieces.used();
}

void build_plan(const ExpertsArgs& args, ExpertsPlan* plan) {
  int32_t* first = plan->first_slot;
  const int64_t n_pairs = args.n_rows * args.k;
  const auto is_run = [&](int32_t id) { return id >= args.first_expert && id < args.end_expert; };
  std::fill_n(first, args.n_experts + 1, 0);
  for (int64_t i = 0; i < n_pairs; ++i) {
    assert(args.ids[i] >= 0 && args.ids[i] < args.n_experts);
    if (is_run(args.ids[i])) ++first[args.ids[i] + 1];
  }
  plan->n_parts = 0;
  for (int64_t e = 0; e < args.n_experts; ++e) {
    const int32_t n = first[e + 1];
    if (n > 0) plan->parts[plan->n_parts++] = {static_cast<int32_t>(e), first[e], n};
    first[e + 1] += first[e];
  }
  plan->n_slots = first[args.n_experts];
  // first[e] serves as the next free slot of e; it ends as first[e + 1], so the array is moved up by one afterwards.
  for (int64_t i = 0; i < n_pairs; ++i) {
    plan->slot_of[i] = -1;
    if (!is_run(args.ids[i])) continue;
    const int32_t slot = first[args.ids[i]]++;
    plan->slot_row[slot] = static_cast<int32_t>(i / args.k);
    plan->slot_weight[slot] = args.weights[i];
    plan->slot_of[i] = slot;
  }
  std::copy_backward(first, first + args.n_experts, first + args.n_experts + 1);
  first[0] = 0;
}

}  // namespace dsv41::kernels
