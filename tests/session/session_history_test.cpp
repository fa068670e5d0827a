// Random histories of sessions over prompts with common prefixes, in a pool with all caches and a clock that jumps.
// After every step: tokens equal a list of them; the call did what its plan said; what is called bit-identical is held,
// part by part, to a run in a pool without caches; lists of hits are possible ones; the pool's invariants hold.
//
// A failure prints its seed. DSV41_TEST_SEED=n replays one, DSV41_TEST_OPERATIONS=n sets the number of steps.
#include <cstdlib>
#include <set>

#include "exact_runs.h"

namespace dsv41::test {
namespace {

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* chosen = std::getenv(name);
  return chosen ? std::strtoull(chosen, nullptr, 10) : otherwise;
}

class History {
 public:
  // longest: tokens of a prompt. now: the pool's clock, which must outlive the pool.
  History(uint64_t seed, int64_t longest, uint64_t* now) : random_(seed), longest_(longest), now_(*now) {
    PoolOptions options = pool_options(true, true);
    options.tokens = 1792;  // a few prompts: pages are evicted
    options.max_sessions = 5;
    options.window_cache_bytes = uint64_t{3} << 20;
    options.window_cache_ttl_ns = 1000;
    options.clock = {[](void* user) { return *static_cast<uint64_t*>(user); }, &now_};
    pool_ = make_pool(pico(), options);
    const Ids base = random_prompt(static_cast<size_t>(longest), seed);
    for (int64_t common : {longest, longest * 3 / 10, longest / 2, longest * 5 / 7, longest / 40}) {
      prompts_.push_back(join(first(base, common), random_prompt(static_cast<size_t>(longest - common), seed + 7)));
    }
    for (Slot& slot : slots_) open(slot);
  }

  void step() {
    now_ += pick(4) ? 10 : 600;
    Slot& slot = slots_[pick(4)];
    switch (pick(14)) {
      case 0:
      case 1:
      case 2: return sync(slot);
      case 3:
      case 4: return append(slot, 1 + static_cast<int64_t>(pick(pick(2) ? 8 : static_cast<uint64_t>(longest_) / 3)));
      case 5:
      case 6: return append(slot, 1);
      case 7: return cut(slot, std::max<int64_t>(0, length(slot) - 1 - static_cast<int64_t>(pick(8))));
      case 8: return cut(slot, static_cast<int64_t>(pick(static_cast<uint64_t>(length(slot)) + 1)));
      case 9: return fork(slot, slots_[pick(4)]);
      case 10: return replay(slot);
      case 11: return make_exact(slot);
      case 12: return open(slot);
      default: return lose();
    }
  }

  const std::shared_ptr<Pool>& pool() const { return pool_; }
  ExactRuns& exact_runs() { return exact_runs_; }
  struct Counts {
    int64_t calls = 0, exact = 0, approximate = 0, refused = 0, cancelled = 0, full = 0;
    std::set<HitSource> sources;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Slot {
    std::unique_ptr<Session> session;
    Ids ids;  // what it should hold
  };

  uint64_t pick(uint64_t n) { return random_() % n; }
  static int64_t length(const Slot& slot) { return static_cast<int64_t>(slot.ids.size()); }
  ReplayPolicy policy() {
    const uint64_t encoder = pick(6);
    return {encoder == 0   ? EncoderReplay::kRefuse
            : encoder == 1 ? EncoderReplay::kExact
                           : EncoderReplay::kBounded,
            pick(3) ? DecoderPolicy::kBounded : DecoderPolicy::kFull};
  }

