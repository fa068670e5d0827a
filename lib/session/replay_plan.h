// RunPlan: which rows a call runs through which half of the model, from a given start (attention.md 7.4 to 7.7, kv.md
// sections 4 to 6). Pure arithmetic: what a call will do is computed here, reported from here, and then done.
//
// A start is a number of tokens whose global KV exists, with or without window rows. L is the number of tokens at the
// end of the call, W the window, H the hit position.
//
//   windows of both halves    encoder from H; decoder from H (at most W new tokens, or full), else on the last W
//   encoder windows only      at least W new tokens: as above. Fewer: the decoder's tail needs encoder outputs below H:
//                             the encoder runs again from L - W without writing there (attention.md 7.6); approximate
//   none, H > least hit       bounded: encoder again from H - W, writing window rows; records from H on; decoder on the
//                             last W (full: from H - W). approximate, by the hit position H
//                             exact: encoder from so far below that everything used is exact: every layer needs W more
//   none, H <= least hit      everything again from 0
//
// H is rounded down to a multiple of every compression ratio where rows below it run again.
#pragma once

#include <cstdint>
#include <optional>

#include "kv/window_entry.h"

namespace dsv41::session {

// What to do when window rows of the encoder are missing.
enum class EncoderReplay : uint8_t {
  kBounded,  // run the last window of tokens again: the model's approximation
  kRefuse,   // nothing: REPLAY_REQUIRED, or everything from token 0
  kExact,    // run as many again as an exact result needs; nothing approximate is built on
};
enum class DecoderPolicy : uint8_t { kBounded, kFull };

struct ReplayPolicy {
  EncoderReplay encoder = EncoderReplay::kBounded;
  DecoderPolicy decoder = DecoderPolicy::kBounded;
  bool strict_numeric_class = false;  // nothing is built on what a backend of another numeric class has computed
};

// Where the tokens that a call does not compute come from. kStore: some of them are read from a store; those below may
// be pages in memory.
enum class HitSource : uint8_t { kNone, kLive, kWindowEntry, kPrefixTree, kStore };

// How a result relates to one uninterrupted run over the same tokens. kBitIdentical: the same bytes. kExact: the same
// mathematics, with rows that a backend of another numeric class has computed. kApproximate: an encoder bounded replay
// took part.
enum class ResultClass : uint8_t { kBitIdentical, kExact, kApproximate };

// The run whose bytes a result equals (kv.md section 1). kLive: the same calls in an uninterrupted session. kCold: one
// prefill over all tokens. kReplay: a run with hits at the positions of its provenance.
enum class Reference : uint8_t { kLive, kCold, kReplay };

struct ModelShape {
  int64_t n_encoder_layers = 0;
  int64_t n_decoder_layers = 0;
  int64_t window = 0;
  int64_t ratio_multiple = 1;  // least common multiple of the compression ratios
  int64_t least_hit = 0;       // hits of at most so many tokens are computed again (default: the window)
};

struct StartPoint {
  HitSource source = HitSource::kNone;
  int64_t tokens = 0;                 // tokens of the call whose global KV is there
  kv::WindowRows encoder, decoder;    // window rows that can be read at `tokens`
  kv::Provenance provenance;          // of rows that go on from the window rows
  kv::Provenance records_provenance;  // of the global KV just below `tokens`
  bool encoder_covers = false;        // the window rows serve a row at `tokens`
  bool decoder_covers = false;
  bool other_class = false;  // some of it may be of another numeric class
};

struct RunPlan {
  HitSource source = HitSource::kNone;
  int64_t length = 0;         // L
  int64_t hit = 0;            // H: global KV of [0, hit) is taken as it is
  int64_t encoder_start = 0;  // the encoder runs on [encoder_start, length)
  int64_t encoder_floor = 0;  // lowest window row that its layers may read
  int64_t window_from = 0;    // window rows below it are there and stay
  int64_t decoder_start = 0;  // the decoder runs on [decoder_start, length)
  int64_t decoder_floor = 0;
  bool in_place = false;         // goes on from intact windows of both halves
  bool decoder_goes_on = false;  // decoder rows below decoder_start are read
  kv::Provenance provenance;     // of the rows [hit, length)
  Reference reference = Reference::kCold;
  bool other_class = false;  // goes on from rows that may be of another numeric class
  int64_t layer_tokens = 0;  // layer x token units

  int64_t encoder_replayed() const { return hit - encoder_start; }
  int64_t decoder_replayed() const { return decoder_start < hit ? hit - decoder_start : 0; }
  int64_t encoder_computed() const { return length - hit; }
  int64_t decoder_computed() const { return length - decoder_start - decoder_replayed(); }
  bool replays() const { return encoder_replayed() > 0; }
  ResultClass result_class() const {
    if (!kv::is_exact(provenance)) return ResultClass::kApproximate;
    return other_class ? ResultClass::kExact : ResultClass::kBitIdentical;
  }
};

// The least that a start at `tokens` can cost: that of intact windows.
int64_t least_cost(const ModelShape& shape, const ReplayPolicy& policy, int64_t tokens, int64_t length);

// Nothing when the policy forbids this start. `length` is at least start.tokens; equal: only window rows are rebuilt.
std::optional<RunPlan> plan_run(const ModelShape& shape, const ReplayPolicy& policy, const StartPoint& start,
                                int64_t length);

}  // namespace dsv41::session
