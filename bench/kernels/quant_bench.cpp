// The quantisers and the stores of finished records at the dimensions of the released model: rows are tokens, dims and
// strides those of the tests' case table. Stores go on through KV memory, as those of a growing sequence do. Bytes are
// those read and written. BM_KvQuant/{main,index,window}: 128 rows of BF16 to records of 288, 68 and 528 bytes in KV memory,
// beside a copy of the rows, in turns (paired_rounds.h).
#include <cstring>

#include "kernels/attention/kv_memory.h"
#include "kernels/bench_targets.h"
#include "kernels/quant/act_quant.h"
#include "kernels/quant/fp4_quant.h"
#include "kernels/quant/quant_cases.h"
#include "kernels/quant/store_records.h"
#include "paired_rounds.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

using kernels::CpuContext;

constexpr test::QuantCase kHidden = find_case(test::kQuantCases, "hidden width"),
                          kExpert = find_case(test::kQuantCases, "expert width"),
                          kLatent = find_case(test::kQuantCases, "latent"),
                          kIndexKey = find_case(test::kQuantCases, "indexer key");
constexpr int64_t kIndexHeads = 32;
constexpr uint32_t kEntriesPerPage = 128, kRingRows = 136;
constexpr int64_t kFieldEntries = int64_t{1} << 16;