  void open(Slot& slot) {
    slot.session = new_session(pool_, policy(), pick(5) ? "" : "salt");
    slot.ids.clear();
    check(slot);
  }
  void sync(Slot& slot) {
    const Ids& prompt = prompts_[pick(prompts_.size())];
    static constexpr int64_t kEdges[] = {1, 127, 128, 129, 130, 255, 256, 257, 258, 383, 384, 385};
    int64_t n = 1 + static_cast<int64_t>(pick(prompt.size()));
    if (pick(2)) n = std::min(longest_, kEdges[pick(std::size(kEdges))]);
    Ids ids = first(prompt, n);
    if (pick(4) == 0 && length(slot) > 0) ids = join(slot.ids, random_prompt(1 + pick(3), pick(5)));
    const Result<RunPlan> plan = slot.session->plan_sync(ids, slot.session->options().replay);
    call(slot, ids, plan,
         [&](const RunOptions& options, RunResult* result) { return slot.session->sync(ids, options, result); });
  }
  void append(Slot& slot, int64_t n) {
    const Ids& prompt = prompts_[pick(prompts_.size())];
    Ids more = random_prompt(static_cast<size_t>(n), pick(3));
    if (length(slot) + n <= longest_ && pick(3)) {
      more = Ids(prompt.begin() + length(slot), prompt.begin() + length(slot) + n);
    } else if (length(slot) + n > longest_ * 3 / 2) {
      return cut(slot, longest_ / 2);
    }
    const bool decode = n == 1 && pick(2);
    const Ids all = join(slot.ids, more);
    const ReplayPolicy policy = slot.session->options().replay;
    const Result<RunPlan> plan =
        slot.ids.empty() && !decode ? slot.session->plan_sync(all, policy) : slot.session->plan_append(n, policy);
    call(slot, all, plan, [&](const RunOptions& options, RunResult* result) {
      return decode ? slot.session->decode(more[0], options, result) : slot.session->prefill(more, options, result);
    });
  }
  void replay(Slot& slot) {
    const bool encoder_only = pick(2);
    const bool logits = slot.session->has_logits();
    Result<RunPlan> plan = slot.session->plan_append(0, slot.session->options().replay);
    if (encoder_only) plan = Status(Code::kUNSUPPORTED, "plans are of both halves");
    call(slot, slot.ids, plan, [&](const RunOptions& options, RunResult* result) {
      return slot.session->replay(encoder_only, options, result);
    });
    if (slot.session->has_logits()) CHECK(logits);
  }
  void make_exact(Slot& slot) {
    if (slot.ids.empty()) return;
    RunResult result;
    const Status status = slot.session->make_exact({}, &result);
    if (status.code() == Code::kPOOL_FULL) {
      ++counts_.full;
      slot.ids = slot.session->tokens();
      return check(slot);
    }
    REQUIRE_MESSAGE(status.ok(), status.message());
    CHECK(slot.session->is_exact());
    CHECK(result.result_class == ResultClass::kBitIdentical);
    check(slot);
  }
  void cut(Slot& slot, int64_t position) {
    if (position > length(slot)) return;
    REQUIRE(slot.session->truncate(position).ok());
    slot.ids.resize(static_cast<size_t>(position));
    if (!pick(3)) slot.session->set_replay(policy());
    check(slot);
  }
  void fork(Slot& from, Slot& to) {
    if (&from == &to) return;
    const int64_t position =
        pick(2) ? length(from) : static_cast<int64_t>(pick(static_cast<uint64_t>(length(from)) + 1));
    const std::string before = session_digest(*from.session);
    to.session = from.session->fork(position).value();
    to.ids = first(from.ids, position);
    if (position == length(from)) CHECK(session_digest(*to.session) == before);
    CHECK(session_digest(*from.session) == before);
    check(to);
  }
  void lose() {
    const uint64_t how = pick(3);
    if (how == 0) now_ += 2000;
    if (how == 1) pool_->windows().trim(0);
    if (how == 2) pool_->trim(pick(10) * pool_->pages().geometry().page_bytes());
    REQUIRE_MESSAGE(pool_->check_invariants().ok(), pool_->check_invariants().message());
  }

  // One call that should end with `ids`, sometimes cancelled.
  template <class Function>
  void call(Slot& slot, const Ids& ids, const Result<RunPlan>& plan, Function&& function) {
    Session& session = *slot.session;
    const std::string before = session_digest(session);
    RunOptions options;
    options.chunk_tokens = pick(2) ? 0 : 1 + static_cast<int64_t>(pick(200));
    const bool cancel = pick(12) == 0;
    CancelFlag flag;
    if (cancel) {
      flag.trigger();
      options.cancel = &flag;
    }
    RunResult result;
    const Status status = function(options, &result);
    CHECK(result.position == session.position());
    ++counts_.calls;
    if (!status.ok()) {
      const bool expected = status.code() == Code::kPOOL_FULL || status.code() == Code::kREPLAY_REQUIRED ||
                            (cancel && status.code() == Code::kCANCELLED);
      REQUIRE_MESSAGE(expected, status.message());
      counts_.full += status.code() == Code::kPOOL_FULL;
      counts_.cancelled += status.code() == Code::kCANCELLED;
      counts_.refused += status.code() == Code::kREPLAY_REQUIRED;
      if (status.code() == Code::kREPLAY_REQUIRED) {
        CHECK(session.options().replay.encoder == EncoderReplay::kRefuse);
        CHECK(session_digest(session) == before);
      }
      // A sync may have cut the session to what it has in common with the list.
      if (session.position() == length(slot)) {
        CHECK(session_digest(session) == before);
      } else {
        const Ids& had = slot.ids;
        const int64_t common = std::ranges::mismatch(had, ids).in1 - had.begin();
        CHECK(session.position() <= common);
        // One token less where that is inside a pair whose first row is lost.
        CHECK(session.position() >= std::min(common, static_cast<int64_t>(ids.size()) - 1) / 2 * 2);
      }
      slot.ids.resize(static_cast<size_t>(session.position()));
      return check(slot);
    }
    if (cancel) CHECK(result.layer_tokens == 0);  // there was nothing to cancel
    slot.ids = ids;
    if (plan.ok()) check_as_planned(plan.value(), result, session);
    CHECK(result.hit_position + result.encoder_tokens_computed == session.position());
    counts_.sources.insert(result.hit_source);
    const std::vector<int64_t> hits = hits_of(session);
    switch (result.result_class) {
      case ResultClass::kBitIdentical:
        CHECK(result.reference != Reference::kReplay);
        CHECK(session.is_exact());
        CHECK(result.encoder_tokens_replayed ==
              (session.options().replay.encoder == EncoderReplay::kExact ? result.encoder_tokens_replayed : 0));
        break;
      default:
        CHECK(result.result_class == ResultClass::kApproximate);
        CHECK(result.reference == Reference::kReplay);
        CHECK(!session.is_exact());
        CHECK(session.options().replay.encoder != EncoderReplay::kExact);
        if (result.encoder_tokens_replayed > 0 && result.encoder_tokens_computed > 0) {
          CHECK((!hits.empty() && hits.back() == result.hit_position));
        }
    }
    if (result.reference == Reference::kCold && session.position() > 0) {
      const bool full = session.options().replay.decoder == DecoderPolicy::kFull;
      CHECK(session.decoder_floor() == (full ? 0 : std::max<int64_t>(0, session.position() - kWindow)));
    }
    check(slot);
  }

