// Random histories of sessions over prompts with common prefixes, in pools with a store, with restarts in between:
// other pools, the store opened anew, memory lost, records given up. After every step: tokens equal a list of them; the
// call did what its plan said; tokens are found, read or computed and nothing else; what is called bit-identical is
// held, part by part, to a run without store and caches; pool and store are sound.
//
// A failure prints its seed. DSV41_TEST_SEED=n replays one, DSV41_TEST_OPERATIONS=n sets the number of steps.
#include <cstdlib>
#include <set>

#include "exact_runs.h"
#include "store_oracles.h"

namespace dsv41::test {
namespace {

using session::SnapshotKind;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* chosen = std::getenv(name);
  return chosen ? std::strtoull(chosen, nullptr, 10) : otherwise;
}

class StoreHistory {
 public:
  StoreHistory(uint64_t seed, int64_t longest) : random_(seed), longest_(longest) {
    const Ids base = random_prompt(static_cast<size_t>(longest), seed);
    for (const int64_t common : {longest, longest * 3 / 10, longest / 2, longest * 5 / 7, longest / 40}) {
      prompts_.push_back(join(first(base, common), random_prompt(static_cast<size_t>(longest - common), seed + 7)));
    }
    restart();
  }

  void step() {
    now_ += 1 + pick(3) * uint64_t{1000000000};
    Slot& slot = slots_[pick(std::size(slots_))];
    switch (pick(16)) {
      case 0:
      case 1:
      case 2:
      case 3: return sync(slot);
      case 4: return append(slot, 1 + static_cast<int64_t>(pick(static_cast<uint64_t>(longest_) / 3)));
      case 5: return append(slot, 1);
      case 6: return cut(slot);
      case 7: return fork(slot, slots_[pick(std::size(slots_))]);
      case 8:
      case 9: return put(slot);
      case 10:
      case 11: return restore(slot);
      case 12: return restart();
      case 13: return open(slot);
      case 14: return lose_memory();
      default: return lose_records();
    }
  }

  struct Counts {
    int64_t calls = 0, exact = 0, restored = 0, hit_store_tokens = 0;
    std::set<HitSource> sources;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Slot {
    std::unique_ptr<Session> session;
    Ids ids;
  };

  uint64_t pick(uint64_t n) { return random_() % n; }
  static int64_t length(const Slot& slot) { return static_cast<int64_t>(slot.ids.size()); }
  ReplayPolicy policy() {
    const uint64_t encoder = pick(8);
    return {encoder == 0   ? EncoderReplay::kRefuse
            : encoder == 1 ? EncoderReplay::kExact
                           : EncoderReplay::kBounded,
            pick(3) ? DecoderPolicy::kBounded : DecoderPolicy::kFull};
  }

  void open(Slot& slot) {
    slot.session = new_session(pool_, policy(), pick(6) ? "" : "salt");
    slot.ids.clear();
  }
  // Another pool; often the store is opened anew too.
  void restart() {
    for (Slot& slot : slots_) slot = Slot();
    pool_.reset();
    if (!store_ || pick(3)) {
      store_.reset();
      store::StoreOptions options = store_options(folder_.file("store"));
      options.clock = {[](void* user) { return *static_cast<uint64_t*>(user); }, &now_};
      options.segment_bytes = 300000;  // a few dozen pages
      options.background = pick(2);
      store_ = open_store(options);
    }
    PoolOptions options = pool_options(true, pick(3));
    options.max_sessions = 4;
    options.tokens = 8192;
    pool_ = store_pool(store_, options, pick(2) ? WriteBack::kOnSeal : WriteBack::kOnDemand);
    for (Slot& slot : slots_) {
      open(slot);
      if (pick(2)) sync(slot);
    }
  }
  void lose_memory() {
    if (pick(2)) pool_->windows().trim(0);
    if (pick(2)) pool_->trim(0);
    check_all();
  }
  void lose_records() {
    const store::StoreStats stats = store_->stats();
    REQUIRE(store_->gc(pick(4) ? stats.physical_bytes * (1 + pick(3)) / 4 : 0, nullptr).ok());
    check_all();
  }

