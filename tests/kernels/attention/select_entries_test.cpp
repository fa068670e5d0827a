#include "kernels/attention/select_entries.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// Kinds of score rows; every one must give the ids of the plain definition.
struct ScoreKind {
  const char* name;
  float (*draw)(std::mt19937_64& random);
};

float normal(std::mt19937_64& random) { return std::normal_distribution<float>()(random); }

const ScoreKind kScoreKinds[] = {
    {"distinct", normal},
    {"all equal", [](std::mt19937_64&) { return 0.25f; }},
    {"few values, many ties", [](std::mt19937_64& r) { return static_cast<float>(r() % 4) - 1.5f; }},
    {"zeros of both signs", [](std::mt19937_64& r) { return r() % 3 == 0 ? -1e-30f
                                                            : r() % 2    ? 0.0f
                                                                         : -0.0f; }},
    {"negative", [](std::mt19937_64& r) { return -std::abs(normal(r)) - 1e-3f; }},
    {"NaN and infinities",
     [](std::mt19937_64& r) {
       const uint64_t kind = r() % 8;
       return kind == 0 ? kNan : kind == 1 ? -kInf : kind == 2 ? kInf : kind == 3 ? -kNan : normal(r);
     }},
    {"mostly minus infinity", [](std::mt19937_64& r) { return r() % 100 == 0 ? normal(r) : -kInf; }},
    {"denormals", [](std::mt19937_64& r) { return static_cast<float>(r() % 9) * 1e-45f - 4e-45f; }},
};

std::vector<float> draw_scores(const ScoreKind& kind, int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> scores(static_cast<size_t>(n));
  for (float& x : scores) x = kind.draw(random);
  return scores;
}

// The definition in the plainest words: order all that may be chosen by score, stably; take n_best; order by id; pad.
std::vector<int32_t> best_ids(const std::vector<float>& scores, const std::function<bool(size_t)>& is_allowed,
                              size_t n_best, size_t width) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (is_allowed(i) && !std::isnan(scores[i]) && scores[i] != -kInf) ids.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  ids.resize(std::min(ids.size(), n_best));
  std::sort(ids.begin(), ids.end());
  ids.resize(width, -1);
  return ids;
}

// Runs ref (null context) and cpu on every target; check(context) runs one and compares.
void for_ref_and_cpu(const std::function<void(const CpuContext*)>& check) {
  check(nullptr);
  for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
    CAPTURE(name);
    check(&context);
  });
}

struct Selected {
  std::vector<int32_t> ids;
  int32_t n = -7;
};

Selected select(const std::vector<float>& scores, int64_t position, int64_t ratio, int64_t k, const CpuContext* context,
                CandidateBlocks candidates = {}) {
  Selected out{std::vector<int32_t>(static_cast<size_t>(k), -7)};
  const int32_t p = static_cast<int32_t>(position);
  const SelectTopKArgs args{
      scores.data(), static_cast<int64_t>(scores.size()), &p, ratio, candidates, out.ids.data(), &out.n, 1, k};
  REQUIRE(check_select_top_k(args).ok());
  context ? select_top_k_cpu(args, *context) : select_top_k_ref(args);
  return out;
}

Selected candidates_of(const std::vector<float>& scores, int64_t position, int64_t ratio, int64_t size, int64_t top,
                       const CpuContext* context) {
  Selected out{std::vector<int32_t>(static_cast<size_t>(top + 3), -7)};
  const int32_t p = static_cast<int32_t>(position);
  const SelectCandidatesArgs args{
      scores.data(), static_cast<int64_t>(scores.size()), &p, ratio, {out.ids.data(), &out.n, top + 3, size}, 1, top};
  REQUIRE(check_select_candidates(args).ok());
  context ? select_candidates_cpu(args, *context) : select_candidates_ref(args);
  return out;
}

void check_ids(const std::vector<int32_t>& want, const Selected& got) {
  CHECK(compare_equal<int32_t>(want, got.ids) == "");
  CHECK(got.n == std::count_if(want.begin(), want.end(), [](int32_t id) { return id >= 0; }));
}