void run_act_quant(benchmark::State& state, const kernels::CpuContext& context, const test::QuantCase& row,
                   int64_t n_rows) {
  const int64_t x_stride = row.dim + row.padding, scale_stride = row.dim / 32 + row.padding;
  const std::vector<uint16_t> x = test::random_bf16(static_cast<size_t>(n_rows * x_stride), 1, row.scale);
  std::vector<uint8_t> codes(x.size()), scales(static_cast<size_t>(n_rows * scale_stride));
  const kernels::ActQuantArgs args = {x.data(),      x_stride,     codes.data(), x_stride,
                                      scales.data(), scale_stride, n_rows,       row.dim};
  if (!kernels::check_act_quant(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::act_quant_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, n_rows * (3 * row.dim + row.dim / 32));
}

void run_fp4_quant(benchmark::State& state, const kernels::CpuContext& context, kernels::Fp4Format format,
                   const test::QuantCase& row, int64_t n_rows) {
  const int64_t n_scales = row.dim / (format == kernels::Fp4Format::kMain ? 16 : 32);
  const int64_t x_stride = row.dim + row.padding, code_stride = row.dim / 2 + row.padding,
                scale_stride = n_scales + row.padding;
  const std::vector<uint16_t> x = test::random_bf16(static_cast<size_t>(n_rows * x_stride), 1, row.scale);
  std::vector<uint8_t> codes(static_cast<size_t>(n_rows * code_stride));
  std::vector<uint8_t> scales(static_cast<size_t>(n_rows * scale_stride));
  const kernels::Fp4QuantArgs args = {format,        x.data(),     x_stride, codes.data(), code_stride,
                                      scales.data(), scale_stride, n_rows,   row.dim};
  if (!kernels::check_fp4_quant(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::fp4_quant_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, n_rows * (2 * row.dim + row.dim / 2 + n_scales));
}

void run_store_records(benchmark::State& state, const kernels::CpuContext& context, uint32_t code_bytes,
                       uint32_t scale_bytes, int64_t n_rows) {
  test::PagedRecords memory(kFieldEntries, code_bytes, scale_bytes, kEntriesPerPage);
  const std::vector<uint8_t> codes = test::random_bytes(static_cast<size_t>(n_rows * code_bytes), 1);
  const std::vector<uint8_t> scales = test::random_bytes(static_cast<size_t>(n_rows * scale_bytes), 2);
  kernels::StoreRecordsArgs args = {codes.data(), scales.data(), memory.field, 0, n_rows};
  if (!kernels::check_store_records(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::store_records_cpu(args, context);
    benchmark::ClobberMemory();
    args.first_entry = (args.first_entry + n_rows) % kFieldEntries;
  }
  report_work(state, 2 * n_rows * (code_bytes + scale_bytes));
}

void run_store_window(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  constexpr uint32_t kRowBytes = kLatent.dim + kLatent.dim / 32;
  test::RingRows memory(kRingRows, kRowBytes);
  const std::vector<uint8_t> records = test::random_bytes(static_cast<size_t>(n_rows * kRowBytes), 1);
  kernels::StoreWindowArgs args = {records.data(), memory.ring, 0, n_rows};
  if (!kernels::check_store_window(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::store_window_cpu(args, context);
    benchmark::ClobberMemory();
    args.first_position += n_rows;
  }
  report_work(state, 2 * n_rows * kRowBytes);
}

// ---- Beside a copy of the rows

constexpr int64_t kChunkRows = 128;

struct SerialContext {
  SerialParallel serial;
  CpuContext context{kernels::best_cpu_target(), &serial};
};

// Copies `x` as the reference of `store`, which makes records of it.
template <class Store>
void compare_with_copy(benchmark::State& state, const std::vector<uint16_t>& x, const Store& store) {
  std::vector<uint16_t> copy(x.size());
  const auto copy_rows = [&] {
    std::memcpy(copy.data(), x.data(), x.size() * sizeof x[0]);
    benchmark::ClobberMemory();
  };
  compare_in_rounds(state, copy_rows, [&] {
    store();
    benchmark::ClobberMemory();
  });
}

void kv_quant_fp4(benchmark::State& state, kernels::Fp4Format format, int64_t dim) {
  const auto code_bytes = static_cast<uint32_t>(dim / 2);
  const auto scale_bytes = static_cast<uint32_t>(dim / (format == kernels::Fp4Format::kMain ? 16 : 32));
  SerialContext run;
  test::PagedRecords memory(kFieldEntries, code_bytes, scale_bytes, kEntriesPerPage);
  const std::vector<uint16_t> x = test::random_bf16(static_cast<size_t>(kChunkRows * dim), 1);
  std::vector<uint8_t> codes(static_cast<size_t>(kChunkRows * code_bytes));
  std::vector<uint8_t> scales(static_cast<size_t>(kChunkRows * scale_bytes));
  kernels::StoreRecordsArgs to = {codes.data(), scales.data(), memory.field, 0, kChunkRows};
  compare_with_copy(state, x, [&] {
    kernels::fp4_quant_cpu(
        {format, x.data(), dim, codes.data(), code_bytes, scales.data(), scale_bytes, kChunkRows, dim}, run.context);
    kernels::store_records_cpu(to, run.context);
    to.first_entry = (to.first_entry + kChunkRows) % kFieldEntries;
  });
}
BENCHMARK_CAPTURE(kv_quant_fp4, main, kernels::Fp4Format::kMain, kLatent.dim)
    ->Name("BM_KvQuant/main")
    ->Apply(in_rounds);
BENCHMARK_CAPTURE(kv_quant_fp4, index, kernels::Fp4Format::kIndex, kIndexKey.dim)
    ->Name("BM_KvQuant/index")
    ->Apply(in_rounds);

void kv_quant_window(benchmark::State& state) {
  constexpr uint32_t kRowBytes = kLatent.dim + kLatent.dim / 32;
  SerialContext run;
  test::RingRows memory(kRingRows, kRowBytes);
  const std::vector<uint16_t> x = test::random_bf16(static_cast<size_t>(kChunkRows * kLatent.dim), 1);
  std::vector<uint8_t> records(static_cast<size_t>(kChunkRows * kRowBytes));
  kernels::StoreWindowArgs to = {records.data(), memory.ring, 0, kChunkRows};
  compare_with_copy(state, x, [&] {
    kernels::act_quant_cpu({x.data(), kLatent.dim, records.data(), kRowBytes, records.data() + kLatent.dim, kRowBytes,
                            kChunkRows, kLatent.dim},
                           run.context);
    kernels::store_window_cpu(to, run.context);
    to.first_position += kChunkRows;
  });
}
BENCHMARK(kv_quant_window)->Name("BM_KvQuant/window")->Apply(in_rounds);

struct ActQuantBench {
  const char* name;
  const test::QuantCase& row;
};

struct Fp4Bench {
  const char* name;
  kernels::Fp4Format format;
  const test::QuantCase& row;
  int64_t rows_per_token;
};

struct StoreBench {
  const char* name;
  uint32_t code_bytes, scale_bytes;
};

constexpr ActQuantBench kActQuantBenches[] = {{"hidden", kHidden}, {"expert", kExpert}, {"window record", kLatent}};
constexpr Fp4Bench kFp4Benches[] = {
    {"main entry", kernels::Fp4Format::kMain, kLatent, 1},
    {"indexer key", kernels::Fp4Format::kIndex, kIndexKey, 1},
    {"indexer query, 32 heads", kernels::Fp4Format::kIndex, kIndexKey, kIndexHeads},
};
constexpr StoreBench kStoreBenches[] = {{"main entry", kLatent.dim / 2, kLatent.dim / 16},
                                        {"indexer key", kIndexKey.dim / 2, kIndexKey.dim / 32}};

const bool kRegistered = [] {
  using benchmark::State;
  for (const ActQuantBench& b : kActQuantBenches) {
    for_each_row_count(std::string("act_quant/") + b.name,
                       [&b](State& state, const CpuContext& context, int64_t n_rows) {
                         run_act_quant(state, context, b.row, n_rows);
                       });
  }
  for (const Fp4Bench& b : kFp4Benches) {
    for_each_row_count(std::string("fp4_quant/") + b.name,
                       [&b](State& state, const CpuContext& context, int64_t n_rows) {
                         run_fp4_quant(state, context, b.format, b.row, n_rows * b.rows_per_token);
                       });
  }
  for (const StoreBench& b : kStoreBenches) {
    for_each_row_count(std::string("store_records/") + b.name,
                       [&b](State& state, const CpuContext& context, int64_t n_rows) {
                         run_store_records(state, context, b.code_bytes, b.scale_bytes, n_rows);
                       });
  }
  for_each_row_count("store_window", run_store_window);
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
