#include "kernels/attention/compressor_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/common/number_formats.h"
#include "kernels/norm/rms_norm.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

constexpr float kPoison = 1e30f;

// The rows of one sequence and everything that the compressor made of them, fed step by step.
struct Sequence {
  Sequence(int64_t n, int64_t width, uint64_t seed)
      : dim(width),
        k(random_f32(static_cast<size_t>(n * width), seed)),
        gate(random_f32(static_cast<size_t>(n * width), seed + 1, 3.0f)),
        open_rows(static_cast<size_t>(kOpenRowSlots * 2 * width), kPoison),
        pooled(static_cast<size_t>(n / 2 * width), 0xffff) {}

  // Rows [begin, end) as one step; null context: ref.
  void step(int64_t begin, int64_t end, const CpuContext* context = nullptr) {
    const int64_t first_entry = begin / 2, n_entries = end / 2 - first_entry;
    const CompressorPoolArgs pool{k.data() + begin * dim,
                                  gate.data() + begin * dim,
                                  open_rows.data(),
                                  pooled.data() + first_entry * dim,
                                  begin,
                                  end - begin,
                                  first_entry,
                                  n_entries,
                                  dim};
    const StoreOpenRowsArgs store{pool.k, pool.gate, open_rows.data(), begin, end - begin, dim};
    REQUIRE(check_compressor_pool(pool).ok());
    REQUIRE(check_store_open_rows(store).ok());
    if (context) {
      compressor_pool_cpu(pool, *context);
      store_open_rows_cpu(store, *context);
    } else {
      compressor_pool_ref(pool);
      store_open_rows_ref(store);
    }
  }

  int64_t dim;
  std::vector<float> k, gate, open_rows;
  std::vector<uint16_t> pooled;
};

