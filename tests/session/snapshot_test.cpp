// Sessions that were saved and brought back: full ones are the session that was saved, bit for bit; prefixes are that
// session cut at its end, without window rows.
#include "snapshot_oracles.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

std::vector<int64_t> positions() {
  return sweep<int64_t>({0, 1, 2, 128, 129, 257, 512}, {3, 127, 255, 256, 511, 513, 1023, 1024, 1025});
}

std::shared_ptr<Pool> pool_of(uint64_t tokens, uint32_t max_sessions, bool caches) {
  PoolOptions options = pool_options(caches, caches);
  options.tokens = tokens;
  options.max_sessions = max_sessions;
  return make_pool(pico(), options);
}

std::unique_ptr<Session> session_at(int64_t n, uint64_t seed = 1) {
  auto session = new_session(uncached_pool());
  if (n > 0) must_append(*session, random_prompt(static_cast<size_t>(n), seed));
  return session;
}

void check_equal(const RunResult& a, const RunResult& b) {
  CHECK(a.position == b.position);
  CHECK(a.hit_position == b.hit_position);
  CHECK(a.encoder_tokens_computed == b.encoder_tokens_computed);
  CHECK(a.decoder_tokens_computed == b.decoder_tokens_computed);
  CHECK(a.encoder_tokens_replayed == b.encoder_tokens_replayed);
  CHECK(a.decoder_tokens_replayed == b.decoder_tokens_replayed);
  CHECK(a.layer_tokens == b.layer_tokens);
  CHECK(a.result_class == b.result_class);
  CHECK(a.reference == b.reference);
}

void check_pool(const std::shared_ptr<Pool>& pool) {
  const Status status = pool->check_invariants();
  CHECK_MESSAGE(status.ok(), status.message());
}