  void check(Slot& slot) {
    Session& session = *slot.session;
    REQUIRE_MESSAGE(pool_->check_invariants().ok(), pool_->check_invariants().message());
    REQUIRE(session.position() == length(slot));
    CHECK(session.tokens() == slot.ids);
    CHECK(session.common_prefix(slot.ids) == length(slot));
    check_logits_finite(session);
    int64_t end = 0;
    for (const session::ProvenanceRange& range : session.provenance()) {
      CHECK(range.first == end);
      end = range.end;
      if (kv::is_exact(range.provenance)) continue;
      int64_t last = kWindow;  // hits of at most a window are computed again
      for (int64_t hit : *range.provenance) {
        CHECK((hit > last && hit % 2 == 0));
        last = hit;
      }
    }
    CHECK(end == length(slot));
    if (slot.ids.empty() || !session.is_exact()) {
      counts_.approximate += !slot.ids.empty();
      return;
    }
    ++counts_.exact;
    // With the encoder's rows missing nothing goes on from the decoder's.
    const bool decoder = session.decoder_windows_intact() && session.encoder_windows_intact();
    const std::vector<std::string>& want =
        exact_runs_.at(slot.ids, decoder ? session.decoder_floor() : 0, session.has_logits());
    for (size_t i = 0; i < std::size(kDigestParts); ++i) {
      const uint32_t part = kDigestParts[i];
      if (part == session::kDigestEncoderWindows && !session.encoder_windows_intact()) continue;
      // A cut far back in a short session may have lost the row of an open pair; the next call computes it again.
      if (part == session::kDigestOpenRows && !session.has_logits()) continue;
      if (part == session::kDigestDecoderWindows && !decoder) continue;
      if (part == session::kDigestLogits && (!decoder || !session.has_logits())) continue;
      CAPTURE(part);
      CAPTURE(length(slot));
      CAPTURE(session.decoder_floor());
      CAPTURE(session.encoder_floor());
      CHECK(session_digest(session, part) == want[i]);
    }
  }

  std::mt19937_64 random_;
  const int64_t longest_;
  uint64_t& now_;
  std::shared_ptr<Pool> pool_;
  std::vector<Ids> prompts_;
  Slot slots_[4];
  ExactRuns exact_runs_;
  Counts counts_;
};

void run_history(uint64_t seed, uint64_t n_steps, int64_t longest) {
  MESSAGE("DSV41_TEST_SEED=" << seed);
  CAPTURE(seed);
  uint64_t now = 1;
  std::shared_ptr<Pool> pool;
  kv::PagePoolStats before;
  {
    History history(seed, longest, &now);
    pool = history.pool();
    before = pool->pages().stats();
    for (uint64_t i = 0; i < n_steps; ++i) {
      CAPTURE(i);
      history.step();
    }
    const History::Counts& counts = history.counts();
    MESSAGE("calls " << counts.calls << ", states exact " << counts.exact << ", approximate " << counts.approximate
                     << ", refused " << counts.refused << ", cancelled " << counts.cancelled << ", full " << counts.full
                     << ", runs compared with " << history.exact_runs().size() << ", evicted "
                     << pool->pages().stats().pages_evicted);
    if (n_steps >= 100) {
      CHECK(counts.exact > 10);
      CHECK(counts.sources.size() >= 3);
    }
  }
  pool->trim(0);
  CHECK(pool->pages().stats().global_pages_free == before.global_pages);
  CHECK(pool->pages().stats().window_slots_free == before.window_slots);
  CHECK(pool->counters().sessions_open == 0);
}

TEST_SUITE("session/history") {
  TEST_CASE("a random history is exact where it says so, and always what was planned") {
    run_history(from_environment("DSV41_TEST_SEED", 20261130), from_environment("DSV41_TEST_OPERATIONS", 150), 420);
  }
  TEST_CASE("a short random history of short prompts") { run_history(7, 30, 24); }
}

}  // namespace
}  // namespace dsv41::test