TEST_SUITE("kernels/attention/compressor_pool") {
  TEST_CASE("golden rows, pooled and normed, give the golden latent") {
    const GoldenFile golden = GoldenFile::open(golden_path("pico/ops.safetensors"));
    GoldenCheckpoint checkpoint = GoldenCheckpoint::open(golden_path("pico/checkpoint"));
    const std::vector<float> rows = golden.tensor("attn2.compressor_rows").f32();
    Sequence sequence(150, 512, 1);
    for (int64_t t = 0; t < 150; ++t) {
      std::copy_n(&rows[static_cast<size_t>(t * 1024)], 512, &sequence.k[static_cast<size_t>(t * 512)]);
      std::copy_n(&rows[static_cast<size_t>(t * 1024 + 512)], 512, &sequence.gate[static_cast<size_t>(t * 512)]);
    }
    sequence.step(0, 150);
    const std::vector<uint16_t> weight = checkpoint.tensor("layers.2.attn.compressor.norm.weight").bf16();
    std::vector<uint16_t> latent(sequence.pooled.size());
    rms_norm_ref({sequence.pooled.data(), weight.data(), latent.data(), 512, 512, 75, 512, 1e-20});
    CHECK(compare_equal<uint16_t>(golden.tensor("attn2.latent").bf16(), latent) == "");
  }

  TEST_CASE("a cut at every point gives the same rows") {
    for (int64_t n : {1, 2, 3, 4, 5, 23}) {
      CAPTURE(n);
      Sequence whole(n, 16, 9);
      whole.step(0, n);
      for (int64_t cut = 1; cut < n; ++cut) {
        CAPTURE(cut);
        Sequence parts(n, 16, 9);
        parts.step(0, cut);
        parts.step(cut, n);
        CHECK(compare_equal<uint16_t>(whole.pooled, parts.pooled) == "");
        CHECK(compare_equal<float>(whole.open_rows, parts.open_rows) == "");
      }
      Sequence single(n, 16, 9);
      for (int64_t p = 0; p < n; ++p) single.step(p, p + 1);
      CHECK(compare_equal<uint16_t>(whole.pooled, single.pooled) == "");
      CHECK(compare_equal<float>(whole.open_rows, single.open_rows) == "");
    }
  }

  TEST_CASE("rejected drafts leave no trace") {
    for (int64_t kept : {6, 7}) {
      for (int64_t n_drafts : {1, 2, 3, 4, 5}) {
        CAPTURE(kept);
        CAPTURE(n_drafts);
        Sequence want(14, 16, 21);
        want.step(0, 14);
        Sequence got(14, 16, 21);
        got.step(0, kept);
        const std::vector<float> k = got.k, gate = got.gate;
        for (float& x : got.k) x += 1;
        for (float& x : got.gate) x -= 2;
        got.step(kept, kept + n_drafts);
        got.k = k;
        got.gate = gate;
        got.step(kept, 14);
        CHECK(compare_equal<uint16_t>(want.pooled, got.pooled) == "");
      }
    }
  }

  TEST_CASE("the ring holds the last eight even rows") {
    Sequence sequence(41, 4, 33);
    sequence.step(0, 3);
    sequence.step(3, 41);
    for (int64_t p = 26; p <= 40; p += 2) {
      CAPTURE(p);
      for (int64_t c = 0; c < 4; ++c) {
        const size_t slot = static_cast<size_t>(p / 2 % kOpenRowSlots * 8 + c);
        CHECK(sequence.open_rows[slot] == sequence.k[static_cast<size_t>(p * 4 + c)]);
        CHECK(sequence.open_rows[slot + 4] == sequence.gate[static_cast<size_t>(p * 4 + c)]);
      }
    }
  }

  TEST_CASE("cpu agrees with ref on every target and any cut") {
    for (const auto& [n, dim] : {std::pair<int64_t, int64_t>{2, 1}, {9, 15}, {9, 16}, {9, 17}, {33, 512}}) {
      CAPTURE(dim);
      Sequence want(n, dim, 5);
      want.step(0, 3 % n);
      want.step(3 % n, n);
      std::vector<double> bound(want.pooled.size());
      for (size_t i = 0; i < bound.size(); ++i) {
        const size_t row0 = i / dim * 2 * dim + i % dim;
        bound[i] = 1e-6 * (std::abs(want.k[row0]) + std::abs(want.k[row0 + dim]));
      }
      std::vector<uint16_t> first;
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        Sequence got(n, dim, 5);
        got.step(0, 3 % n, &context);
        got.step(3 % n, n, &context);
        CHECK(compare_bf16(want.pooled, got.pooled, bound) == "");
        CHECK(compare_equal<float>(want.open_rows, got.open_rows) == "");
        if (first.empty()) first = got.pooled;
        CHECK(compare_equal<uint16_t>(first, got.pooled) == "");
      });
    }
  }

  TEST_CASE("a far larger gate takes its key alone, equal gates the mean") {
    for_each_cpu_run([&](const CpuContext& context, const std::string&) {
      for (const CpuContext* run : {static_cast<const CpuContext*>(nullptr), &context}) {
        Sequence s(2, 3, 1);
        s.k = {2, 2, 2, 4, 4, 4};
        s.gate = {500, -500, 7, -500, 500, 7};
        s.step(0, 2, run);
        CHECK(bf16_to_f32(s.pooled[0]) == 2);
        CHECK(bf16_to_f32(s.pooled[1]) == 4);
        CHECK(bf16_to_f32(s.pooled[2]) == 3);
      }
    });
  }

  TEST_CASE("entries that do not complete in the step are refused") {
    float x[8] = {};
    uint16_t y[8] = {};
    const auto code = [&](int64_t first_position, int64_t n_rows, int64_t first_entry, int64_t n_entries) {
      return check_compressor_pool({x, x, x, y, first_position, n_rows, first_entry, n_entries, 1}).code();
    };
    CHECK(code(3, 1, 1, 1) == Code::kOK);
    CHECK(code(4, 1, 2, 1) == Code::kINVALID_ARG);
    CHECK(code(4, 4, 1, 1) == Code::kINVALID_ARG);
    CHECK(code(4, 4, 2, 3) == Code::kINVALID_ARG);
    CHECK(code(0, 0, 0, 0) == Code::kOK);
    CHECK(check_compressor_pool({x, x, nullptr, y, 3, 1, 1, 1, 1}).code() == Code::kINVALID_ARG);
    CHECK(check_store_open_rows({x, x, nullptr, 0, 1, 1}).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