TEST_SUITE("session/snapshot: full") {
  TEST_CASE("at every position a full snapshot comes back bit for bit, and goes on as the session that was saved") {
    for (int64_t n : positions()) {
      CAPTURE(n);
      const auto saved = session_at(n);
      Sampler sampler = test_sampler();
      for (int32_t id : random_prompt(30, 5)) REQUIRE(sampler.accept(id).ok());
      SnapshotOptions options = save_options(SnapshotKind::kFull);
      options.sampler = &sampler;
      const FileBytes bytes = must_save(*saved, options);
      const auto file = must_open(bytes);
      const auto pool = pool_of(2048, 3, /*caches=*/true);
      RestoreInfo info;
      const auto session = file->restore(pool, restore_options(), &info).value();
      CHECK(session->position() == n);
      CHECK(session->tokens() == saved->tokens());
      CHECK(session_digest(*session) == session_digest(*saved));
      CHECK(session->has_logits() == (n > 0));
      CHECK(session->encoder_windows_intact() == (n > 0));
      CHECK(session->decoder_windows_intact() == (n > 0));
      CHECK(session->encoder_floor() == saved->encoder_floor());
      CHECK(session->decoder_floor() == saved->decoder_floor());
      CHECK(session->is_exact());
      CHECK(info.position == n);
      CHECK(info.parts_to_rebuild == 0);
      CHECK(info.parts_absent == (n ? 0u : uint32_t{session::kPartLogits}));
      CHECK(must_save(*session, options) == bytes);
      if (n > 0) {
        Sampler restored = file->sampler(*pico()).value();
        CHECK(draw(*session, restored, 64) == draw(*saved, sampler, 64));
      } else {
        must_append(*session, random_prompt(10, 2));
        must_append(*saved, random_prompt(10, 2));
      }
      CHECK(session_digest(*session) == session_digest(*saved));
      check_pool(pool);
    }
  }

  TEST_CASE("a restored session is cut like the one that was saved, at odd and even positions") {
    for (int64_t n : {300, 301}) {
      const auto saved = session_at(n - 5);
      for (int32_t id : random_prompt(5, 2)) REQUIRE(saved->decode(id, {}, nullptr).ok());  // eight rows to go back
      const FileBytes bytes = must_save(*saved, SnapshotKind::kFull);
      for (int64_t cut = n - 1; cut >= n - 24; cut -= sweeps_all() ? 1 : 3) {
        CAPTURE(n);
        CAPTURE(cut);
        const auto live = saved->fork(cut).value();
        const auto session = must_restore(bytes, uncached_pool());
        REQUIRE(session->truncate(cut).ok());
        CHECK(session->encoder_windows_intact() == live->encoder_windows_intact());
        RunResult want, got;
        REQUIRE(live->prefill(random_prompt(9, 3), {}, &want).ok());
        REQUIRE(session->prefill(random_prompt(9, 3), {}, &got).ok());
        check_equal(got, want);
        CHECK(session_digest(*session) == session_digest(*live));
      }
    }
  }

  TEST_CASE("a session that was cut is saved as it is: nothing behind the cut is in the file") {
    for (int64_t cut : {299, 298, 257, 256, 255, 200}) {
      CAPTURE(cut);
      const Ids ids = random_prompt(300, 1);
      const auto grown = new_session(uncached_pool());
      must_append(*grown, first(ids, 190));
      for (size_t i = 190; i < ids.size(); ++i) REQUIRE(grown->decode(ids[i], {}, nullptr).ok());
      REQUIRE(grown->truncate(cut).ok());
      const SnapshotKind kind = grown->encoder_windows_intact() ? SnapshotKind::kFull : SnapshotKind::kPrefix;
      const auto session = must_restore(must_save(*grown, kind), uncached_pool());
      CHECK(session->position() == cut);
      CHECK(session->tokens() == first(ids, cut));
      CHECK(session->n_pages() == kv::pages_for(cut));
      CHECK(!session->has_logits());
      CHECK(session->logits().status().code() == Code::kSTATE);
      CHECK(session_digest(*session) == session_digest(*grown));
      REQUIRE(session->decode(ids[static_cast<size_t>(cut)], {}, nullptr).ok());
      REQUIRE(grown->decode(ids[static_cast<size_t>(cut)], {}, nullptr).ok());
      CHECK(session_digest(*session) == session_digest(*grown));
    }
  }

  TEST_CASE("forks are saved like sessions of their own") {
    const auto parent = session_at(400);
    for (int64_t n : {400, 399, 395}) {
      CAPTURE(n);
      const auto fork = parent->fork(n).value();
      const FileBytes bytes = must_save(*fork, SnapshotKind::kFull);
      const auto session = must_restore(bytes, uncached_pool());
      CHECK(session_digest(*session) == session_digest(*fork));
      CHECK(must_save(*session, SnapshotKind::kFull) == bytes);
      CHECK(fork->shares_memory());  // saving writes nothing
    }
  }

  TEST_CASE("without the decoder's rows its replay is to come") {
    const auto saved = session_at(300);
    SnapshotOptions options = save_options(SnapshotKind::kFull);
    options.decoder_windows = false;
    SnapshotInfo info;
    const FileBytes bytes = must_save(*saved, options, &info);
    CHECK((info.parts & session::kPartDecoderWindows) == 0);
    RestoreInfo restored;
    const auto session = must_restore(bytes, uncached_pool(), restore_options(), &restored);
    CHECK(session->encoder_windows_intact());
    CHECK(!session->decoder_windows_intact());
    CHECK(restored.parts_to_rebuild == session::kPartDecoderWindows);
    CHECK(session->has_logits());
    const uint32_t all_but_decoder = session::kDigestAll & ~uint32_t{session::kDigestDecoderWindows};
    CHECK(session_digest(*session, all_but_decoder) == session_digest(*saved, all_but_decoder));
    // With more new tokens than a window it does not matter (kv.md section 6).
    must_append(*session, random_prompt(kWindow + 1, 2));
    must_append(*saved, random_prompt(kWindow + 1, 2));
    CHECK(session_digest(*session) == session_digest(*saved));
    // The same file, asked for on the way in.
    const auto dropped = must_restore(must_save(*session_at(300), SnapshotKind::kFull), uncached_pool(), [] {
      RestoreOptions without = restore_options();
      without.unwanted_parts = session::kPartDecoderWindows;
      return without;
    }());
    CHECK(dropped->encoder_windows_intact());
    CHECK(!dropped->decoder_windows_intact());
  }

  TEST_CASE("without logits there are none, and sampling says so") {
    const auto saved = session_at(200);
    SnapshotOptions options = save_options(SnapshotKind::kFull);
    options.logits = false;
    for (bool in_file : {false, true}) {
      CAPTURE(in_file);
      options.logits = in_file;
      RestoreOptions restoring = restore_options();
      if (in_file) restoring.unwanted_parts = session::kPartLogits;
      RestoreInfo info;
      const auto session = must_restore(must_save(*saved, options), uncached_pool(), restoring, &info);
      CHECK(!session->has_logits());
      CHECK(session->logits().status().code() == Code::kSTATE);
      CHECK((info.parts_absent & session::kPartLogits) != 0);
      const auto live = saved->fork(200).value();
      REQUIRE(session->decode(7, {}, nullptr).ok());
      REQUIRE(live->decode(7, {}, nullptr).ok());
      CHECK(session_digest(*session) == session_digest(*live));
    }
  }

  TEST_CASE("a session on approximate records comes back with the hits that it descends from") {
    const auto saved = session_at(300);
    lose_windows(*saved);
    must_append(*saved, random_prompt(250, 2));
    lose_windows(*saved);
    must_append(*saved, random_prompt(31, 3));
    REQUIRE(hits_of(*saved) == std::vector<int64_t>{300, 550});
    for (SnapshotKind kind : {SnapshotKind::kFull, SnapshotKind::kPrefix}) {
      SnapshotInfo info;
      const FileBytes bytes = must_save(*saved, save_options(kind), &info);
      CHECK(!info.exact);
      const auto session = must_restore(bytes, uncached_pool());
      const std::vector<session::ProvenanceRange> want = saved->provenance(), got = session->provenance();
      REQUIRE(got.size() == want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(got[i].first == want[i].first);
        CHECK(got[i].end == want[i].end);
        CHECK(kv::equal(got[i].provenance, want[i].provenance));
      }
      CHECK(!session->is_exact());
      CHECK(must_save(*session, save_options(kind)) == bytes);
      if (kind == SnapshotKind::kPrefix) continue;
      must_append(*session, random_prompt(40, 4));
      must_append(*saved, random_prompt(40, 4));
      CHECK(session_digest(*session) == session_digest(*saved));
      CHECK(hits_of(*session) == hits_of(*saved));
    }
  }

  TEST_CASE("saving leaves the session as it was") {
    const auto saved = session_at(300);
    const std::string digest = session_digest(*saved);
    const std::vector<uint64_t> pool = pool_state(saved->pool());
    must_save(*saved, SnapshotKind::kFull);
    must_save(*saved, SnapshotKind::kPrefix);
    CHECK(session_digest(*saved) == digest);
    CHECK(pool_state(saved->pool()) == pool);
  }
}

