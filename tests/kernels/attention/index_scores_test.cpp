#include "kernels/attention/index_scores.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention/index_scores_cases.h"
#include "kernels/attention/kv_memory.h"
#include "kernels/common/number_formats.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

constexpr float kPoison = 12345.0f;

struct Fixture {
  explicit Fixture(const IndexScoresCase& row)
      : n_entries(*std::max_element(row.positions, row.positions + 4) / row.ratio + 1),
        keys(n_entries, static_cast<uint32_t>(row.dim / 2), static_cast<uint32_t>(row.dim / 32),
             static_cast<uint32_t>(row.entries_per_page)),
        other_keys(n_entries, static_cast<uint32_t>(row.dim / 2), static_cast<uint32_t>(row.dim / 32), 5, 77),
        fields{keys.field, other_keys.field},
        sequence{0, 1, 0, 1},
        positions(row.positions, row.positions + 4),
        query_codes(random_bytes(static_cast<size_t>(4 * row.n_heads * row.dim / 2), 1)),
        query_scales(random_e8m0(static_cast<size_t>(4 * row.n_heads * row.dim / 32), 2, 124, 128)),
        weights(random_bf16(static_cast<size_t>(4 * row.n_heads), 3)),
        scores(static_cast<size_t>(4 * (n_entries + 3)), kPoison) {
    const std::vector<uint8_t> records = random_index_records(2 * n_entries, row.dim, 10);
    const int64_t record_bytes = row.dim / 2 + row.dim / 32;
    for (int64_t j = 0; j < n_entries; ++j) {
      keys.put(j, &records[static_cast<size_t>(j * record_bytes)]);
      other_keys.put(j, &records[static_cast<size_t>((n_entries + j) * record_bytes)]);
    }
    args.query_codes = query_codes.data();
    args.query_scales = query_scales.data();
    args.head_weights = weights.data();
    args.factor = 1 / std::sqrt(static_cast<double>(row.dim * row.n_heads));
    args.keys = fields;
    args.row_sequence = sequence;
    args.row_position = positions.data();
    args.scores = scores.data();
    args.score_stride = n_entries + 3;
    args.n_rows = 4;
    args.n_heads = row.n_heads;
    args.dim = row.dim;
    args.ratio = row.ratio;
    if (row.block_size == 0) return;
    const int64_t stride = n_entries / row.block_size + 2;
    blocks.assign(static_cast<size_t>(4 * stride), -1);
    for (int64_t t = 0; t < 4; ++t) {
      n_blocks[t] = 0;
      const int64_t n = (positions[static_cast<size_t>(t)] + 1) / row.ratio;
      for (int64_t b = t % 2; b * row.block_size < n; b += 2) {
        blocks[static_cast<size_t>(t * stride + n_blocks[t]++)] = static_cast<int32_t>(b);
      }
    }
    args.candidates = {blocks.data(), n_blocks, stride, row.block_size};
  }

  void clear_signs() {
    for (uint8_t& code : query_codes) code &= 0x77;
    for (uint16_t& weight : weights) weight &= 0x7fff;
    for (PagedRecords* records : {&keys, &other_keys}) {
      for (int64_t j = 0; j < n_entries; ++j) {
        for (uint32_t i = 0; i < records->field.code_bytes; ++i) records->field.codes(j)[i] &= std::byte{0x77};
      }
    }
  }

  bool is_scored(int64_t row, int64_t entry) const {
    if (entry >= (positions[static_cast<size_t>(row)] + 1) / args.ratio) return false;
    if (!args.candidates.blocks) return true;
    const int32_t* first = args.candidates.blocks + row * args.candidates.stride;
    return std::count(first, first + args.candidates.n[row], entry / args.candidates.size) != 0;
  }

  int64_t n_entries;
  PagedRecords keys, other_keys;
  tensor::PagedField fields[2];
  int32_t sequence[4];
  std::vector<int32_t> positions;
  std::vector<uint8_t> query_codes, query_scales;
  std::vector<uint16_t> weights;
  std::vector<float> scores;
  std::vector<int32_t> blocks;
  int32_t n_blocks[4] = {};
  IndexScoresArgs args;
};

