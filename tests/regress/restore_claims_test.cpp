// Restores that said "ok" and were not:
//
//   ggml-org/llama.cpp#26063       right up to one window of history, wrong from the next token on
//   ikawrakow/ik_llama.cpp#2438    the check for state that was not restored could never be reached
//   ggml-org/llama.cpp#26676       the call did nothing
//   ggml-org/llama.cpp#26004       the size that a save reported was not that of the file
//   ggml-org/llama.cpp#730         without the logits the first token came out differently
//   ferranpons/Llamatik#141        KV came back, the random numbers did not
//   ggml-org/llama.cpp#4005        a fresh state that was loaded left the old one in place
//   ggml-org/llama.cpp#18552       each restore of the same state gave another text
//   Luce-Org/lucebox#371           a stale entry brought another conversation's KV
//   Luce-Org/lucebox#216           the answer before the restore came once more
//   raullenchai/Rapid-MLX#1385     buffers that were optional or empty could not be saved
#include <doctest/doctest.h>

#include <cmath>

#include "regress/reuse_oracles.h"
#include "support/snapshot_files.h"

namespace dsv41::test {
namespace {

const Oracles& model() { return Oracles::of("pico"); }

std::unique_ptr<session::Session> session_with(const Tokens& tokens) {
  auto session = model().session(model().pool(pages_only()));
  if (!tokens.empty()) synced(*session, tokens);
  return session;
}

session::Sampler sampler_of(const session::Session& session) {
  const session::LoadedModel& loaded = *session.pool().loaded_model();
  session::SamplerOptions options;
  options.seed = 11;
  options.repetition_penalty = 1.2;
  options.logit_bias = {{static_cast<int32_t>(loaded.config().image_token_id), -INFINITY}};
  return session::Sampler::create(options, loaded.vocab_size()).value();
}

Tokens sampled(session::Session& session, session::Sampler& sampler, int n) {
  Tokens tokens;
  for (int i = 0; i < n; ++i) {
    const uint64_t position = static_cast<uint64_t>(session.position());
    tokens.push_back(sampler.sample(session.logits().value(), position).value().token);
    must_succeed(sampler.accept(tokens.back()));
    must_succeed(session.decode(tokens.back(), {}, nullptr));
  }
  return tokens;
}

TEST_SUITE("regress/restore_claims") {
  TEST_CASE("llama.cpp#26063: around every window and page the answer is the one that was interrupted") {
    for (int64_t n : {1, 2, 3, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025}) {
      CAPTURE(n);
      const Tokens prompt = words(1, n);
      const auto full = must_restore(must_save(*session_with(prompt), SnapshotKind::kFull), model().pool(pages_only()));
      CHECK(answer(*full, 4) == model().live({prompt}, 4));
    }
  }

  TEST_CASE("llama.cpp#26063: without windows it is a page hit's answer, and says so") {
    for (int64_t n : {1, 127, 128, 256, 512, 1024}) {
      CAPTURE(n);
      const Tokens prompt = words(1, n), all = joined(prompt, words(2, 3));
      const auto prefix =
          must_restore(must_save(*session_with(prompt), SnapshotKind::kPrefix), model().pool(pages_only()));
      const session::RunResult result = synced(*prefix, all);
      const bool hit = n > 128;  // a shorter one costs as much as none
      CHECK(result.hit_position == (hit ? n : 0));
      CHECK((result.result_class == session::ResultClass::kApproximate) == hit);
      CHECK(answer(*prefix, 4) == (hit ? model().hit_at(all, n, 4) : model().cold(all, 4)));
    }
  }

  TEST_CASE("ik_llama.cpp#2438: every part is restored, to be rebuilt, or absent; absent and required is an error") {
    const auto saved = session_with(words(1, 300));
    constexpr uint32_t kAll = session::kPartTokens | session::kPartGlobalKv | session::kPartEncoderWindows |
                              session::kPartDecoderWindows | session::kPartOpenRows | session::kPartLogits |
                              session::kPartSampler;
    for (SnapshotKind kind : {SnapshotKind::kPrefix, SnapshotKind::kFull}) {
      const FileBytes bytes = must_save(*saved, kind);
      RestoreInfo info;
      must_restore(bytes, model().pool(pages_only()), restore_options(), &info);
      CHECK((info.parts_restored | info.parts_to_rebuild | info.parts_absent) == kAll);
      CHECK((info.parts_restored & info.parts_to_rebuild) == 0);
      CHECK((info.parts_restored & info.parts_absent) == 0);
      CHECK((info.parts_to_rebuild & info.parts_absent) == 0);
      for (uint32_t part = 1; part <= session::kPartSampler; part *= 2) {
        CAPTURE(part);
        RestoreOptions options = restore_options();
        options.required_parts = part;
        const Status status = restore(bytes, model().pool(pages_only()), options).status();
        CHECK(status.code() == (info.parts_restored & part ? Code::kOK : Code::kSECTION_MISSING));
      }
    }
  }

  TEST_CASE("llama.cpp#26676, #4005: position, tokens and digest become the snapshot's, those of an empty one too") {
    for (int64_t n : {0, 200}) {
      const Tokens tokens = n ? words(1, n) : Tokens();
      const auto saved = session_with(tokens);
      const auto pool = model().pool(reuse_options());
      const auto old = model().session(pool);
      synced(*old, words(2, 150));
      const auto restored = must_restore(must_save(*saved, SnapshotKind::kFull), pool);
      CHECK(restored->position() == n);
      CHECK(restored->tokens() == tokens);
      CHECK(restored->n_pages() == kv::pages_for(n));
      CHECK(restored->digest(session::kDigestAll).value() == saved->digest(session::kDigestAll).value());
      CHECK(restored->digest(session::kDigestAll).value() != old->digest(session::kDigestAll).value());
      CHECK(restored->has_logits() == (n > 0));
      synced(*restored, joined(tokens, words(3, 10)));
      CHECK(restored->tokens() == joined(tokens, words(3, 10)));
    }
  }

  TEST_CASE("llama.cpp#26004: the size reported is the size of the file and what the writer saw") {
    const auto saved = session_with(words(1, 300));
    const FileBytes data(1000);
    const session::HostSection host[] = {{1, data}, {2, {}}};
    for (SnapshotKind kind : {SnapshotKind::kPrefix, SnapshotKind::kFull}) {
      SnapshotOptions options = save_options(kind);
      options.host = host;
      CountingSink counted;
      SnapshotInfo info;
      must_succeed(session::save_snapshot(*saved, counted, options, &info));
      const FileBytes bytes = must_save(*saved, options);
      CHECK(info.total_bytes == counted.n_written());
      CHECK(info.total_bytes == bytes.size());
      CHECK(must_open(bytes)->info().total_bytes == bytes.size());
      CHECK(session::snapshot_bound(*saved, options).value() >= bytes.size());
      std::vector<std::byte> memory(bytes.size());
      SpanSink fits(memory);
      must_succeed(session::save_snapshot(*saved, fits, options, nullptr));
      CHECK(fits.n_written() == bytes.size());
      SpanSink short_of_one{std::span(memory).first(bytes.size() - 1)};
      CHECK(session::save_snapshot(*saved, short_of_one, options, nullptr).code() == Code::kBUFFER_TOO_SMALL);
    }
  }

  TEST_CASE("llama.cpp#730: logits are there bit by bit, or there are none and sampling says so") {
    const auto saved = session_with(words(1, 200));
    for (bool with_logits : {true, false}) {
      SnapshotOptions options = save_options(SnapshotKind::kFull);
      options.logits = with_logits;
      const auto restored = must_restore(must_save(*saved, options), model().pool(pages_only()));
      REQUIRE(restored->has_logits() == with_logits);
      if (with_logits) {
        CHECK(std::ranges::equal(restored->logits().value(), saved->logits().value()));
      } else {
        CHECK(restored->logits().status().code() == Code::kSTATE);
      }
    }
  }

  TEST_CASE("Llamatik#141: with its sampler a session draws the same 64 tokens") {
    const auto saved = session_with(words(1, 150));
    session::Sampler sampler = sampler_of(*saved);
    sampled(*saved, sampler, 10);
    SnapshotOptions options = save_options(SnapshotKind::kFull);
    options.sampler = &sampler;
    const auto file = must_open(must_save(*saved, options));
    const auto restored = file->restore(model().pool(pages_only()), restore_options(), nullptr).value();
    session::Sampler loaded = file->sampler(*restored->pool().loaded_model()).value();
    CHECK(sampled(*restored, loaded, 64) == sampled(*saved, sampler, 64));
  }

  TEST_CASE("llama.cpp#18552: fifty restores of a prefix give one text, and their pages go back") {
    const Tokens prompt = words(1, 256), more = words(2, 5);
    const FileBytes bytes = must_save(*session_with(prompt), SnapshotKind::kPrefix);
    const auto pool = model().pool(pages_only());
    const uint64_t free_before = pool->pages().stats().global_pages_free;
    const Answer want = model().hit_at(joined(prompt, more), 256, 2);
    for (int i = 0; i < 50; ++i) {
      CAPTURE(i);
      const auto restored = must_restore(bytes, pool);
      synced(*restored, joined(prompt, more));
      CHECK(answer(*restored, 2) == want);
    }
    pool->trim(0);
    CHECK(pool->pages().stats().global_pages_free == free_before);
  }

  TEST_CASE("lucebox#371: tokens that the caller does not expect are an error, whatever name the file has") {
    const Tokens mine = words(1, 300), other = words(2, 300);
    const FileBytes bytes = must_save(*session_with(other), SnapshotKind::kFull);
    RestoreOptions options = restore_options();
    options.expected_tokens = mine;
    CHECK(restore(bytes, model().pool(pages_only()), options).status().code() == Code::kTOKENS_MISMATCH);
    options.expected_tokens = other;
    CHECK(must_restore(bytes, model().pool(pages_only()), options)->tokens() == other);
  }

  TEST_CASE("lucebox#216: nothing behind the position that was saved is seen by what follows") {
    const Tokens prompt = words(1, 140);
    const auto saved = session_with(prompt);
    const Answer first = answer(*saved, 20);
    REQUIRE(saved->truncate(140).ok());
    SnapshotOptions options = save_options(std::nullopt);
    const auto restored = must_restore(must_save(*saved, options), model().pool(pages_only()));
    CHECK(restored->tokens() == prompt);
    const Tokens question = words(3, 6);
    synced(*saved, joined(prompt, question));
    synced(*restored, joined(prompt, question));
    CHECK(answer(*restored, 6) == answer(*saved, 6));
    CHECK(restored->position() == 152);
    CHECK(first.tokens.size() == 20);
  }

  TEST_CASE("Rapid-MLX#1385: data of length zero and data that is not there come back as two things") {
    const auto saved = session_with(words(1, 3));
    const session::HostSection host[] = {{1, {}}};
    SnapshotOptions options = save_options(SnapshotKind::kPrefix);
    options.host = host;
    const auto file = must_open(must_save(*saved, options));
    CHECK(file->host_section(1).value().empty());
    CHECK(file->host_section(2).status().code() == Code::kNOT_FOUND);
    CHECK(file->info().host_ids == std::vector<uint32_t>{1});
    CHECK(file->restore(model().pool(pages_only()), restore_options(), nullptr).value()->tokens() == words(1, 3));
  }
}

}  // namespace
}  // namespace dsv41::test