TEST_SUITE("session/snapshot: prefix") {
  TEST_CASE("at every position a prefix comes back as the session cut there, and goes on as that does") {
    for (int64_t n : positions()) {
      CAPTURE(n);
      const auto saved = session_at(n);
      SnapshotInfo info;
      const FileBytes bytes = must_save(*saved, save_options(SnapshotKind::kPrefix), &info);
      CHECK(info.kind == SnapshotKind::kPrefix);
      const auto pool = pool_of(2048, 3, /*caches=*/true);
      RestoreInfo restored;
      const auto session = must_restore(bytes, pool, restore_options(), &restored);
      CHECK(session->position() == n);
      CHECK(session->tokens() == saved->tokens());
      CHECK(!session->has_logits());
      CHECK(!session->encoder_windows_intact());
      CHECK((restored.parts_absent & session::kPartLogits) != 0);
      constexpr uint32_t kWindows =
          session::kPartEncoderWindows | session::kPartDecoderWindows | session::kPartOpenRows;
      CHECK(restored.parts_to_rebuild == (n ? kWindows : 0u));
      CHECK(must_save(*session, SnapshotKind::kPrefix) == bytes);
      if (n > 0) {
        lose_windows(*saved);
        CHECK(session_digest(*session) == session_digest(*saved));
      }
      const Ids more = random_prompt(20, 2);
      RunResult want, got;
      REQUIRE(saved->prefill(more, {}, &want).ok());
      const session::RunPlan plan = session->plan_append(20, session->options().replay).value();
      REQUIRE(session->prefill(more, {}, &got).ok());
      if (n > 0) check_as_planned(plan, got, *session);
      check_equal(got, want);
      // An odd end is not on a boundary of the compressor: its token is computed again.
      CHECK(got.hit_position == (n > kWindow + 1 ? n / 2 * 2 : 0));
      CHECK((got.result_class == ResultClass::kApproximate) == (got.hit_position > 0));
      CHECK(session_digest(*session) == session_digest(*saved));
      CHECK(hits_of(*session) == hits_of(*saved));
      check_logits_finite(*session);
      check_pool(pool);
    }
  }

  TEST_CASE("a prefix takes the pages of its tokens and no window slot") {
    for (int64_t n : {1, 127, 128, 129, 256, 300}) {
      CAPTURE(n);
      const FileBytes bytes = must_save(*session_at(n), SnapshotKind::kPrefix);
      const auto pool = uncached_pool();
      const kv::PagePoolStats before = pool->pages().stats();
      const auto session = must_restore(bytes, pool);
      const kv::PagePoolStats after = pool->pages().stats();
      CHECK(before.global_pages_free - after.global_pages_free == static_cast<uint64_t>(kv::pages_for(n)));
      CHECK(after.window_slots_free == before.window_slots_free);
      REQUIRE(session->decode(5, {}, nullptr).ok());
      CHECK(pool->pages().stats().window_slots_free == before.window_slots_free - 1);
    }
  }

  TEST_CASE("marked sessions can be saved as a prefix only") {
    const auto saved = session_at(300);
    lose_windows(*saved);
    VectorSink sink;
    CHECK(session::save_snapshot(*saved, sink, save_options(SnapshotKind::kFull), nullptr).code() ==
          Code::kREPLAY_REQUIRED);
    CHECK(sink.bytes().empty());
    CHECK(session::snapshot_bound(*saved, save_options(SnapshotKind::kFull)).status().code() == Code::kREPLAY_REQUIRED);
    SnapshotInfo info;
    must_save(*saved, save_options(std::nullopt), &info);
    CHECK(info.kind == SnapshotKind::kPrefix);
    REQUIRE(saved->replay(/*encoder_only=*/true, {}, nullptr).ok());
    CHECK(session::save_snapshot(*saved, sink, save_options(SnapshotKind::kFull), nullptr).code() ==
          Code::kREPLAY_REQUIRED);
    SnapshotOptions encoder_only = save_options(SnapshotKind::kFull);
    encoder_only.decoder_windows = false;
    must_save(*saved, encoder_only, &info);
    CHECK(info.kind == SnapshotKind::kFull);
    REQUIRE(saved->replay(/*encoder_only=*/false, {}, nullptr).ok());
    must_save(*saved, save_options(std::nullopt), &info);
    CHECK(info.kind == SnapshotKind::kFull);  // what a CPU's hosts want
  }

  TEST_CASE("windows that the host keeps serve a restored prefix as they serve any session") {
    const Ids ids = random_prompt(300, 1);
    const auto pool = cached_pool();
    FileBytes bytes;
    {
      const auto saved = new_session(pool);
      must_sync(*saved, ids);
      bytes = must_save(*saved, SnapshotKind::kPrefix);
    }
    const auto session = must_restore(bytes, pool);
    RunResult result;
    REQUIRE(session->prefill(random_prompt(10, 2), {}, &result).ok());
    CHECK(result.hit_source == HitSource::kWindowEntry);
    CHECK(result.reference == Reference::kLive);
    CHECK(session_digest(*session) == reference_digest(join(ids, random_prompt(10, 2)), {300, 310}));
  }

  TEST_CASE("an exact policy computes what the bounded one would approximate") {
    const Ids ids = random_prompt(300, 1), more = random_prompt(10, 2);
    const FileBytes bytes = must_save(*session_at(300), SnapshotKind::kPrefix);
    RestoreOptions options = restore_options();
    options.session.replay.encoder = EncoderReplay::kExact;
    const auto session = must_restore(bytes, uncached_pool(), options);
    RunResult result;
    REQUIRE(session->prefill(more, {}, &result).ok());
    CHECK(result.result_class == ResultClass::kBitIdentical);
    options.session.replay.encoder = EncoderReplay::kRefuse;
    const auto refusing = must_restore(bytes, uncached_pool(), options);
    CHECK(refusing->prefill(more, {}, nullptr).code() == Code::kREPLAY_REQUIRED);
    CHECK(refusing->position() == 300);
  }
}