  void sync(Slot& slot) {
    const Ids& prompt = prompts_[pick(prompts_.size())];
    static constexpr int64_t kEdges[] = {1, 127, 128, 129, 130, 255, 256, 257, 258, 383, 384, 385};
    int64_t n = 1 + static_cast<int64_t>(pick(prompt.size()));
    if (pick(3) == 0) n = std::min(longest_, kEdges[pick(std::size(kEdges))]);
    Ids ids = first(prompt, n);
    if (pick(4) == 0 && length(slot) > 0) ids = join(slot.ids, random_prompt(1 + pick(3), pick(5)));
    const Result<RunPlan> plan = slot.session->plan_sync(ids, slot.session->options().replay);
    run(slot, ids, plan,
        [&](const RunOptions& options, RunResult* result) { return slot.session->sync(ids, options, result); });
  }
  void append(Slot& slot, int64_t n) {
    if (length(slot) + n > longest_ * 3 / 2) return cut(slot);
    const Ids& prompt = prompts_[pick(prompts_.size())];
    Ids more = random_prompt(static_cast<size_t>(n), pick(3));
    if (length(slot) + n <= longest_ && pick(3)) {
      more = Ids(prompt.begin() + length(slot), prompt.begin() + length(slot) + n);
    }
    const Ids all = join(slot.ids, more);
    const ReplayPolicy policy = slot.session->options().replay;
    const Result<RunPlan> plan =
        slot.ids.empty() ? slot.session->plan_sync(all, policy) : slot.session->plan_append(n, policy);
    run(slot, all, plan,
        [&](const RunOptions& options, RunResult* result) { return slot.session->prefill(more, options, result); });
  }
  void cut(Slot& slot) {
    const int64_t position = static_cast<int64_t>(pick(static_cast<uint64_t>(length(slot)) + 1));
    REQUIRE(slot.session->truncate(position).ok());
    slot.ids.resize(static_cast<size_t>(position));
    if (!pick(3)) slot.session->set_replay(policy());
    check(slot);
  }
  void fork(Slot& from, Slot& to) {
    if (&from == &to) return;
    const int64_t position = static_cast<int64_t>(pick(static_cast<uint64_t>(length(from)) + 1));
    to.session = from.session->fork(position).value();
    to.ids = first(from.ids, position);
    check(to);
  }

  void put(Slot& slot) {
    if (slot.ids.empty()) return;
    StorePutOptions options;
    options.pages_only = pick(3) == 0;
    options.exact_only = pick(3) == 0;
    options.flush = pick(2);
    const bool full = pick(2) && slot.session->encoder_windows_intact() && slot.session->decoder_windows_intact();
    options.state.kind = full ? SnapshotKind::kFull : SnapshotKind::kPrefix;
    options.state.logits = pick(2);
    const std::string before = session_digest(*slot.session);
    const Result<StorePutResult> put = session::put_session(*store_, *slot.session, options);
    REQUIRE_MESSAGE(put.ok(), put.status().message());
    CHECK(session_digest(*slot.session) == before);
    CHECK(put.value().n_tokens <= length(slot));
    if (options.flush) {
      const std::string& salt = slot.session->options().salt;
      const session::LookupOptions lookup{.salt = std::as_bytes(std::span(salt.data(), salt.size()))};
      CHECK(must_look_up(store_, *pool_, slot.ids, lookup).n_tokens() >= put.value().n_tokens);
    }
    check_all();
  }
  void restore(Slot& slot) {
    const Ids& prompt = prompts_[pick(prompts_.size())];
    StoreMatch match = must_look_up(store_, *pool_, prompt);
    if (match.n_tokens() == 0) return;
    slot = Slot();  // its window slot
    session::RestoreOptions options;
    options.session.max_tokens = 4096;
    options.session.replay = policy();
    session::RestoreInfo info;
    Result<std::unique_ptr<Session>> made = session::restore_match(match, pool_, options, &info);
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    CHECK(info.position == match.n_tokens());
    ++counts_.restored;
    slot.session = std::move(made).value();
    slot.ids = first(prompt, info.position);
    check(slot);
  }