TEST_SUITE("kernels/attention/select_entries") {
  TEST_CASE("top k equals the plain definition for every kind of scores") {
    struct Row {
      int64_t n, ratio, k;
    };
    for (const Row& row : {Row{1, 1, 1},
                           {2, 1, 1},
                           {33, 1, 8},
                           {511, 1, 512},
                           {512, 1, 512},
                           {513, 1, 512},
                           {513, 2, 512},
                           {1021, 2, 512},
                           {16385, 1, 512},
                           {128, 1, 1},
                           {1000, 1, 7},
                           {1024, 2, 8},
                           {2047, 1, 512},
                           {2048, 1, 512},
                           {3001, 1, 64},
                           {65537, 1, 512},
                           {131100, 1, 1}}) {
      CAPTURE(row.n);
      for (const ScoreKind& kind : kScoreKinds) {
        CAPTURE(kind.name);
        const std::vector<float> scores = draw_scores(kind, row.n, static_cast<uint64_t>(row.n));
        std::vector<int32_t> want;
        if (row.n <= row.k) {
          for (int32_t i = 0; i < row.k; ++i) want.push_back(i < row.n ? i : -1);
        } else {
          want = best_ids(
              scores, [](size_t) { return true; }, static_cast<size_t>(row.k), static_cast<size_t>(row.k));
        }
        for_ref_and_cpu([&](const CpuContext* context) {
          check_ids(want, select(scores, row.n * row.ratio - 1, row.ratio, row.k, context));
          // With ratio 2 an unfinished pair shows nothing more.
          if (row.ratio == 2) check_ids(want, select(scores, row.n * row.ratio, row.ratio, row.k, context));
        });
      }
    }
  }

  TEST_CASE("candidates equal the plain definition for every kind of scores, the newest block forced") {
    struct Row {
      int64_t n, size, top;
    };
    for (const Row& row : {Row{1, 8, 2},
                           {17, 8, 2},
                           {24, 8, 2},
                           {25, 8, 3},
                           {100, 3, 5},
                           {16383, 8, 2048},
                           {16384, 8, 2048},
                           {16385, 8, 2048},
                           {16392, 8, 2048},
                           {16393, 8, 2048}}) {
      CAPTURE(row.n);
      for (const ScoreKind& kind : kScoreKinds) {
        CAPTURE(kind.name);
        const std::vector<float> scores = draw_scores(kind, row.n, static_cast<uint64_t>(row.n) + 1);
        const size_t n_blocks = static_cast<size_t>((row.n + row.size - 1) / row.size);
        std::vector<float> best(n_blocks, -kInf);
        for (size_t j = 0; j < scores.size(); ++j) {
          float& block = best[j / static_cast<size_t>(row.size)];
          if (scores[j] > block) block = scores[j];
        }
        if (best.back() > -kInf) best.back() = kInf;
        std::vector<int32_t> want = best_ids(
            best, [](size_t) { return true; }, static_cast<size_t>(row.top), static_cast<size_t>(row.top + 3));
        if (n_blocks <= static_cast<size_t>(row.top)) {
          for (size_t i = 0; i < want.size(); ++i) want[i] = i < n_blocks ? static_cast<int32_t>(i) : -1;
        }
        for_ref_and_cpu([&](const CpuContext* context) {
          check_ids(want, candidates_of(scores, row.n - 1, 1, row.size, row.top, context));
        });
      }
    }
  }

  TEST_CASE("the newest block is a candidate even with the worst score") {
    std::vector<float> scores(33, 1.0f);
    scores.back() = -1e30f;
    for_ref_and_cpu([&](const CpuContext* context) {
      check_ids({0, 4, -1, -1, -1}, candidates_of(scores, 32, 1, 8, 2, context));
    });
  }

  TEST_CASE("only entries of candidate blocks are chosen or read") {
    for (const ScoreKind& kind : kScoreKinds) {
      CAPTURE(kind.name);
      std::vector<float> scores = draw_scores(kind, 100, 4);
      std::vector<int32_t> blocks = {0, 3, 4, 12, -1, -1};  // block 12 ends at 104, entry 100 is not visible
      int32_t n = 4;
      const auto is_allowed = [&](size_t i) { return std::count(blocks.begin(), blocks.end(), i / 8) != 0; };
      for (size_t i = 0; i < scores.size(); ++i) {
        if (!is_allowed(i)) scores[i] = 1e30f;
      }
      for (size_t k : {size_t{5}, size_t{28}, size_t{40}}) {
        for_ref_and_cpu([&](const CpuContext* context) {
          check_ids(best_ids(scores, is_allowed, k, k),
                    select(scores, 99, 1, static_cast<int64_t>(k), context, {blocks.data(), &n, 6, 8}));
        });
      }
    }
  }

  TEST_CASE("long lists of candidate blocks, the last one cut, give the ids of the plain definition") {
    for (const int64_t n_entries : {8 * 1024 + 3, 3 * 8 * 700 + 8, 70001}) {
      CAPTURE(n_entries);
      for (const ScoreKind& kind : kScoreKinds) {
        CAPTURE(kind.name);
        std::vector<float> scores = draw_scores(kind, n_entries, 5);
        std::vector<int32_t> blocks;
        for (int64_t b = n_entries < 10000 ? 0 : 1; b * 8 < n_entries; b += n_entries < 10000 ? 1 : 3) {
          blocks.push_back(static_cast<int32_t>(b));
        }
        std::vector<bool> allowed(scores.size());
        for (const int32_t b : blocks) {
          for (size_t i = static_cast<size_t>(b) * 8; i < std::min(scores.size(), static_cast<size_t>(b + 1) * 8);
               ++i) {
            allowed[i] = true;
          }
        }
        for (size_t i = 0; i < scores.size(); ++i) {
          if (!allowed[i]) scores[i] = 1e30f;
        }
        int32_t n = static_cast<int32_t>(blocks.size());
        const std::vector<int32_t> want = best_ids(
            scores, [&](size_t i) { return allowed[i]; }, 512, 512);
        for_ref_and_cpu([&](const CpuContext* context) {
          check_ids(want, select(scores, n_entries - 1, 1, 512, context, {blocks.data(), &n, n, 8}));
        });
      }
    }
  }

  TEST_CASE("rows in order, and rows whose best entries follow a pattern, give the ids of the plain definition") {
    constexpr int64_t kEntries = 20000;
    const auto check = [&](const char* name, float (*score)(int64_t)) {
      CAPTURE(name);
      std::vector<float> scores;
      for (int64_t i = 0; i < kEntries; ++i) scores.push_back(score(i));
      const std::vector<int32_t> want = best_ids(
          scores, [](size_t) { return true; }, 512, 512);
      for_ref_and_cpu(
          [&](const CpuContext* context) { check_ids(want, select(scores, kEntries - 1, 1, 512, context)); });
    };
    check("ascending", [](int64_t i) { return static_cast<float>(i); });
    check("descending", [](int64_t i) { return static_cast<float>(-i); });
    check("best at the start",
          [](int64_t i) { return i < 600 ? 2.0f + static_cast<float>(i % 7) : 0.001f * static_cast<float>(i % 999); });
    check("best in every 19th vector",
          [](int64_t i) { return (i / 16 % 19 == 0 ? 1e3f : 1.0f) * static_cast<float>(i % 997); });
    check("best in all others",
          [](int64_t i) { return (i / 16 % 19 == 0 ? -1.0f : 1.0f) * static_cast<float>(i % 997); });
  }

  TEST_CASE("scores are not read where everything is chosen") {
    const std::vector<float> scores(40, kNan);
    for_ref_and_cpu([&](const CpuContext* context) {
      CHECK(select(scores, 39, 1, 40, context).n == 40);
      CHECK(select(scores, 0, 2, 40, context).n == 0);
      CHECK(candidates_of(scores, 39, 1, 8, 5, context).n == 5);
      CHECK(candidates_of(scores, 0, 2, 8, 5, context).n == 0);
    });
  }

  TEST_CASE("rows do not touch one another") {
    const std::vector<float> scores = draw_scores(kScoreKinds[0], 3 * 700, 8);
    const int32_t positions[3] = {699, 20, 600};
    for_ref_and_cpu([&](const CpuContext* context) {
      std::vector<int32_t> ids(3 * 64), n(3);
      const SelectTopKArgs args{scores.data(), 700, positions, 1, {}, ids.data(), n.data(), 3, 64};
      context ? select_top_k_cpu(args, *context) : select_top_k_ref(args);
      for (size_t t = 0; t < 3; ++t) {
        const std::vector<float> row(scores.begin() + static_cast<int64_t>(700 * t),
                                     scores.begin() + static_cast<int64_t>(700 * t) + positions[t] + 1);
        check_ids(best_ids(
                      row, [](size_t) { return true; }, 64, 64),
                  {std::vector<int32_t>(ids.begin() + static_cast<int64_t>(64 * t),
                                        ids.begin() + static_cast<int64_t>(64 * (t + 1))),
                   n[t]});
      }
    });
  }

  TEST_CASE("golden scores give the golden selections and candidates") {
    const GoldenFile golden = GoldenFile::open(golden_path("pico/ops.safetensors"));
    const std::vector<uint8_t> candidate_mask = golden.tensor("attn6.candidates").u8();
    for (const auto& [name, ratio] : {std::pair<std::string, int64_t>{"attn2.", 2}, {"attn6.", 1}, {"attn8.", 1}}) {
      CAPTURE(name);
      const std::vector<float> scores = golden.tensor(name + "index_scores_last16").f32();
      const std::vector<uint8_t> selected = golden.tensor(name + "selected").u8();
      const size_t n = scores.size() / 16;
      for (size_t t = 0; t < 16; ++t) {
        CAPTURE(t);
        const std::vector<float> row(scores.begin() + static_cast<int64_t>(t * n),
                                     scores.begin() + static_cast<int64_t>((t + 1) * n));
        const int64_t position = static_cast<int64_t>(134 + t);
        std::vector<int32_t> want, blocks, want_blocks;
        for (size_t j = 0; j < n; ++j) {
          if (selected[(134 + t) * n + j]) want.push_back(static_cast<int32_t>(j));
        }
        for (size_t b = 0; b * 8 < 150; ++b) {
          if (candidate_mask[(134 + t) * 150 + b * 8]) want_blocks.push_back(static_cast<int32_t>(b));
        }
        blocks = want_blocks;
        int32_t n_blocks = static_cast<int32_t>(blocks.size());
        want.resize(32, -1);
        want_blocks.resize(8 + 3, -1);
        for_ref_and_cpu([&](const CpuContext* context) {
          const CandidateBlocks candidates{blocks.data(), &n_blocks, 8, 8};
          check_ids(want, select(row, position, ratio, 32, context, name == "attn8." ? candidates : CandidateBlocks{}));
          if (name == "attn6.") check_ids(want_blocks, candidates_of(row, position, 1, 8, 8, context));
        });
      }
    }
  }

  TEST_CASE("a million entries give the same ids as ref") {
    const int64_t n = 1 << 20;
    const std::vector<float> scores = draw_scores(kScoreKinds[0], n, 99);
    SerialParallel serial;
    const CpuContext context{best_cpu_target(), &serial};
    CHECK(select(scores, n - 1, 1, 512, nullptr).ids == select(scores, n - 1, 1, 512, &context).ids);
    CHECK(candidates_of(scores, n - 1, 1, 8, 2048, nullptr).ids ==
          candidates_of(scores, n - 1, 1, 8, 2048, &context).ids);
  }

  TEST_CASE("bad extents are refused") {
    float score = 0;
    int32_t id = 0, n = 0, position = 0;
    CHECK(check_select_top_k({&score, 1, &position, 1, {}, &id, &n, 1, 0}).code() == Code::kINVALID_ARG);
    CHECK(check_select_top_k({&score, 1, &position, 0, {}, &id, &n, 1, 1}).code() == Code::kINVALID_ARG);
    CHECK(check_select_top_k({&score, 1, &position, 1, {&id, nullptr, 1, 8}, &id, &n, 1, 1}).code() ==
          Code::kINVALID_ARG);
    CHECK(check_select_candidates({&score, 1, &position, 1, {&id, &n, 1, 8}, 1, 2}).code() == Code::kINVALID_ARG);
    CHECK(check_select_candidates({&score, 1, &position, 1, {&id, &n, 1, 0}, 1, 1}).code() == Code::kINVALID_ARG);
    CHECK(check_select_candidates({&score, 1, &position, 1, {nullptr, &n, 1, 8}, 1, 1}).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