TEST_SUITE("session/snapshot: places") {
  TEST_CASE("pool size, chunks, threads and limits are not part of what is saved") {
    const auto saved = session_at(700);
    const FileBytes bytes = must_save(*saved, SnapshotKind::kFull);
    const std::string digest = session_digest(*saved);
    must_append(*saved, random_prompt(200, 2));
    const auto other_threads = open_model("pico", make_backend("cpu", 2));
    for (const auto& model : {pico(), other_threads}) {
      for (uint64_t tokens : {1024, 100000}) {
        for (int64_t chunk : sweep<int64_t>({0, 37}, {1, 4096})) {
          CAPTURE(tokens);
          CAPTURE(chunk);
          PoolOptions pool = pool_options(true, false);
          pool.tokens = tokens;
          pool.max_sessions = 2;
          RestoreOptions options = restore_options();
          options.session.chunk_tokens = chunk;
          options.session.max_tokens = static_cast<int64_t>(tokens / 100 + 1014);
          options.strict_numeric_class = true;
          const auto session = must_restore(bytes, make_pool(model, pool), options);
          CHECK(session_digest(*session) == digest);
          if (chunk == 1) continue;  // slow, and the same
          must_append(*session, random_prompt(200, 2));
          CHECK(session_digest(*session) == session_digest(*saved));
        }
      }
    }
  }

  TEST_CASE("fifty restores give one state, and their pages go back") {
    const FileBytes full = must_save(*session_at(390), SnapshotKind::kFull);
    const FileBytes prefix = must_save(*session_at(390), SnapshotKind::kPrefix);
    for (const FileBytes* bytes : {&full, &prefix}) {
      const auto pool = uncached_pool();
      const kv::PagePoolStats before = pool->pages().stats();
      std::string digest;
      for (int i = 0; i < 50; ++i) {
        CAPTURE(i);
        RestoreInfo info;
        const auto session = must_restore(*bytes, pool, restore_options(), &info);
        if (i == 0) digest = session_digest(*session);
        CHECK(session_digest(*session) == digest);
        CHECK(info.n_pages_shared == (i ? 3 : 0));
        if (i % 2) must_append(*session, random_prompt(3, static_cast<uint64_t>(i)));
      }
      const kv::PagePoolStats after = pool->pages().stats();
      CHECK(after.global_pages_free + after.global_pages_cached == before.global_pages_free);
      CHECK(after.global_pages_cached == 3);
      CHECK(after.window_slots_free == before.window_slots_free);
      pool->trim(0);
      CHECK(pool->pages().stats().global_pages_free == before.global_pages_free);
      check_pool(pool);
    }
  }

  TEST_CASE("sessions that restore one file share its pages, and each writes its own") {
    const auto saved = session_at(300);
    const FileBytes bytes = must_save(*saved, SnapshotKind::kFull);
    const auto pool = pool_of(512, 4, /*caches=*/false);  // eight pages
    std::vector<std::unique_ptr<Session>> sessions;
    for (uint64_t i = 0; i < 4; ++i) {
      sessions.push_back(must_restore(bytes, pool));
      CHECK(pool->pages().stats().global_pages_sealed == 2);
      must_append(*sessions.back(), random_prompt(20, i));
    }
    for (uint64_t i = 0; i < 4; ++i) {
      CAPTURE(i);
      const auto live = saved->fork(300).value();
      must_append(*live, random_prompt(20, i));
      CHECK(session_digest(*sessions[i]) == session_digest(*live));
    }
    check_pool(pool);
  }

  TEST_CASE("what is restored can be found by other sessions' prompts") {
    const Ids ids = random_prompt(300, 1);
    const FileBytes bytes = must_save(*session_at(300), SnapshotKind::kPrefix);
    const auto pool = page_pool();
    must_restore(bytes, pool);
    const auto other = new_session(pool);
    const RunResult result = must_sync(*other, join(ids, random_prompt(10, 2)));
    CHECK(result.hit_source == HitSource::kPrefixTree);
    CHECK(result.hit_position == 256);
  }

  TEST_CASE("through a file, and under another name the old content stays readable") {
    const TempFolder folder;
    const std::string path = folder.file("chat.dsv41");
    const auto save_to_path = [&](const Session& session, SnapshotInfo* info) {
      const std::unique_ptr<ByteSink> sink = create_file_sink(system_file_system(), path, Durability::kNone).value();
      REQUIRE(session::save_snapshot(session, *sink, save_options(SnapshotKind::kFull), info).ok());
      REQUIRE(sink->commit().ok());
    };
    const auto saved = session_at(300);
    SnapshotInfo info;
    save_to_path(*saved, &info);
    CHECK(info.total_bytes == std::filesystem::file_size(path));
    const auto file = SessionSnapshot::open(open_file_source(system_file_system(), path).value()).value();
    const std::string digest = session_digest(*saved);
    must_append(*saved, random_prompt(100, 2));
    save_to_path(*saved, &info);  // in its place
    CHECK(session_digest(*file->restore(uncached_pool(), restore_options(), nullptr).value()) == digest);
    CHECK(file->tokens().value() == random_prompt(300, 1));
    const auto again = SessionSnapshot::open(open_file_source(system_file_system(), path).value()).value();
    CHECK(session_digest(*again->restore(uncached_pool(), restore_options(), nullptr).value()) ==
          session_digest(*saved));
  }

  TEST_CASE("another numeric class is taken unless it is refused") {
    const auto saved = session_at(300);
    const FileBytes bytes = must_save(*saved, SnapshotKind::kFull);
    const auto reference = open_model("pico", make_backend("ref"));
    const auto pool = make_pool(reference, pool_options(true, false));
    RestoreInfo info;
    const auto session = must_restore(bytes, pool, restore_options(), &info);
    CHECK(!info.same_numeric_class);
    CHECK(session_digest(*session) == session_digest(*saved));
    // From then on it is neither the one nor the other.
    const FileBytes mixed = must_save(*session, SnapshotKind::kFull);
    CHECK(must_open(mixed)->info().numeric_class == "mixed");
    must_restore(mixed, uncached_pool(), restore_options(), &info);
    CHECK(!info.same_numeric_class);
    RestoreOptions strict = restore_options();
    strict.strict_numeric_class = true;
    CHECK(restore(mixed, uncached_pool(), strict).status().code() == Code::kNUMERIC_MISMATCH);
    CHECK(restore(mixed, pool, strict).status().code() == Code::kNUMERIC_MISMATCH);
    CHECK(restore(bytes, pool, strict).status().code() == Code::kNUMERIC_MISMATCH);
    CHECK(restore(bytes, uncached_pool(), strict).ok());
  }
}

}  // namespace
}  // namespace dsv41::test
