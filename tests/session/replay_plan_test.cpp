// plan_run against attention.md 7.4 to 7.7 and kv.md sections 4 to 6: a table of cases in numbers, and, over all small
// cases, a model that knows nothing of plans. It marks which row of which layer can be read and which is exact, row by
// row, and asks whether what a plan claims follows.
#include "session/replay_plan.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace dsv41::test {
namespace {

using session::DecoderPolicy;
using session::EncoderReplay;
using session::HitSource;
using session::ModelShape;
using session::plan_run;
using session::Reference;
using session::ReplayPolicy;
using session::ResultClass;
using session::RunPlan;
using session::StartPoint;

constexpr ModelShape kReleased{20, 20, 128, 2, 128};  // layers of V4.1-Flash

enum class Rows { kNone, kEncoder, kBoth };  // window rows at the start

StartPoint start_at(int64_t tokens, Rows rows, HitSource source, int64_t window) {
  StartPoint start;
  start.source = tokens ? source : HitSource::kNone;
  start.tokens = tokens;
  const int64_t low = std::max<int64_t>(0, tokens - window);
  start.encoder = {0, low, rows != Rows::kNone};
  start.decoder = {low, low, rows == Rows::kBoth};
  start.encoder_covers = tokens > 0 && rows != Rows::kNone;
  start.decoder_covers = tokens > 0 && rows == Rows::kBoth;
  return start;
}

kv::Provenance list(std::vector<int64_t> hits) {
  return hits.empty() ? nullptr : std::make_shared<const std::vector<int64_t>>(std::move(hits));
}

// ---- Cases in numbers

struct Case {
  const char* name;
  Rows rows;
  int64_t tokens, length;
  EncoderReplay encoder;
  DecoderPolicy decoder;
  bool possible;
  int64_t hit = 0, encoder_start = 0, decoder_start = 0;
  bool approximate = false;
  Reference reference = Reference::kCold;
  int64_t layer_tokens = 0;
};

constexpr EncoderReplay kBounded = EncoderReplay::kBounded, kRefuse = EncoderReplay::kRefuse,
                        kExact = EncoderReplay::kExact;
constexpr DecoderPolicy kTail = DecoderPolicy::kBounded, kFull = DecoderPolicy::kFull;

const Case kCases[] = {
    // Nothing to start from.
    {"cold, one token", Rows::kNone, 0, 1, kBounded, kTail, true, 0, 0, 0, false, Reference::kCold, 40},
    {"cold, the window", Rows::kNone, 0, 128, kBounded, kTail, true, 0, 0, 0, false, Reference::kCold, 5120},
    {"cold, window + 1", Rows::kNone, 0, 129, kBounded, kTail, true, 0, 0, 1, false, Reference::kCold, 5140},
    {"cold, long", Rows::kNone, 0, 4000, kBounded, kTail, true, 0, 0, 3872, false, Reference::kCold, 82560},
    {"cold, long, full", Rows::kNone, 0, 4000, kBounded, kFull, true, 0, 0, 0, false, Reference::kCold, 160000},
    {"cold, exact", Rows::kNone, 0, 4000, kExact, kTail, true, 0, 0, 3872, false, Reference::kCold, 82560},
    {"cold, refuse", Rows::kNone, 0, 4000, kRefuse, kTail, true, 0, 0, 3872, false, Reference::kCold, 82560},
    // Windows of both halves: on from there, whatever the encoder's policy.
    {"live, one token", Rows::kBoth, 1000, 1001, kBounded, kTail, true, 1000, 1000, 1000, false, Reference::kLive, 40},
    {"live, at an odd position", Rows::kBoth, 999, 1000, kRefuse, kTail, true, 999, 999, 999, false, Reference::kLive,
     40},
    {"live, the window", Rows::kBoth, 1000, 1128, kBounded, kTail, true, 1000, 1000, 1000, false, Reference::kLive,
     5120},
    {"live, window + 1: the decoder starts anew", Rows::kBoth, 1000, 1129, kBounded, kTail, true, 1000, 1000, 1001,
     false, Reference::kLive, 5140},
    {"live, 500", Rows::kBoth, 1000, 1500, kBounded, kTail, true, 1000, 1000, 1372, false, Reference::kLive, 12560},
    {"live, 500, full", Rows::kBoth, 1000, 1500, kBounded, kFull, true, 1000, 1000, 1000, false, Reference::kLive,
     20000},
    {"live below the window", Rows::kBoth, 3, 5, kExact, kTail, true, 3, 3, 3, false, Reference::kLive, 80},
    {"live, nothing new", Rows::kBoth, 777, 777, kBounded, kTail, true, 777, 777, 777, false, Reference::kLive, 0},
    // The encoder's windows alone.
    {"encoder rows, the window: equals cold", Rows::kEncoder, 1000, 1128, kBounded, kTail, true, 1000, 1000, 1000,
     false, Reference::kCold, 5120},
    {"encoder rows, odd, 500", Rows::kEncoder, 999, 1499, kRefuse, kTail, true, 999, 999, 1371, false, Reference::kCold,
     12560},
    {"encoder rows, window - 1: below the hit again", Rows::kEncoder, 1000, 1127, kBounded, kTail, true, 1000, 999, 999,
     true, Reference::kReplay, 5120},
    {"encoder rows, one token, odd", Rows::kEncoder, 1001, 1002, kBounded, kTail, true, 1000, 874, 874, true,
     Reference::kReplay, 5120},
    {"encoder rows, short, refuse", Rows::kEncoder, 1000, 1001, kRefuse, kTail, false},
    {"encoder rows, nothing new", Rows::kEncoder, 1000, 1000, kBounded, kTail, true, 1000, 872, 872, true,
     Reference::kReplay, 5120},
    {"encoder rows, full", Rows::kEncoder, 1000, 1500, kBounded, kFull, true, 1000, 872, 872, true, Reference::kReplay,
     25120},
    {"encoder rows, no more than the window", Rows::kEncoder, 128, 130, kBounded, kTail, true, 0, 0, 2, false,
     Reference::kCold, 5160},
    // No windows.
    {"hit, 500", Rows::kNone, 1024, 1524, kBounded, kTail, true, 1024, 896, 1396, true, Reference::kReplay, 15120},
    {"hit, one token", Rows::kNone, 1024, 1025, kBounded, kTail, true, 1024, 896, 897, true, Reference::kReplay, 5140},
    {"hit, the window", Rows::kNone, 1024, 1152, kBounded, kTail, true, 1024, 896, 1024, true, Reference::kReplay,
     7680},
    {"hit, full", Rows::kNone, 1024, 1524, kBounded, kFull, true, 1024, 896, 896, true, Reference::kReplay, 25120},
    {"hit, refuse", Rows::kNone, 1024, 1524, kRefuse, kTail, false},
    {"hit of the window", Rows::kNone, 128, 628, kBounded, kTail, true, 0, 0, 500, false, Reference::kCold, 15120},
    {"hit of the window, refuse", Rows::kNone, 128, 628, kRefuse, kTail, true, 0, 0, 500, false, Reference::kCold,
     15120},
    {"hit of two windows", Rows::kNone, 256, 300, kBounded, kTail, true, 256, 128, 172, true, Reference::kReplay, 6000},
    {"cut at 129: rounds down to the window", Rows::kNone, 129, 134, kBounded, kTail, true, 0, 0, 6, false,
     Reference::kCold, 5240},
    {"cut at 130", Rows::kNone, 130, 135, kBounded, kTail, true, 130, 2, 7, true, Reference::kReplay, 5220},
    {"cut at 255", Rows::kNone, 255, 260, kBounded, kTail, true, 254, 126, 132, true, Reference::kReplay, 5240},
    {"cut at 257", Rows::kNone, 257, 262, kBounded, kTail, true, 256, 128, 134, true, Reference::kReplay, 5240},
    {"cut at 301, nothing new", Rows::kNone, 301, 301, kBounded, kTail, true, 300, 172, 173, true, Reference::kReplay,
     5140},
    // Exactly: as far below as exact rows need.
    {"exact, long hit, 500", Rows::kNone, 10240, 10740, kExact, kTail, true, 10240, 7680, 10612, false,
     Reference::kCold, 63760},
    {"exact, long hit, one token", Rows::kNone, 10240, 10241, kExact, kTail, true, 10240, 7553, 10113, false,
     Reference::kCold, 56320},
    {"exact, long hit, full", Rows::kNone, 10240, 10740, kExact, kFull, true, 10240, 5120, 7680, false,
     Reference::kCold, 173600},
    {"exact, short hit: all rows again", Rows::kNone, 1024, 1524, kExact, kTail, true, 1024, 0, 1396, false,
     Reference::kCold, 33040},
};

TEST_SUITE("session/replay_plan") {
  TEST_CASE("each start and policy runs the rows that the specification names") {
    for (const Case& row : kCases) {
      CAPTURE(row.name);
      const StartPoint start = start_at(row.tokens, row.rows, HitSource::kPrefixTree, kReleased.window);
      const std::optional<RunPlan> plan = plan_run(kReleased, {row.encoder, row.decoder}, start, row.length);
      REQUIRE(plan.has_value() == row.possible);
      if (!plan) continue;
      CHECK(plan->length == row.length);
      CHECK(plan->hit == row.hit);
      CHECK(plan->encoder_start == row.encoder_start);
      CHECK(plan->decoder_start == row.decoder_start);
      CHECK((plan->result_class() == ResultClass::kApproximate) == row.approximate);
      CHECK(plan->reference == row.reference);
      CHECK(plan->layer_tokens == row.layer_tokens);
      CHECK(plan->source == (row.hit ? HitSource::kPrefixTree : HitSource::kNone));
      CHECK(plan->encoder_computed() == row.length - row.hit);
      CHECK(plan->encoder_replayed() == row.hit - row.encoder_start);
      CHECK(plan->decoder_computed() + plan->decoder_replayed() == row.length - row.decoder_start);
      CHECK(plan->decoder_replayed() == std::max<int64_t>(0, row.hit - row.decoder_start));
      if (row.approximate) CHECK(kv::equal(plan->provenance, list({row.hit})));
    }
  }

  TEST_CASE("a prompt without a hit costs 20 S + 20 x 128 layer tokens, 40 S under the full policy") {
    for (int64_t n : {128, 129, 500, 8192, 1048576}) {
      CHECK(plan_run(kReleased, {}, {}, n)->layer_tokens == 20 * n + 20 * 128);
      CHECK(plan_run(kReleased, {kBounded, kFull}, {}, n)->layer_tokens == 40 * n);
    }
  }

  TEST_CASE("a suffix S costs 20 (S + 128) more for a replay, 20 S for warm windows") {
    for (int64_t suffix : {128, 500, 5000}) {
      const StartPoint warm = start_at(4096, Rows::kBoth, HitSource::kWindowEntry, 128);
      CHECK(plan_run(kReleased, {}, warm, 4096 + suffix)->layer_tokens == 20 * suffix + 2560);
      const StartPoint page = start_at(4096, Rows::kNone, HitSource::kPrefixTree, 128);
      CHECK(plan_run(kReleased, {}, page, 4096 + suffix)->layer_tokens == 20 * (suffix + 128) + 2560);
      CHECK(plan_run(kReleased, {kExact, kTail}, page, 4096 + suffix)->layer_tokens == 20 * (suffix + 2560) + 2560);
    }
  }

  TEST_CASE("hits of at most least_hit tokens are computed again, others are taken") {
    ModelShape shape = kReleased;
    for (int64_t least : {0, 64, 128, 500}) {
      shape.least_hit = least;
      for (int64_t tokens : {2, 64, 66, 127, 128, 130, 500, 501, 502}) {
        CAPTURE(least);
        CAPTURE(tokens);
        const RunPlan plan = *plan_run(shape, {}, start_at(tokens, Rows::kNone, HitSource::kLive, 128), tokens + 5);
        const int64_t even = tokens / 2 * 2;
        CHECK(plan.hit == (even > least ? even : 0));
        CHECK(plan.source == (plan.hit ? HitSource::kLive : HitSource::kNone));
        CHECK(plan.encoder_start == std::max<int64_t>(0, plan.hit - 128));
      }
    }
  }

  TEST_CASE("a replay from token 0 is exact, and one on approximate records keeps their list") {
    ModelShape shape = kReleased;
    shape.least_hit = 0;
    StartPoint start = start_at(128, Rows::kNone, HitSource::kPrefixTree, 128);
    CHECK(kv::is_exact(plan_run(shape, {}, start, 140)->provenance));
    CHECK(plan_run(shape, {}, start, 140)->reference == Reference::kCold);
    start = start_at(512, Rows::kNone, HitSource::kPrefixTree, 128);
    start.records_provenance = list({256});
    CHECK(kv::equal(plan_run(shape, {}, start, 600)->provenance, list({256, 512})));
    CHECK(!plan_run(shape, {kExact, kTail}, start, 600));
    start = start_at(512, Rows::kBoth, HitSource::kWindowEntry, 128);
    start.provenance = list({256});
    const RunPlan live = *plan_run(shape, {}, start, 600);
    CHECK(kv::equal(live.provenance, list({256})));
    CHECK(live.reference == Reference::kReplay);
    CHECK(live.result_class() == ResultClass::kApproximate);
    CHECK(!plan_run(shape, {kExact, kTail}, start, 600));
  }

  TEST_CASE("hits in a list ascend: one at or behind the new hit cannot have touched the rows below it") {
    // A page holds one list for all its rows, also for those below the hit that its list names.
    StartPoint start = start_at(290, Rows::kNone, HitSource::kLive, 128);
    start.records_provenance = list({256, 300});
    CHECK(kv::equal(plan_run(kReleased, {}, start, 295)->provenance, list({256, 290})));
    start.records_provenance = list({290});
    CHECK(kv::equal(plan_run(kReleased, {}, start, 295)->provenance, list({290})));
    start.encoder = {0, 150, true};
    start.encoder_covers = true;
    start.records_provenance = list({256, 300});
    CHECK(kv::equal(plan_run(kReleased, {}, start, 295)->provenance, list({256, 290})));
  }
}

// ---- A model of rows

struct Model {
  const ModelShape& shape;
  const StartPoint& start;
  const RunPlan& plan;
  bool full;

