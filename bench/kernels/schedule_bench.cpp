// BM_Schedule/{decode,chunk}/threads:N: a whole step of the released model at position 32,000, for one token and for 64, as
// the sum of the schedules of its ops (schedule.h), each as often as a step has it (model.md 1.1). The lines that it sums up,
// schedule/OP/threads:N, have to run before it in the same process: --benchmark_filter=chedule.
//
//   work_ms        on one thread
//   step_ms        on N threads
//   efficiency     work / (N x step)
//   critical_ms    what no number of threads goes below
//   worst          the ops that lose the most: milliseconds of the step above work / N
#include "kernels/bench_targets.h"
#include "kernels/schedule.h"

namespace dsv41::bench {
namespace {

struct StepOp {
  const char* line;  // without the rows
  double n;          // times a step
};

// 40 layers; 4 of them scan the keys of the whole text (three of these at half of them), 4 score 16,384 candidates.
constexpr StepOp kStep[] = {
    {"linear/wq_a", 40},
    {"linear/wq_b", 40},
    {"linear/wkv", 40},
    {"linear/wo_a, grouped, x not quantised", 40},
    {"linear/wo_b", 40},
    {"linear/gate", 40},
    {"linear/shared expert's w1", 80},
    {"linear/shared expert's w2", 40},
    {"linear/an eighth of the head", 8},
    {"experts", 40},
    {"gate_select", 40},
    {"swiglu", 40},
    {"moe_combine", 40},
    {"mhc_coefficients", 80},
    {"mhc_collapse", 80},
    {"mhc_combine", 80},
    {"act_quant/hidden", 160},
    {"rope_apply/main query", 80},
};
// These are measured for one token only. A chunk has one for each of its rows, which take the threads in turn.
constexpr StepOp kTokenOps[] = {
    {"sparse_attention/position 32000", 40},
    {"index_scores/position 32000", 4.5},
    {"select_top_k/position 32000", 8},
};

void sum_up(benchmark::State& state, const char* rows, double n_rows, int n_threads) {
  Schedule sum;
  std::vector<std::pair<double, std::string>> losses;
  const auto add = [&](const std::string& line, double n, double n_at_once) {
    const auto found = schedules().find({line, n_threads});
    if (found == schedules().end()) return false;
    Schedule op = found->second;
    if (n_at_once > 1) op.makespan_us = op.work_us / std::min<double>(n_at_once, n_threads);
    if (n_at_once > 1) op.longest_us = op.serial_us = op.work_us / n_at_once;
    sum.work_us += n * op.work_us;
    sum.serial_us += n * op.serial_us;
    sum.makespan_us += n * op.makespan_us;
    sum.longest_us += n * op.longest_us;
    losses.emplace_back(n * (op.makespan_us - op.work_us / n_threads), line);
    return true;
  };
  bool complete = true;
  for (const StepOp& op : kStep) complete = add(std::string(op.line) + rows, op.n, 1) && complete;
  for (const StepOp& op : kTokenOps) complete = add(op.line, op.n * n_rows, n_rows) && complete;
  if (!complete) return state.SkipWithError("needs the lines schedule/... of the same run");
  for (auto _ : state) state.SetIterationTime(sum.makespan_us * 1e-6);
  state.counters["work_ms"] = sum.work_us * 1e-3;
  state.counters["step_ms"] = sum.makespan_us * 1e-3;
  state.counters["serial_ms"] = sum.serial_us * 1e-3;
  state.counters["critical_ms"] = sum.longest_us * 1e-3;
  state.counters["efficiency"] = sum.work_us / (n_threads * sum.makespan_us);
  std::sort(losses.rbegin(), losses.rend());
  std::string worst;
  for (size_t i = 0; i < 4; ++i) {
    worst += (i ? ", " : "worst: ") + losses[i].second + " " + std::to_string(losses[i].first * 1e-3).substr(0, 5);
  }
  state.SetLabel(worst);
}

const bool kRegistered = [] {
  for (const int n_threads : kScheduleThreads) {
    for (const auto& [name, rows, n_rows] :
         {std::tuple("decode", "/1 row", 1.0), std::tuple("chunk", "/64 rows", 64.0)}) {
      const std::string line = std::string("BM_Schedule/") + name + "/threads:" + std::to_string(n_threads);
      benchmark::RegisterBenchmark(line.c_str(), sum_up, rows, n_rows, n_threads)->UseManualTime()->Iterations(1);
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