  // One call that should end with `ids`, sometimes cancelled.
  template <class Function>
  void run(Slot& slot, const Ids& ids, const Result<RunPlan>& plan, Function&& function) {
    Session& session = *slot.session;
    const std::string before = session_digest(session);
    RunOptions options;
    options.chunk_tokens = pick(2) ? 0 : 1 + static_cast<int64_t>(pick(200));
    CancelFlag flag;
    if (pick(16) == 0) {
      flag.trigger();
      options.cancel = &flag;
    }
    RunResult result;
    const Status status = function(options, &result);
    ++counts_.calls;
    if (!status.ok()) {
      const bool expected =
          status.code() == Code::kREPLAY_REQUIRED || (flag.triggered() && status.code() == Code::kCANCELLED);
      REQUIRE_MESSAGE(expected, status.message());
      if (session.position() == length(slot)) CHECK(session_digest(session) == before);
      slot.ids.resize(static_cast<size_t>(session.position()));
      return check(slot);
    }
    slot.ids = ids;
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    check_as_planned(plan.value(), result, session);
    check_accounts(result, ids);
    counts_.hit_store_tokens += result.hit_store_tokens;
    counts_.sources.insert(result.hit_source);
    check(slot);
  }

  void check_all() {
    REQUIRE_MESSAGE(pool_->check_invariants().ok(), pool_->check_invariants().message());
    REQUIRE_MESSAGE(store_->check_invariants().ok(), store_->check_invariants().message());
  }
  void check(Slot& slot) {
    check_all();
    Session& session = *slot.session;
    REQUIRE(session.position() == length(slot));
    CHECK(session.tokens() == slot.ids);
    check_logits_finite(session);
    if (slot.ids.empty() || !session.is_exact()) return;
    ++counts_.exact;
    const bool encoder = session.encoder_windows_intact();
    const bool decoder = session.decoder_windows_intact() && encoder;
    const std::vector<std::string>& want =
        exact_runs_.at(slot.ids, decoder ? session.decoder_floor() : 0, session.has_logits());
    for (size_t i = 0; i < std::size(kDigestParts); ++i) {
      const uint32_t part = kDigestParts[i];
      if (part == session::kDigestEncoderWindows && !encoder) continue;
      if (part == session::kDigestOpenRows && !session.has_logits()) continue;
      if (part == session::kDigestDecoderWindows && !decoder) continue;
      if (part == session::kDigestLogits && (!decoder || !session.has_logits())) continue;
      CAPTURE(part);
      CAPTURE(length(slot));
      CHECK(session_digest(session, part) == want[i]);
    }
  }

  std::mt19937_64 random_;
  const int64_t longest_;
  const TempFolder folder_;
  uint64_t now_ = uint64_t{1} << 60;
  StoreRef store_;
  std::shared_ptr<Pool> pool_;
  std::vector<Ids> prompts_;
  Slot slots_[3];
  ExactRuns exact_runs_;
  Counts counts_;
};

void run_history(uint64_t seed, uint64_t n_steps, int64_t longest) {
  MESSAGE("DSV41_TEST_SEED=" << seed);
  CAPTURE(seed);
  StoreHistory history(seed, longest);
  for (uint64_t i = 0; i < n_steps; ++i) {
    CAPTURE(i);
    history.step();
  }
  const StoreHistory::Counts& counts = history.counts();
  MESSAGE("calls " << counts.calls << ", states exact " << counts.exact << ", restored " << counts.restored
                   << ", tokens from the store " << counts.hit_store_tokens);
  if (n_steps < 100) return;
  CHECK(counts.exact > 10);
  CHECK(counts.restored > 2);
  CHECK(counts.hit_store_tokens > 0);
  CHECK(counts.sources.contains(HitSource::kStore));
}

TEST_SUITE("session/store_history") {
  TEST_CASE("a random history with a store is exact where it says so, and always what was planned") {
    run_history(from_environment("DSV41_TEST_SEED", 20261130), from_environment("DSV41_TEST_OPERATIONS", 150), 520);
  }
  TEST_CASE("a short random history with a store") { run_history(11, 25, 300); }
}
TEST_SUITE("session/store_history slow") {
  TEST_CASE("many random histories with a store") {
    for (uint64_t seed = 1; seed <= 8; ++seed) run_history(seed, 250, 520);
  }
}

}  // namespace
}  // namespace dsv41::test
