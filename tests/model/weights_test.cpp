#include "model/weights.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/common/cpu_features.h"
#include "model/model.h"
#include "support/failing_backend.h"
#include "support/model_runner.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

using model::LayoutChoice;

std::shared_ptr<const session::LoadedModel> open_with(const model::OpenOptions& open, int n_threads,
                                                      const std::string& target = "") {
  session::ModelOptions options;
  options.folder = checkpoint_folder("nano");
  options.backend = make_backend("cpu", n_threads, target);
  options.open = open;
  return session::LoadedModel::open(options).value();
}

model::OpenOptions with_layout(LayoutChoice layout) {
  model::OpenOptions open;
  open.layout = layout;
  return open;
}

// Over the records and logits of a session after a prompt and a few tokens.
std::string digest_of(const std::shared_ptr<const session::LoadedModel>& model) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 20; ++i) ids.push_back(3 + i * 37 % 3000);
  auto session = make_session(make_pool(model, 2, 256), session::DecoderPolicy::kFull, 128);
  REQUIRE(session->prefill(ids, {}, nullptr).ok());
  greedy(*session, 3);
  return session_digest(*session);
}

TEST_SUITE("model/weights") {
  TEST_CASE("records and logits are the same bits packed and mapped, on every target, with one thread and with three") {
    for (const kernels::CpuTarget target : kernels::supported_cpu_targets()) {
      const std::string name = kernels::cpu_target_name(target);
      CAPTURE(name);
      const auto mapped = open_with(with_layout(LayoutChoice::kMapped), 1, name);
      const auto packed = open_with(with_layout(LayoutChoice::kPacked), 3, name);
      CHECK(mapped->model().weights().packed_bytes == 0);
      CHECK(packed->model().weights().packed_bytes > 0);
      CHECK(packed->model().weights().head.layout == tensor::WeightLayout::kPacked);
      CHECK(packed->model().weights().embed.layout == tensor::WeightLayout::kRows);
      CHECK(digest_of(mapped) == digest_of(packed));
    }
  }

  TEST_CASE("auto packs what takes half of the memory, and maps the rest") {
    const auto choose = [](LayoutChoice choice, uint64_t packed, uint64_t memory) {
      return model::choose_packed(choice, packed, memory).value();
    };
    CHECK(choose(LayoutChoice::kAuto, 50, 100));
    CHECK_FALSE(choose(LayoutChoice::kAuto, 51, 100));
    CHECK_FALSE(choose(LayoutChoice::kAuto, 1, 0));  // memory not known
    CHECK_FALSE(choose(LayoutChoice::kAuto, 0, 100));
    CHECK_FALSE(choose(LayoutChoice::kMapped, 1, 100));
    CHECK(choose(LayoutChoice::kPacked, 100, 100));
    CHECK(choose(LayoutChoice::kPacked, 100, 0));
    CHECK_FALSE(choose(LayoutChoice::kPacked, 0, 100));  // a backend with one layout
    CHECK(model::choose_packed(LayoutChoice::kPacked, 101, 100).status().code() == Code::kNO_MEMORY);

    const uint64_t bytes = open_with(with_layout(LayoutChoice::kPacked), 1)->model().weights().packed_bytes;
    model::OpenOptions open;
    open.memory_bytes = 2 * bytes;
    CHECK(open_with(open, 1)->model().weights().packed_bytes == bytes);
    open.memory_bytes = 2 * bytes - 1;
    CHECK(open_with(open, 1)->model().weights().packed_bytes == 0);
  }

  TEST_CASE("packing that does not fit or is refused memory says NO_MEMORY") {
    session::ModelOptions options;
    options.folder = checkpoint_folder("nano");
    const auto backend = std::make_shared<FailingBackend>(make_backend("cpu"));
    options.backend = backend;
    options.open.layout = LayoutChoice::kPacked;
    options.open.memory_bytes = 1000;
    const Status too_large = session::LoadedModel::open(options).status();
    CHECK(too_large.code() == Code::kNO_MEMORY);
    CHECK(std::string(too_large.message()).find("mapped") != std::string::npos);
    options.open.memory_bytes = 0;
    backend->fail_allocation(1);
    const Status refused = session::LoadedModel::open(options).status();
    CHECK(refused.code() == Code::kNO_MEMORY);
    CHECK(std::string(refused.message()).find("packed weights") != std::string::npos);
  }

  TEST_CASE("packing reports rising progress and stops between tensors") {
    model::OpenOptions open;
    open.layout = LayoutChoice::kPacked;
    std::vector<double> seen;
    CancelFlag cancel;
    open.progress = [&](double fraction) {
      seen.push_back(fraction);
      return true;
    };
    open_with(open, 2);
    CHECK(std::is_sorted(seen.begin(), seen.end()));
    CHECK(seen.back() == 1.0);
    session::ModelOptions options;
    options.folder = checkpoint_folder("nano");
    options.backend = make_backend("cpu");
    options.open = open;
    options.open.cancel = &cancel;
    options.open.progress = [&](double) {
      cancel.trigger();
      return true;
    };
    CHECK(session::LoadedModel::open(options).status().code() == Code::kCANCELLED);
    options.open.cancel = nullptr;
    options.open.progress = [&](double) { return false; };
    CHECK(session::LoadedModel::open(options).status().code() == Code::kCANCELLED);
  }

  TEST_CASE("tensors can be read from the checkpoint after they were packed") {
    const auto packed = open_with(with_layout(LayoutChoice::kPacked), 1);
    const model::Checkpoint& checkpoint = packed->model().checkpoint();
    const model::StoredTensor& head = *checkpoint.find("head.weight");
    const auto mapped = open_with(with_layout(LayoutChoice::kMapped), 1);
    CHECK(std::memcmp(head.data, mapped->model().checkpoint().find("head.weight")->data, head.bytes) == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