  // What the next token or the logits would read: the lowest decoder row of the run that the plan claims to equal.
  int64_t decoder_target() const {
    if (plan.decoder_goes_on) return start.decoder.floor;
    return full ? 0 : std::max<int64_t>(0, plan.length - shape.window);
  }

  // One half: n_layers on rows [first, length), inputs exact where `input` says so, rows of [have, first_new) read from
  // before. exact[r] of the last layer's output; windows: keys of every layer that the next token reads are exact.
  struct Half {
    std::vector<bool> output;
    bool windows_exact = true;
    bool readable = true;  // no row was read that is nowhere
  };
  Half run(int64_t n_layers, int64_t first, int64_t floor, int64_t target, std::vector<bool> input, int64_t have_low,
           int64_t have_end) const {
    Half half;
    for (int64_t layer = 0; layer < n_layers; ++layer) {
      std::vector<bool> output(input.size(), false);
      const auto key = [&](int64_t row) {
        if (row >= have_low && row < have_end) return true;  // from before: exact
        return row >= first && static_cast<bool>(input[static_cast<size_t>(row)]);
      };
      for (int64_t row = first; row < plan.length; ++row) {
        bool exact = input[static_cast<size_t>(row)];
        for (int64_t below = std::max<int64_t>(0, row - shape.window + 1); below <= row; ++below) {
          if (below >= floor) {
            half.readable &= below >= first || (below >= have_low && below < have_end);
            exact &= key(below);
          } else if (below >= target) {
            exact = false;  // the run that this one should equal reads it
          }
        }
        output[static_cast<size_t>(row)] = exact;
      }
      for (int64_t row = std::max(target, plan.length - shape.window + 1); row < plan.length; ++row) {
        half.windows_exact &= key(row) && row >= floor;
      }
      input = std::move(output);
    }
    half.output = std::move(input);
    return half;
  }