// Values that lie on the FP4 grid, as codes and scales.
void encode_fp4(const std::vector<float>& values, std::vector<uint8_t>& codes, std::vector<uint8_t>& scales) {
  codes.assign(values.size() / 2, 0);
  scales.assign(values.size() / 32, 0);
  for (size_t group = 0; group < scales.size(); ++group) {
    float largest = 6 * 0x1p-126f;
    for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(values[group * 32 + i]));
    const int exponent = ceil_log2(largest * (1.0f / 6));
    scales[group] = static_cast<uint8_t>(exponent + 127);
    for (size_t i = 0; i < 32; ++i) {
      const float x = std::ldexp(values[group * 32 + i], -exponent);
      const uint8_t code = f32_to_e2m1(x);
      REQUIRE(kE2m1Values[code] == x);
      codes[(group * 32 + i) / 2] |= static_cast<uint8_t>(code << (i % 2 * 4));
    }
  }
}

TEST_SUITE("kernels/attention/index_scores") {
  TEST_CASE("golden queries and keys give the golden scores") {
    const GoldenFile golden = GoldenFile::open(golden_path("pico/ops.safetensors"));
    struct Row {
      std::string name, owner;
      int64_t ratio;
      bool has_candidates;
    };
    for (const Row& row :
         {Row{"attn2.", "attn2.", 2, false}, {"attn6.", "attn6.", 1, false}, {"attn8.", "attn6.", 1, true}}) {
      CAPTURE(row.name);
      const std::vector<uint8_t> records = golden.tensor(row.owner + "index_key_bytes").u8();
      const int64_t n = static_cast<int64_t>(records.size()) / 68;
      PagedRecords keys(n, 64, 4, 64);
      for (int64_t j = 0; j < n; ++j) keys.put(j, &records[static_cast<size_t>(j * 68)]);
      std::vector<uint8_t> codes, scales;
      encode_fp4(golden.tensor(row.name + "index_q_last4").f32(), codes, scales);
      const double factor = 1 / std::sqrt(512.0);
      const std::vector<float> scaled = golden.tensor(row.name + "index_weights").f32();
      std::vector<uint16_t> weights;
      for (size_t i = 146 * 4; i < 150 * 4; ++i) {
        weights.push_back(f64_to_bf16(scaled[i] / factor));
        REQUIRE(static_cast<float>(bf16_to_f32(weights.back()) * factor) == scaled[i]);
      }
      const int32_t sequence[4] = {}, positions[4] = {146, 147, 148, 149};
      std::vector<float> scores(static_cast<size_t>(4 * n), -3e38f);
      IndexScoresArgs args{codes.data(),
                           scales.data(),
                           weights.data(),
                           factor,
                           &keys.field,
                           sequence,
                           positions,
                           {},
                           scores.data(),
                           n,
                           4,
                           4,
                           128,
                           row.ratio};
      std::vector<int32_t> blocks(4 * 8);
      int32_t n_blocks[4] = {};
      if (row.has_candidates) {
        const std::vector<uint8_t> mask = golden.tensor("attn6.candidates").u8();
        for (size_t t = 0; t < 4; ++t) {
          for (size_t b = 0; b * 8 < 150; ++b) {
            if (mask[(146 + t) * 150 + b * 8])
              blocks[t * 8 + static_cast<size_t>(n_blocks[t]++)] = static_cast<int32_t>(b);
          }
          REQUIRE(n_blocks[t] == 8);
        }
        args.candidates = {blocks.data(), n_blocks, 8, 8};
      }
      REQUIRE(check_index_scores(args).ok());
      index_scores_ref(args);
      const std::vector<float> last16 = golden.tensor(row.name + "index_scores_last16").f32();
      CHECK(compare_equal<float>(std::span(last16).subspan(static_cast<size_t>(12 * n)), scores) == "");
    }
  }

  TEST_CASE("cpu agrees with ref on every target and any cut, and writes only what is scored") {
    for (const IndexScoresCase& row : kIndexScoresCases) {
      CAPTURE(row.name);
      Fixture want(row);
      REQUIRE(check_index_scores(want.args).ok());
      index_scores_ref(want.args);
      for (int64_t t = 0; t < 4; ++t) {
        for (int64_t j = 0; j < want.args.score_stride; ++j) {
          const bool is_written = want.scores[static_cast<size_t>(t * want.args.score_stride + j)] != kPoison;
          if (is_written != want.is_scored(t, j)) FAIL("row " << t << ", entry " << j);
        }
      }
      // Without any sign the score is the sum of the magnitudes of its products.
      Fixture unsigned_run(row);
      unsigned_run.clear_signs();
      index_scores_ref(unsigned_run.args);
      std::vector<double> bound(want.scores.size());
      for (size_t i = 0; i < bound.size(); ++i)
        bound[i] = fp32_sum_bound(row.n_heads * row.dim, unsigned_run.scores[i]);
      std::vector<float> first;
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        Fixture got(row);
        index_scores_cpu(got.args, context);
        CHECK(compare_f32(want.scores, got.scores, bound) == "");
        if (first.empty()) first = got.scores;
        CHECK(compare_equal<float>(first, got.scores) == "");
      });
    }
  }

  TEST_CASE("a score does not depend on the rows that share the step") {
    Fixture all(kIndexScoresCases[4]), single(kIndexScoresCases[4]);
    for_each_cpu_run([&](const CpuContext& context, const std::string&) {
      index_scores_cpu(all.args, context);
      for (int64_t t = 0; t < 4; ++t) {
        IndexScoresArgs args = single.args;
        args.query_codes += t * args.n_heads * args.dim / 2;
        args.query_scales += t * args.n_heads * args.dim / 32;
        args.head_weights += t * args.n_heads;
        args.row_sequence += t;
        args.row_position += t;
        args.scores += t * args.score_stride;
        args.n_rows = 1;
        index_scores_cpu(args, context);
      }
      CHECK(compare_equal<float>(all.scores, single.scores) == "");
    });
  }

  TEST_CASE("a negative dot product counts as zero and a negative weight keeps its sign") {
    PagedRecords keys(2, 16, 1, 4);
    const std::vector<uint8_t> ones(16, 0x22), minus_ones(16, 0xaa), scale{127};
    keys.put(0, ones.data(), scale.data());
    keys.put(1, minus_ones.data(), scale.data());
    std::vector<uint8_t> codes(32, 0x22);
    std::fill(codes.begin() + 16, codes.end(), 0xaa);  // head 0: ones, head 1: minus ones
    const std::vector<uint8_t> scales{128, 127};
    const std::vector<uint16_t> weights{f32_to_bf16(-3.0f), f32_to_bf16(5.0f)};
    const int32_t sequence = 0, position = 1;
    float scores[2] = {};
    const IndexScoresArgs args{codes.data(),
                               scales.data(),
                               weights.data(),
                               0.5,
                               &keys.field,
                               &sequence,
                               &position,
                               {},
                               scores,
                               2,
                               1,
                               2,
                               32,
                               1};
    index_scores_ref(args);
    CHECK(scores[0] == -96.0f);  // -1.5 * 64 + 2.5 * 0
    CHECK(scores[1] == 80.0f);   // -1.5 * 0 + 2.5 * 32
    for_each_cpu_run([&](const CpuContext& context, const std::string&) {
      scores[0] = scores[1] = 0;
      index_scores_cpu(args, context);
      CHECK(scores[0] == -96.0f);
      CHECK(scores[1] == 80.0f);
    });
  }

  TEST_CASE("a NaN scale shows in the scores of its entry only") {
    Fixture f(kIndexScoresCases[2]);
    *reinterpret_cast<uint8_t*>(f.keys.field.scales(3)) = 255;
    index_scores_ref(f.args);
    CHECK(std::isnan(f.scores[3]));
    CHECK(std::isfinite(f.scores[2]));
    for_each_cpu_run([&](const CpuContext& context, const std::string&) {
      index_scores_cpu(f.args, context);
      CHECK(std::isnan(f.scores[3]));
      CHECK(std::isfinite(f.scores[2]));
      CHECK(std::isfinite(f.scores[4]));
    });
  }

  TEST_CASE("bad extents are refused") {
    Fixture f(kIndexScoresCases[6]);
    IndexScoresArgs args = f.args;
    args.dim = 48;
    CHECK(check_index_scores(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.ratio = 0;
    CHECK(check_index_scores(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.candidates.n = nullptr;
    CHECK(check_index_scores(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.keys = nullptr;
    CHECK(check_index_scores(args).code() == Code::kINVALID_ARG);
    args.n_rows = 0;
    CHECK(check_index_scores(args).ok());
  }
}

}  // namespace
}  // namespace dsv41::test
