// The whole model, pinned: a short prompt of nano and two tokens more leave the same tokens, logits, records and window rows on
// x86-64 and on aarch64, with every target whose sums are FMA chains. What kernels/common/pinned_bits_test.cpp does for
// single ops; here are all of them, and what lies between.
#include <doctest/doctest.h>

#include "kernels/common/cpu_features.h"
#include "support/golden_file.h"
#include "support/model_runner.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

using kernels::CpuTarget;

constexpr int kPromptTokens = 21;

TEST_SUITE("session/pinned_session") {
  TEST_CASE("nano gives the same bits on every architecture") {
    const std::vector<int32_t> ids =
        GoldenFile::open(golden_path("nano/logits_strict.safetensors")).tensor("1500.ids").i32();
    for (const CpuTarget target : {CpuTarget::kScalar, CpuTarget::kAvx2, CpuTarget::kAvx512, CpuTarget::kNeon}) {
      if (!kernels::cpu_target_supported(target)) continue;
      const std::string name = kernels::cpu_target_name(target);
      CAPTURE(name);
      auto pool = make_pool(open_model("nano", make_backend("cpu", 2, kernels::cpu_target_name(target))), 1);
      auto session = make_session(std::move(pool), session::DecoderPolicy::kFull);
      REQUIRE(session->prefill(std::span(ids).first(kPromptTokens), {}, nullptr).ok());
      for (int i = 0; i < 2; ++i) REQUIRE(session->decode(ids[kPromptTokens + i], {}, nullptr).ok());
      CHECK(session_digest(*session) == "7469ef2beccc0edfa27155a9215652fbc4c2497ead75cda3a5984629cba2ffa8");
    }
  }
}

}  // namespace
}  // namespace dsv41::test
