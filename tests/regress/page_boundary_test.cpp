// Luce-Org/lucebox#716 and #731: off by one at boundaries of blocks and compressed groups. vllm-project/vllm#47648: a
// cache was shaped for 512 bytes a token, where 584 were written.
//
// All numbers of tokens up to 1,100, against models that walk token by token: where a record lies, how many pages there
// are, which rows a run reads and writes.
#include <doctest/doctest.h>

#include <map>

#include "kv/page_geometry.h"
#include "kv/sequence_kv.h"
#include "session/replay_plan.h"
#include "support/sweep.h"

namespace dsv41::test {
namespace {

using session::DecoderPolicy;
using session::EncoderReplay;
using session::RunPlan;
using session::StartPoint;

constexpr int64_t kMostTokens = 1100;
constexpr int64_t kWindow = 128;

kv::PageGeometry geometry_with(int ratio) {
  kv::KvShape shape;
  shape.sources = {{2, ratio}, {5, 1}};
  shape.head_dim = 64;
  shape.index_head_dim = 32;
  shape.n_window_layers = 3;
  shape.sliding_window = kWindow;
  return kv::PageGeometry::compute(shape).value();
}

// Memory as a map from a byte's offset to the record that it belongs to; no byte may have two.
using Owners = std::map<uint64_t, int64_t>;

bool take(Owners* owners, const kv::PageGeometry& geometry, uint64_t first, uint64_t n_bytes, int64_t page,
          int64_t owner) {
  for (uint64_t at = first; at < first + n_bytes; ++at) {
    if (at / geometry.page_bytes() != static_cast<uint64_t>(page)) return false;
    if (!owners->emplace(at, owner).second) return false;
  }
  return true;
}

// What the encoder or the decoder may read in a run: rows that were there and stay, and rows that it has written.
struct Rows {
  int64_t kept_low = 0, kept_end = 0;  // [kept_low, kept_end) were there
  int64_t written_from = 0;
  bool has(int64_t row) const { return (row >= kept_low && row < kept_end) || row >= written_from; }
};

bool reads_what_is_there(const Rows& rows, int64_t floor, int64_t position) {
  for (int64_t row = std::max(floor, position - kWindow + 1); row <= position; ++row) {
    if (row >= 0 && !rows.has(row)) return false;
  }
  return true;
}

session::ModelShape model_shape(int64_t ratio) {
  session::ModelShape shape;
  shape.n_encoder_layers = 6;
  shape.n_decoder_layers = 5;
  shape.window = shape.least_hit = kWindow;
  shape.ratio_multiple = ratio;
  return shape;
}

enum class Kept { kNothing, kEncoder, kBoth };

// A session that stands at `tokens` after a prefill of all of them, or pages without windows.
StartPoint start_at(int64_t tokens, Kept kept) {
  StartPoint start;
  start.source = session::HitSource::kLive;
  start.tokens = tokens;
  start.encoder.low = start.decoder.low = std::max<int64_t>(0, tokens - kWindow - kv::kDraftRows);
  start.decoder.floor = std::max<int64_t>(0, tokens - kWindow);
  start.decoder.low = std::max(start.decoder.low, start.decoder.floor);
  start.encoder_covers = tokens > 0 && kept != Kept::kNothing;
  start.decoder_covers = tokens > 0 && kept == Kept::kBoth;
  return start;
}

void check_plan(const session::ModelShape& shape, const session::ReplayPolicy& policy, const StartPoint& start,
                int64_t length) {
  const std::optional<RunPlan> plan = plan_run(shape, policy, start, length);
  if (!plan) {
    REQUIRE(policy.encoder == EncoderReplay::kRefuse);
    return;
  }
  REQUIRE(plan->hit <= start.tokens);
  REQUIRE((plan->encoder_start == plan->hit || plan->hit % shape.ratio_multiple == 0));
  REQUIRE((plan->decoder_start >= plan->encoder_start && plan->decoder_start < length));
  if (policy.encoder == EncoderReplay::kRefuse) REQUIRE(plan->encoder_start == plan->hit);

  Rows encoder{0, 0, std::max(plan->encoder_start, plan->window_from)};
  if (start.encoder_covers && plan->hit > 0) {
    encoder.kept_low = start.encoder.low;
    encoder.kept_end = std::min(start.tokens, plan->window_from);
  }
  Rows decoder{0, 0, plan->decoder_start};
  if (plan->decoder_goes_on) {
    REQUIRE(start.decoder_covers);
    decoder.kept_low = start.decoder.low;
    decoder.kept_end = start.tokens;
  }
  for (int64_t position : {plan->encoder_start, std::max(plan->encoder_start, plan->hit), length - 1}) {
    REQUIRE(reads_what_is_there(encoder, plan->encoder_floor, position));
  }
  for (int64_t position : {plan->decoder_start, length - 1}) {
    REQUIRE(reads_what_is_there(decoder, plan->decoder_floor, position));
  }
  int64_t units = 0;
  for (int64_t position = 0; position < length; ++position) {
    units += (position >= plan->encoder_start) * shape.n_encoder_layers;
    units += (position >= plan->decoder_start) * shape.n_decoder_layers;
  }
  REQUIRE(plan->layer_tokens == units);
  REQUIRE(plan->encoder_computed() + plan->encoder_replayed() == length - plan->encoder_start);
  REQUIRE(plan->decoder_computed() + plan->decoder_replayed() == length - plan->decoder_start);
}

// Nothing is read there.
std::byte* const arena = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);

TEST_SUITE("regress/page_boundary") {
  TEST_CASE("every record up to 1,100 tokens lies in its token's page and shares no byte with another") {
    for (int ratio : {1, 2, 4, 8, 16, 32, 64, 128}) {
      CAPTURE(ratio);
      const kv::PageGeometry geometry = geometry_with(ratio);
      std::vector<uint64_t> offsets;
      Owners owners;
      int64_t n_entries = 0, n_pages = 0;
      for (int64_t n = 0; n <= kMostTokens; ++n) {
        // The model: a page more when the ones there are full, an entry more when a group of tokens is.
        REQUIRE(kv::pages_for(n) == n_pages);
        REQUIRE(n / ratio == n_entries);
        if (n % kv::kPageTokens == 0) offsets.push_back(static_cast<uint64_t>(n_pages++) * geometry.page_bytes());
        if (n % ratio != ratio - 1) continue;
        const int64_t page = n / kv::kPageTokens;  // of the group's last token
        for (const kv::PageField* field : {&geometry.main_field(0), &geometry.index_field(0)}) {
          const tensor::PagedField view = geometry.view(*field, arena, offsets.data());
          const uint64_t codes = static_cast<uint64_t>(view.codes(n_entries) - arena);
          const uint64_t scales = static_cast<uint64_t>(view.scales(n_entries) - arena);
          REQUIRE(take(&owners, geometry, codes, field->code_bytes, page, n_entries));
          REQUIRE(take(&owners, geometry, scales, field->scale_bytes, page, n_entries));
          REQUIRE(codes % geometry.page_bytes() >= field->offset);
          REQUIRE(scales % geometry.page_bytes() + field->scale_bytes <= field->offset + field->payload_bytes());
        }
        ++n_entries;
      }
    }
  }

  TEST_CASE("window rows of all layers share no byte, and a ring holds the window and its spare rows") {
    const kv::PageGeometry geometry = geometry_with(2);
    std::vector<uint64_t> offsets;
    for (int64_t page = 0; page < geometry.pages_per_window_slot(); ++page) {
      offsets.push_back(static_cast<uint64_t>(page) * geometry.page_bytes());
    }
    std::map<uint64_t, std::pair<int64_t, int64_t>> rows;  // start of a row: layer and slot
    for (int64_t layer = 0; layer < 3; ++layer) {
      const tensor::WindowRing ring = geometry.ring(layer, arena, offsets.data());
      for (int64_t position = 0; position <= kMostTokens; ++position) {
        const uint64_t at = static_cast<uint64_t>(ring.row(position) - arena);
        const std::pair<int64_t, int64_t> slot = {layer, position % (kWindow + kv::kDraftRows)};
        REQUIRE(rows.emplace(at, slot).first->second == slot);
        REQUIRE(at / geometry.page_bytes() == (at + ring.row_bytes - 1) / geometry.page_bytes());
      }
    }
    CHECK(rows.size() == static_cast<size_t>(3 * (kWindow + kv::kDraftRows)));
    uint64_t end_before = 0;
    for (const auto& [at, slot] : rows) {
      REQUIRE(at >= end_before);
      end_before = at + geometry.window_row_bytes();
    }
    CHECK(end_before <= offsets.size() * geometry.page_bytes());
  }

  TEST_CASE("every run up to 1,100 tokens reads only rows that are there, and its units are the rows it runs") {
    const int64_t suffixes[] = {1, 2, 5, 126, 127, 128, 129, 130, 255, 256, 257};
    for (int64_t ratio : {1, 2, 4}) {
      const session::ModelShape shape = model_shape(ratio);
      for (const EncoderReplay encoder : {EncoderReplay::kBounded, EncoderReplay::kRefuse, EncoderReplay::kExact}) {
        for (const DecoderPolicy decoder : {DecoderPolicy::kBounded, DecoderPolicy::kFull}) {
          for (const Kept kept : {Kept::kNothing, Kept::kEncoder, Kept::kBoth}) {
            for (int64_t tokens = 0; tokens < kMostTokens; ++tokens) {
              const bool is_at_edge = (tokens + 2) % kv::kPageTokens <= 4;
              if (!sweeps_all() && !is_at_edge && tokens % 13 != 0) continue;
              for (int64_t n_new : suffixes) {
                if (tokens + n_new > kMostTokens) break;
                CAPTURE(ratio);
                CAPTURE(tokens);
                CAPTURE(n_new);
                check_plan(shape, {encoder, decoder}, start_at(tokens, kept), tokens + n_new);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
