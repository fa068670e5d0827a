#include "kernels/attention/sparse_attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/kv_memory.h"
#include "kernels/attention/sparse_attention_cases.h"
#include "kernels/common/number_formats.h"
#include "support/compare.h"
#include "support/flush_denormals.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

constexpr float kInf = std::numeric_limits<float>::infinity();

double value_of_window(const uint8_t* record, int64_t dim, int64_t i) {
  return double{e4m3_to_f32(record[i])} * e8m0_to_f32(record[dim + i / 32]);
}

double value_of_main(const uint8_t* record, int64_t dim, int64_t i) {
  return double{kE2m1Values[record[i / 2] >> (i % 2 * 4) & 15]} * e4m3_to_f32(record[dim / 2 + i / 16]);
}

// A step of a few rows of one sequence. Rows and entries that no query may see are not written, that is NaN.
struct Fixture {
  explicit Fixture(const SparseAttentionCase& row, uint32_t entries_per_page = 64, int64_t n_fresh = -1)
      : dim(row.dim),
        n_heads(row.n_heads),
        n_positions(row.positions[2] + 1),
        positions(row.positions, row.positions + 3),
        ring(static_cast<uint32_t>(row.window + 3), static_cast<uint32_t>(dim + dim / 32)),
        main(n_positions, static_cast<uint32_t>(dim / 2), static_cast<uint32_t>(dim / 16), entries_per_page),
        window_records(random_window_records(n_positions, dim, 100)),
        main_records(random_main_records(n_positions, dim, 900)),
        q(random_bf16(static_cast<size_t>(3 * n_heads * dim), 7, 2.0f)),
        o(q.size(), 0xffff),
        sink(random_f32(static_cast<size_t>(n_heads), 8)),
        selected(static_cast<size_t>(3 * std::max<int64_t>(row.k, 1)), -1) {
    if (n_fresh < 0) n_fresh = row.n_fresh;
    const int64_t fresh_first = n_positions - n_fresh;
    for (int64_t p = std::max<int64_t>(0, n_positions - row.window - 2); p < fresh_first; ++p) {
      ring.put(p, window_record(p));
    }
    for (int64_t j = 0; j < n_positions; ++j) main.put(j, &main_records[static_cast<size_t>(j * (dim / 2 + dim / 16))]);
    sequence.ring = ring.ring;
    sequence.main = main.field;
    sequence.fresh = n_fresh > 0 ? window_record(fresh_first) : nullptr;
    sequence.fresh_first = fresh_first;
    for (int64_t t = 0; t < 3; ++t) {
      n_selected[t] = static_cast<int32_t>(std::max<int64_t>(row.k - t, 0));
      for (int32_t i = 0; i < n_selected[t]; ++i) selected[static_cast<size_t>(t * row.k + i)] = 3 * i / 2;
    }
    args = {
        q.data(),   o.data(), sink.data(), &sequence, row_sequence, positions.data(), row.k ? selected.data() : nullptr,
        n_selected, row.k,    3,           n_heads,   dim,          row.window};
  }
  const uint8_t* window_record(int64_t p) const { return &window_records[static_cast<size_t>(p * (dim + dim / 32))]; }

  int64_t dim, n_heads, n_positions;
  std::vector<int32_t> positions;
  RingRows ring;
  PagedRecords main;
  std::vector<uint8_t> window_records, main_records;
  std::vector<uint16_t> q, o;
  std::vector<float> sink;
  std::vector<int32_t> selected;
  int32_t n_selected[3] = {}, row_sequence[3] = {};
  AttentionSequence sequence;
  SparseAttentionArgs args;
};

