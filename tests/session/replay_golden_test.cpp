// Hits and replays against the reference's `replay` files: plans, logits, window rows, greedy tokens (backend ref); and
// backend cpu on nano within twice the band. The reference takes its prefix records from an exact prefill of the hit.
#include <doctest/doctest.h>

#include <cmath>

#include "session/session.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/model_runner.h"

namespace dsv41::test {
namespace {

using session::DecoderPolicy;
using session::HitSource;
using session::RunPlan;
using session::RunResult;

constexpr double kLogitTolerance = 1e-5;

// A model on a backend and the golden file of its replays.
struct Replays {
  std::string name;
  std::shared_ptr<const session::LoadedModel> model;
  GoldenFile file;

  static Replays open(const std::string& name, const std::string& backend) {
    return {name, open_model(name, make_backend(backend)), GoldenFile::open(golden_path(name + "/replay.safetensors"))};
  }
  std::vector<int32_t> ids(const std::string& key, size_t begin, size_t end) const {
    const std::vector<int32_t> all = file.tensor(key + "ids").i32();
    return std::vector<int32_t>(all.begin() + static_cast<int64_t>(begin), all.begin() + static_cast<int64_t>(end));
  }
};

enum class Windows { kNone, kEncoder };

std::shared_ptr<session::Pool> pool_for(const Replays& replays, Windows windows, int64_t least_hit = -1) {
  session::PoolOptions options;
  options.tokens = 4096;
  options.max_sessions = 4;
  options.poison_pages = true;
  options.window_cache = windows == Windows::kEncoder;
  options.window_cache_decoder = false;
  options.window_cache_bytes = uint64_t{64} << 20;
  options.least_hit_tokens = least_hit;
  return make_pool(replays.model, options);
}

// [L, H, s, floor_w, d] as the file has it. A floor is only seen by rows that are less than a window above it.
void check_plan(const std::vector<int32_t>& want, const RunPlan& plan, int64_t window) {
  CHECK(plan.length == want[0]);
  CHECK(plan.hit == want[1]);
  CHECK(plan.encoder_start == want[2]);
  CHECK(std::max(plan.encoder_floor, plan.encoder_start - window + 1) ==
        std::max<int64_t>(want[3], want[2] - window + 1));
  CHECK(plan.decoder_start == want[4]);
}

// Logits, the last window rows and four greedy tokens of a session after its run.
void check_outcome(const Replays& replays, const std::string& key, session::Session& session, int64_t decoder_start) {
  const std::vector<float> want = replays.file.tensor(key + "logits").f32();
  CHECK(compare_f32(want, session.logits().value(), {&kLogitTolerance, 1}) == "");
  const model::ModelConfig& config = replays.model->config();
  for (int64_t layer : {int64_t{1}, config.decoder_start() - 1, config.num_hidden_layers - 1}) {
    const std::string window = key + "window" + std::to_string(layer);
    if (!replays.file.contains(window)) continue;
    CAPTURE(window);
    const int64_t end = session.position();
    const int64_t floor = layer < config.decoder_start() ? session.encoder_floor() : decoder_start;
    CHECK(compare_equal<uint8_t>(
              replays.file.tensor(window).u8(),
              window_records(session.kv().ring(layer), std::max(floor, end - config.sliding_window), end)) == "");
  }
  CHECK(compare_equal<int32_t>(replays.file.tensor(key + "greedy").i32(), greedy(session, 4)) == "");
}

// A prefix of `hit` tokens by an exact prefill in one session, then all tokens in another one.
void check_hit(const Replays& replays, int hit, int suffix, const std::string& run) {
  const std::string prompt = "h" + std::to_string(hit) + ".s" + std::to_string(suffix) + ".", key = prompt + run + ".";
  CAPTURE(key);
  const bool warm = run == "warm";
  auto pool = pool_for(replays, warm ? Windows::kEncoder : Windows::kNone, run == "replay_all" ? 0 : -1);
  {
    auto prefix = make_session(pool, DecoderPolicy::kFull);
    REQUIRE(prefix->prefill(replays.ids(prompt, 0, static_cast<size_t>(hit)), {}, nullptr).ok());
  }
  auto session = make_session(pool);
  const std::vector<int32_t> ids = replays.ids(prompt, 0, static_cast<size_t>(hit + suffix));
  const RunPlan plan = session->plan_sync(ids, {}).value();
  const std::vector<int32_t> want = replays.file.tensor(key + "plan").i32();
  check_plan(want, plan, replays.model->config().sliding_window);
  RunResult result;
  REQUIRE(session->prefill(ids, {}, &result).ok());
  CHECK(result.hit_position == want[1]);
  CHECK(result.hit_source == (want[1] == 0 ? HitSource::kNone
                              : warm       ? HitSource::kWindowEntry
                                           : HitSource::kPrefixTree));
  CHECK(result.encoder_tokens_computed == want[0] - want[1]);
  CHECK(result.encoder_tokens_replayed == want[1] - want[2]);
  CHECK(result.layer_tokens == plan.layer_tokens);
  check_outcome(replays, key, *session, plan.decoder_start);
  CHECK(pool->check_invariants().ok());
}

// A session with an exact prefill of 400 tokens is cut and goes on with the five tokens that stood there.
void check_cut(const Replays& replays, int cut) {
  const std::string key = "cut" + std::to_string(cut) + ".";
  CAPTURE(key);
  auto pool = pool_for(replays, Windows::kNone);
  auto session = make_session(pool, DecoderPolicy::kFull);
  REQUIRE(session->prefill(replays.ids(key, 0, 400), {}, nullptr).ok());
  session->set_replay({});
  REQUIRE(session->truncate(cut).ok());
  CHECK(!session->encoder_windows_intact());
  const RunPlan plan = session->plan_append(5, {}).value();
  check_plan(replays.file.tensor(key + "plan").i32(), plan, replays.model->config().sliding_window);
  RunResult result;
  REQUIRE(session->prefill(replays.ids(key, static_cast<size_t>(cut), static_cast<size_t>(cut + 5)), {}, &result).ok());
  CHECK(result.hit_source == HitSource::kLive);
  CHECK(result.result_class == session::ResultClass::kApproximate);
  check_outcome(replays, key, *session, plan.decoder_start);
}

// A page that was computed after a hit is hit again: hits at 256 and 512.
void check_second_generation(const Replays& replays) {
  auto pool = pool_for(replays, Windows::kNone);
  {
    auto first = make_session(pool, DecoderPolicy::kFull);
    REQUIRE(first->prefill(replays.ids("second.", 0, 256), {}, nullptr).ok());
  }
  {
    auto second = make_session(pool);
    RunResult result;
    REQUIRE(second->prefill(replays.ids("second.", 0, 520), {}, &result).ok());
    CHECK(result.hit_position == 256);
  }
  auto third = make_session(pool);
  RunResult result;
  REQUIRE(third->prefill(replays.ids("second.", 0, 600), {}, &result).ok());
  CHECK(result.hit_position == 512);
  const std::vector<session::ProvenanceRange> ranges = third->provenance();
  REQUIRE(ranges.size() == 3);
  CHECK((ranges[0].first == 0 && ranges[0].end == 256 && kv::is_exact(ranges[0].provenance)));
  CHECK((ranges[1].end == 512 && *ranges[1].provenance == std::vector<int64_t>{256}));
  CHECK((ranges[2].end == 600 && *ranges[2].provenance == std::vector<int64_t>{256, 512}));
  check_outcome(replays, "second.", *third, 600 - 128);
}

void check_all(const std::string& name, const std::vector<int>& hits, const std::vector<int>& suffixes) {
  const Replays replays = Replays::open(name, "ref");
  for (int hit : hits) {
    for (int suffix : suffixes) {
      for (const char* run : {"cold", "replay", "replay_all", "warm"}) {
        const std::string key = "h" + std::to_string(hit) + ".s" + std::to_string(suffix) + "." + run + ".plan";
        if (!replays.file.contains(key) || std::string(run) == "cold") continue;
        check_hit(replays, hit, suffix, run);
      }
    }
  }
}

TEST_SUITE("session/replay_golden") {
  TEST_CASE("pico: page hits and warm hits equal the reference's") { check_all("pico", {256}, {1, 128}); }
  TEST_CASE("pico: a session that is cut goes on as the reference does") {
    const Replays replays = Replays::open("pico", "ref");
    check_cut(replays, 257);
  }
  TEST_CASE("pico: a page that was computed after a hit is hit again") {
    check_second_generation(Replays::open("pico", "ref"));
  }
  TEST_CASE("nano: page hits and warm hits equal the reference's") { check_all("nano", {256}, {5}); }
}

TEST_SUITE("session/replay_golden slow") {
  TEST_CASE("pico: all hits and suffixes") {
    check_all("pico", {128, 384}, {1, 5, 128, 200});
    check_all("pico", {256}, {5, 200});
  }
  TEST_CASE("pico: all cuts") {
    const Replays replays = Replays::open("pico", "ref");
    for (int cut : {255, 301}) check_cut(replays, cut);
  }
  TEST_CASE("nano: all hits and suffixes") { check_all("nano", {128, 256, 384}, {1, 5, 128, 200}); }
  TEST_CASE("nano: all cuts") {
    const Replays replays = Replays::open("nano", "ref");
    for (int cut : {255, 257, 301}) check_cut(replays, cut);
  }
  TEST_CASE("nano: a page that was computed after a hit is hit again") {
    check_second_generation(Replays::open("nano", "ref"));
  }
}

}  // namespace
}  // namespace dsv41::test
