#include "kernels/mhc/embed_streams.h"

#include <doctest/doctest.h>

#include "kernels/mhc/mhc_cases.h"
#include "support/compare.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

constexpr int64_t kVocab = 11;

struct Fixture {
  explicit Fixture(const MhcCase& row)
      : embed(random_bf16(static_cast<size_t>(kVocab * row.dim), 1)),
        streams(static_cast<size_t>(row.n_rows * row.n_streams * row.dim), 0xffff),
        pre(static_cast<size_t>(row.n_rows * row.n_streams), -1.0f) {
    for (int64_t t = 0; t < row.n_rows; ++t) ids.push_back(static_cast<int32_t>((t * 7 + 3) % kVocab));
    args.embed = {tensor::WeightFormat::kBf16, kVocab, row.dim, embed.data(), nullptr};
    args.ids = ids.data();
    args.streams = streams.data();
    args.pre = pre.data();
    args.n_rows = row.n_rows;
    args.n_streams = row.n_streams;
  }
  std::vector<uint16_t> embed, streams;
  std::vector<int32_t> ids;
  std::vector<float> pre;
  EmbedStreamsArgs args;
};

TEST_SUITE("kernels/mhc/embed_streams") {
  TEST_CASE("every stream of a token is its embedding and pre picks the first") {
    for (const MhcCase& row : kMhcCases) {
      CAPTURE(row.name);
      Fixture f(row);
      REQUIRE(check_embed_streams(f.args).ok());
      embed_streams_ref(f.args);
      for (int64_t t = 0; t < row.n_rows; ++t) {
        for (int64_t s = 0; s < row.n_streams; ++s) {
          const uint16_t* got = f.streams.data() + (t * row.n_streams + s) * row.dim;
          const uint16_t* want = f.embed.data() + f.ids[static_cast<size_t>(t)] * row.dim;
          CHECK(std::equal(want, want + row.dim, got));
          CHECK(f.pre[static_cast<size_t>(t * row.n_streams + s)] == (s == 0 ? 1.0f : 0.0f));
        }
      }
    }
  }

  TEST_CASE("cpu equals ref on every target and any cut of the rows") {
    for (const MhcCase& row : kMhcCases) {
      CAPTURE(row.name);
      Fixture want(row);
      embed_streams_ref(want.args);
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        Fixture got(row);
        embed_streams_cpu(got.args, context);
        CHECK(compare_equal<uint16_t>(want.streams, got.streams) == "");
        CHECK(compare_equal<float>(want.pre, got.pre) == "");
      });
    }
  }

  TEST_CASE("bad arguments are refused") {
    Fixture f({"", 2, 4, 16});
    EmbedStreamsArgs args = f.args;
    args.embed.format = tensor::WeightFormat::kF32;
    CHECK(check_embed_streams(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.n_streams = 0;
    CHECK(check_embed_streams(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.n_rows = -1;
    CHECK(check_embed_streams(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.ids = nullptr;
    CHECK(check_embed_streams(args).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