  void check() const {
    const int64_t length = plan.length;
    std::vector<bool> embeddings(static_cast<size_t>(length), true);
    const bool rows_stay = plan.hit > 0 && start.encoder_covers && plan.window_from > plan.encoder_floor;
    const Half encoder = run(shape.n_encoder_layers, plan.encoder_start, plan.encoder_floor, 0, embeddings,
                             rows_stay ? start.encoder.low : 0, rows_stay ? plan.window_from : 0);
    CHECK(encoder.readable);
    const int64_t have_end = plan.decoder_goes_on ? start.tokens : 0;
    const Half decoder = run(shape.n_decoder_layers, plan.decoder_start, plan.decoder_floor, decoder_target(),
                             encoder.output, plan.decoder_goes_on ? start.decoder.low : 0, have_end);
    CHECK(decoder.readable);
    bool records_exact = true;
    for (int64_t row = plan.hit; row < length; ++row) records_exact &= encoder.output[static_cast<size_t>(row)];
    const bool logits_exact = plan.decoder_start == length || decoder.output.back();
    const bool all_exact = records_exact && encoder.windows_exact && decoder.windows_exact && logits_exact;
    if (plan.result_class() == ResultClass::kBitIdentical) CHECK(all_exact);
    if (plan.reference == Reference::kCold) {
      CHECK(!plan.decoder_goes_on);
      if (!full) CHECK(plan.decoder_floor == std::max<int64_t>(0, length - shape.window));
    }
  }
};

TEST_SUITE("session/replay_plan rows") {
  TEST_CASE("every plan reads only rows that exist, and what it calls exact is") {
    int64_t n_plans = 0, n_approximate = 0;
    for (const ModelShape shape : {ModelShape{1, 1, 4, 2, 4}, ModelShape{3, 2, 4, 2, 4}, ModelShape{2, 3, 5, 1, 0},
                                   ModelShape{2, 2, 6, 4, 9}, ModelShape{2, 2, 4, 2, 0}}) {
      CAPTURE(shape.window);
      for (EncoderReplay encoder : {kBounded, kRefuse, kExact}) {
        for (DecoderPolicy decoder : {kTail, kFull}) {
          for (Rows rows : {Rows::kNone, Rows::kEncoder, Rows::kBoth}) {
            for (int64_t tokens = 0; tokens <= 40; ++tokens) {
              for (int64_t length = std::max<int64_t>(1, tokens); length <= tokens + 2 * shape.window + 1; ++length) {
                const StartPoint start = start_at(tokens, rows, HitSource::kWindowEntry, shape.window);
                const std::optional<RunPlan> plan = plan_run(shape, {encoder, decoder}, start, length);
                CAPTURE(static_cast<int>(encoder));
                CAPTURE(static_cast<int>(decoder));
                CAPTURE(static_cast<int>(rows));
                CAPTURE(tokens);
                CAPTURE(length);
                if (!plan) {
                  CHECK(encoder == kRefuse);
                  CHECK(tokens > shape.least_hit);
                  continue;
                }
                ++n_plans;
                n_approximate += plan->result_class() == ResultClass::kApproximate;
                REQUIRE(plan->length == length);
                REQUIRE((plan->hit >= 0 && plan->hit <= tokens));
                REQUIRE((plan->encoder_start >= 0 && plan->encoder_start <= plan->hit));
                REQUIRE((plan->decoder_start >= plan->encoder_start && plan->decoder_start <= length));
                CHECK((length == tokens || plan->decoder_start < length));  // logits of the last token
                if (plan->replays()) CHECK(plan->hit % shape.ratio_multiple == 0);
                if (encoder == kExact) CHECK(plan->result_class() == ResultClass::kBitIdentical);
                if (encoder == kBounded) CHECK(plan->encoder_replayed() <= shape.window);
                if (encoder == kRefuse) CHECK(!plan->replays());
                // No more than a run over everything costs, and at least the new tokens.
                CHECK(plan->layer_tokens >= (length - tokens) * shape.n_encoder_layers);
                CHECK(plan->layer_tokens <= length * (shape.n_encoder_layers + shape.n_decoder_layers));
                Model{shape, start, *plan, decoder == kFull}.check();
              }
            }
          }
        }
      }
    }
    CHECK(n_plans > 5000);
    CHECK(n_approximate > 1000);
  }
}

}  // namespace
}  // namespace dsv41::test