// Largest |cpu - ref| before the last rounding: fp32 sums of e * value, and for every key whose e lies within 1e-5 of
// the border between two BF16 values one BF16 step of it.
std::vector<double> cpu_bound(const Fixture& f) {
  std::vector<double> bound(f.q.size());
  for (int64_t t = 0; t < 3; ++t) {
    std::vector<std::vector<double>> keys;
    const auto add_key = [&](const auto& value) {
      std::vector<double>& key = keys.emplace_back();
      for (int64_t i = 0; i < f.dim; ++i) key.push_back(value(i));
    };
    const int64_t position = f.positions[static_cast<size_t>(t)];
    for (int64_t p = std::max<int64_t>(0, position - f.args.window + 1); p <= position; ++p) {
      add_key([&](int64_t i) { return value_of_window(f.window_record(p), f.dim, i); });
    }
    for (int32_t s = 0; s < f.n_selected[t]; ++s) {
      const int64_t entry = f.selected[static_cast<size_t>(t * f.args.k + s)];
      add_key([&](int64_t i) {
        return value_of_main(&f.main_records[static_cast<size_t>(entry * (f.dim / 2 + f.dim / 16))], f.dim, i);
      });
    }
    for (int64_t h = 0; h < f.n_heads; ++h) {
      const size_t offset = static_cast<size_t>((t * f.n_heads + h) * f.dim);
      std::vector<double> e;
      for (const std::vector<double>& key : keys) {
        double logit = 0;
        for (size_t i = 0; i < key.size(); ++i) logit += bf16_to_f32(f.q[offset + i]) * key[i];
        e.push_back(logit / std::sqrt(static_cast<double>(f.dim)));
      }
      const double largest = *std::max_element(e.begin(), e.end());
      double denominator = std::exp(f.sink[static_cast<size_t>(h)] - largest);
      for (double& x : e) denominator += x = std::exp(x - largest);
      for (size_t k = 0; k < keys.size(); ++k) {
        const bool may_flip = f64_to_bf16(e[k] * (1 - 1e-5)) != f64_to_bf16(e[k] * (1 + 1e-5));
        const double error = fp32_sum_bound(static_cast<int64_t>(keys.size()), 1) + (may_flip ? 0x1p-7 : 0);
        for (size_t i = 0; i < keys[k].size(); ++i)
          bound[offset + i] += error * e[k] * std::abs(keys[k][i]) / denominator;
      }
    }
  }
  return bound;
}

void run(const SparseAttentionArgs& args, const CpuContext* context) {
  REQUIRE(check_sparse_attention(args).ok());
  context ? sparse_attention_cpu(args, *context) : sparse_attention_ref(args);
}

// Calls check(context) for ref (null) and for cpu on every target.
void for_ref_and_cpu(const std::function<void(const CpuContext*)>& check) {
  check(nullptr);
  for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
    CAPTURE(name);
    check(&context);
  });
}

// One head, one window row (position 0), q = 0, so that the row's logit is 0.
struct OneKey {
  explicit OneKey(const std::vector<uint8_t>& record, float sink_value)
      : dim(static_cast<int64_t>(record.size()) * 32 / 33),
        q(static_cast<size_t>(dim)),
        o(q.size(), 0xffff),
        sink(sink_value) {
    sequence.fresh = record.data();
    sequence.ring.row_bytes = static_cast<uint32_t>(record.size());
    args = {q.data(), o.data(), &sink, &sequence, &zero, &zero, nullptr, nullptr, 0, 1, 1, dim, 128};
  }
  int64_t dim;
  std::vector<uint16_t> q, o;
  float sink;
  int32_t zero = 0;
  AttentionSequence sequence;
  SparseAttentionArgs args;
};

TEST_SUITE("kernels/attention/sparse_attention") {
  TEST_CASE("golden queries, records and selections give the golden core output") {
    const GoldenFile golden = GoldenFile::open(golden_path("pico/ops.safetensors"));
    GoldenCheckpoint checkpoint = GoldenCheckpoint::open(golden_path("pico/checkpoint"));
    struct Row {
      std::string layer, owner, index_owner;
    };
    for (const Row& row : {Row{"0", "", ""}, {"2", "2", "2"}, {"6", "6", "6"}, {"7", "6", "6"}, {"8", "6", "8"}}) {
      CAPTURE(row.layer);
      const std::string name = "attn" + row.layer + ".";
      const std::vector<uint8_t> window = golden.tensor(name + "window_bytes").u8();
      const std::vector<uint16_t> q = golden.tensor(name + "q_last4").bf16();
      const std::vector<uint16_t> want = golden.tensor(name + "core_last4").bf16();
      const std::vector<float> sink = checkpoint.tensor("layers." + row.layer + ".attn.attn_sink").f32();
      RingRows ring(136, 528);
      for (int64_t p = 12; p < 148; ++p) ring.put(p, &window[static_cast<size_t>(p * 528)]);
      AttentionSequence sequence;
      sequence.ring = ring.ring;
      sequence.fresh = &window[148 * 528];
      sequence.fresh_first = 148;
      PagedRecords main(150, 256, 32, 64);
      std::vector<int32_t> selected(4 * 32, -1);
      int32_t n_selected[4] = {};
      if (!row.owner.empty()) {
        const std::vector<uint8_t> records = golden.tensor("attn" + row.owner + ".main_bytes").u8();
        const std::vector<uint8_t> mask = golden.tensor("attn" + row.index_owner + ".selected").u8();
        const size_t n = records.size() / 288;
        for (size_t j = 0; j < n; ++j) main.put(static_cast<int64_t>(j), &records[j * 288]);
        for (size_t t = 0; t < 4; ++t) {
          for (size_t j = 0; j < n; ++j) {
            if (mask[(146 + t) * n + j])
              selected[t * 32 + static_cast<size_t>(n_selected[t]++)] = static_cast<int32_t>(j);
          }
        }
        sequence.main = main.field;
      }
      const int32_t sequences[4] = {}, positions[4] = {146, 147, 148, 149};
      std::vector<uint16_t> o(want.size());
      run({q.data(), o.data(), sink.data(), &sequence, sequences, positions,
           row.owner.empty() ? nullptr : selected.data(), n_selected, 32, 4, 4, 512, 128},
          nullptr);
      CHECK(compare_equal<uint16_t>(want, o) == "");
    }
  }

  TEST_CASE("cpu agrees with ref on every target and any cut") {
    for (const SparseAttentionCase& row : kSparseAttentionCases) {
      CAPTURE(row.name);
      Fixture want(row);
      run(want.args, nullptr);
      const std::vector<double> bound = cpu_bound(want);
      std::vector<uint16_t> first;
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        Fixture got(row);
        run(got.args, &context);
        CHECK(compare_bf16(want.o, got.o, bound) == "");
        if (first.empty()) first = got.o;
        CHECK(compare_equal<uint16_t>(first, got.o) == "");
      });
    }
  }

  TEST_CASE("a row does not depend on its company, on the page size or on what is still fresh") {
    for (const SparseAttentionCase& row : {kSparseAttentionCases[3], kSparseAttentionCases[4]}) {
      CAPTURE(row.name);
      for_ref_and_cpu([&](const CpuContext* context) {
        Fixture all(row);
        run(all.args, context);
        Fixture other(row, 7, 0);
        other.ring.put(other.n_positions - 1, other.window_record(other.n_positions - 1));
        run(other.args, context);
        CHECK(compare_equal<uint16_t>(all.o, other.o) == "");
        Fixture single(row);
        for (int64_t t : {2, 0, 1}) {
          SparseAttentionArgs args = single.args;
          args.q += t * args.n_heads * args.dim;
          args.o += t * args.n_heads * args.dim;
          args.row_position += t;
          args.selected += t * args.k;
          args.n_selected += t;
          args.n_rows = 1;
          run(args, context);
        }
        CHECK(compare_equal<uint16_t>(all.o, single.o) == "");
      });
    }
  }

  TEST_CASE("every position sees exactly its window and its visible entries") {
    // Brute force over a mask of all rows and entries, for both ratios, with floors. What must not be seen is NaN; as q
    // is zero, all that is seen counts the same, and a missing key would show.
    constexpr int64_t kDim = 32, kLast = 300;
    const std::vector<uint8_t> window = random_window_records(kLast + 1, kDim, 1);
    const std::vector<uint8_t> main = random_main_records(kLast + 1, kDim, 2);
    const std::vector<uint16_t> q(kDim);
    const float sink = 0;
    for (const auto& [ratio, floor] : {std::pair<int64_t, int64_t>{1, 0}, {2, 0}, {1, 126}, {2, 129}}) {
      CAPTURE(ratio);
      CAPTURE(floor);
      RingRows ring(136, kDim + 1);
      PagedRecords entries(kLast + 1, kDim / 2, kDim / 16, 64);
      AttentionSequence sequence;
      sequence.ring = ring.ring;
      sequence.main = entries.field;
      sequence.floor = floor;
      std::vector<int32_t> selected(kLast + 1);
      for (int64_t j = 0; j <= kLast; ++j) selected[static_cast<size_t>(j)] = static_cast<int32_t>(j);
      for (int64_t p = 0; p <= kLast; ++p) {
        CAPTURE(p);
        if (p >= 130) ring.put(p - 130, std::vector<uint8_t>(kDim + 1, 0xff).data());
        if (p >= floor) ring.put(p, &window[static_cast<size_t>(p * (kDim + 1))]);
        if ((p + 1) % ratio == 0)
          entries.put(p / ratio, &main[static_cast<size_t>(p / ratio * (kDim / 2 + kDim / 16))]);
        if (p < floor) continue;

        std::vector<double> want(kDim);
        double n_seen = 1;  // the sink
        for (int64_t r = 0; r <= kLast; ++r) {
          if (r > p || p - r >= 128 || r < floor) continue;
          ++n_seen;
          for (int64_t i = 0; i < kDim; ++i) {
            want[static_cast<size_t>(i)] += value_of_window(&window[static_cast<size_t>(r * (kDim + 1))], kDim, i);
          }
        }
        for (int64_t j = 0; j <= kLast; ++j) {
          if (j * ratio + ratio - 1 > p) continue;
          ++n_seen;
          for (int64_t i = 0; i < kDim; ++i) {
            want[static_cast<size_t>(i)] +=
                value_of_main(&main[static_cast<size_t>(j * (kDim / 2 + kDim / 16))], kDim, i);
          }
        }

        const int32_t position = static_cast<int32_t>(p), zero = 0;
        const int32_t n_selected = static_cast<int32_t>((p + 1) / ratio);
        SerialParallel serial;
        const CpuContext context{best_cpu_target(), &serial};
        for (const CpuContext* run_on : {static_cast<const CpuContext*>(nullptr), &context}) {
          std::vector<uint16_t> o(kDim);
          run({q.data(), o.data(), &sink, &sequence, &zero, &position, selected.data(), &n_selected, kLast + 1, 1, 1,
               kDim, 128},
              run_on);
          for (size_t i = 0; i < o.size(); ++i) {
            const double mean = want[i] / n_seen;
            if (!(std::abs(bf16_to_f32(o[i]) - mean) <= 0x1p-8 * std::abs(mean) + 1e-5)) {
              FAIL("channel " << i << ": " << bf16_to_f32(o[i]) << ", want " << mean);
            }
          }
        }
      }
    }
  }

  TEST_CASE("every E4M3 code of the window comes out as itself") {
    std::vector<uint8_t> record(256 + 8);
    for (size_t i = 0; i < 256; ++i) record[i] = static_cast<uint8_t>((i & 0x7f) == 0x7f ? 0 : i);  // no NaN
    for (uint8_t scale : {105, 118, 127, 140}) {
      CAPTURE(scale);
      std::fill(record.begin() + 256, record.end(), scale);
      for_ref_and_cpu([&](const CpuContext* context) {
        OneKey f(record, -kInf);
        run(f.args, context);
        for (size_t i = 0; i < 256; ++i) {
          const double want = value_of_window(record.data(), 256, static_cast<int64_t>(i));
          const float got = bf16_to_f32(f.o[i]);
          if (want != got) FAIL("code " << i << ": " << got << ", want " << want);
        }
      });
    }
  }

  TEST_CASE("every E2M1 code of an entry comes out as itself under every E4M3 scale") {
    // 256 groups of 16 codes: group s has scale s (0 in place of the two NaN).
    constexpr int64_t kDim = 4096;
    std::vector<uint8_t> record(kDim / 2 + kDim / 16);
    for (size_t i = 0; i < kDim / 2; ++i) record[i] = static_cast<uint8_t>(i % 8 * 2 | (i % 8 * 2 + 1) << 4);
    for (size_t s = 0; s < kDim / 16; ++s) record[kDim / 2 + s] = static_cast<uint8_t>((s & 0x7f) == 0x7f ? 0 : s);
    PagedRecords main(1, kDim / 2, kDim / 16, 3);
    main.put(0, record.data());
    for_ref_and_cpu([&](const CpuContext* context) {
      const std::vector<uint16_t> q(kDim);
      std::vector<uint16_t> o(kDim, 0xffff);
      AttentionSequence sequence;
      sequence.main = main.field;
      sequence.floor = 1;  // nothing of the window
      const float sink = -kInf;
      const int32_t zero = 0, n_selected = 1;
      run({q.data(), o.data(), &sink, &sequence, &zero, &zero, &zero, &n_selected, 1, 1, 1, kDim, 128}, context);
      for (int64_t i = 0; i < kDim; ++i) {
        const double want = value_of_main(record.data(), kDim, i);
        const float got = bf16_to_f32(o[static_cast<size_t>(i)]);
        if (want != got) FAIL("dim " << i << ": " << got << ", want " << want);
      }
    });
  }

  TEST_CASE("the sink takes its share of the probability and no value") {
    const std::vector<uint8_t> record = random_window_records(1, 64, 5);
    struct Row {
      float sink, share;
    };
    for (const Row& row : {Row{0, 0.5f}, {-kInf, 1}, {-1000, 1}, {1000, 0}, {kInf, 0}, {std::log(3.0f), 0.25f}}) {
      CAPTURE(row.sink);
      for_ref_and_cpu([&](const CpuContext* context) {
        OneKey f(record, row.sink);
        run(f.args, context);
        for (size_t i = 0; i < f.o.size(); ++i) {
          const double want = row.share * value_of_window(record.data(), 64, static_cast<int64_t>(i));
          if (!(std::abs(bf16_to_f32(f.o[i]) - want) <= std::abs(want) * 0x1p-8)) FAIL("channel " << i);
        }
      });
    }
  }

  TEST_CASE("a sink near the range of fp32 gives the same small output as ref") {
    const std::vector<uint8_t> record = random_window_records(1, 64, 5);
    for (float sink : {79.0f, 80.5f, 84.0f, 87.0f}) {
      CAPTURE(sink);
      OneKey want(record, sink);
      run(want.args, nullptr);
      std::vector<double> bound(want.o.size());
      for (size_t i = 0; i < bound.size(); ++i) bound[i] = 1e-6 * std::abs(bf16_to_f32(want.o[i])) + 0x1p-126;
      for_each_cpu_run([&](const CpuContext& context, const std::string&) {
        OneKey got(record, sink);
        run(got.args, &context);
        CHECK(compare_bf16(want.o, got.o, bound) == "");
      });
    }
  }

  TEST_CASE("a query without keys gives zeros") {
    const std::vector<uint8_t> record(33, 0xff);
    for_ref_and_cpu([&](const CpuContext* context) {
      OneKey f(record, 0);
      f.sequence.floor = 1;
      run(f.args, context);
      CHECK(std::count(f.o.begin(), f.o.end(), 0) == 32);
    });
  }

  TEST_CASE("a NaN code, window scale or entry scale makes its row NaN") {
    for_ref_and_cpu([&](const CpuContext* context) {
      for (int kind : {0, 1, 2}) {
        CAPTURE(kind);
        Fixture f(kSparseAttentionCases[4]);
        const int64_t p = f.positions[0] - f.args.window + 1;  // the oldest row of the first query only
        if (kind == 0) *reinterpret_cast<uint8_t*>(f.ring.ring.row(p)) = 0xff;
        if (kind == 1) *reinterpret_cast<uint8_t*>(f.ring.ring.row(p) + f.dim) = 0xff;
        if (kind == 2) *reinterpret_cast<uint8_t*>(f.main.field.scales(f.selected[4])) = 0x7f;  // entry 4 of row 0
        run(f.args, context);
        for (int64_t i = 0; i < 3 * f.n_heads; ++i) {
          CHECK(std::isnan(bf16_to_f32(f.o[static_cast<size_t>(i * f.dim)])) == (i < f.n_heads));
        }
      }
    });
  }

  TEST_CASE("NaN in a query stays in its head") {
    for_ref_and_cpu([&](const CpuContext* context) {
      Fixture f(kSparseAttentionCases[4]);
      f.q[static_cast<size_t>(f.dim * 18 + 5)] = 0x7fc0;  // row 1, head 1
      run(f.args, context);
      for (int64_t h = 0; h < 3 * f.n_heads; ++h) {
        const bool is_nan = std::isnan(bf16_to_f32(f.o[static_cast<size_t>(h * f.dim)]));
        CHECK(is_nan == (h == 18));
      }
    });
  }

  TEST_CASE("flushing denormals does not change a bit of cpu") {
    for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
      CAPTURE(name);
      Fixture plain(kSparseAttentionCases[3]), flushed(kSparseAttentionCases[3]);
      run(plain.args, &context);
      {
        const FlushDenormals flush;
        run(flushed.args, &context);
      }
      CHECK(compare_equal<uint16_t>(plain.o, flushed.o) == "");
    });
  }

  TEST_CASE("bad extents are refused") {
    Fixture f(kSparseAttentionCases[1]);
    const auto code = [&](const auto& change) {
      SparseAttentionArgs args = f.args;
      change(args);
      return check_sparse_attention(args).code();
    };
    CHECK(code([](SparseAttentionArgs&) {}) == Code::kOK);
    CHECK(code([](SparseAttentionArgs& a) { a.dim = 40; }) == Code::kINVALID_ARG);
    CHECK(code([](SparseAttentionArgs& a) { a.window = 0; }) == Code::kINVALID_ARG);
    CHECK(code([](SparseAttentionArgs& a) { a.n_heads = 0; }) == Code::kINVALID_ARG);
    CHECK(code([](SparseAttentionArgs& a) { a.k = -1; }) == Code::kINVALID_ARG);
    CHECK(code([](SparseAttentionArgs& a) { a.n_selected = nullptr; }) == Code::kINVALID_ARG);
    CHECK(code([](SparseAttentionArgs& a) { a.sink = nullptr; }) == Code::kINVALID_ARG);
    CHECK(code([&](SparseAttentionArgs& a) {
            a.o = f.q.data();
            a.q = f.q.data();
          }) == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
