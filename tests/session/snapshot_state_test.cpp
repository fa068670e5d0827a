// What goes beside the tokens: host data, sampler, copies with other parts; states behind pages that lie elsewhere; sizes;
// a pool that takes over a store's seed.
#include "session/chain_loader.h"
#include "session/session_state.h"
#include "session/snapshot_planes.h"
#include "snapshot_oracles.h"

namespace dsv41::test {
namespace {

using session::ChainHold;
using session::HostSection;

std::unique_ptr<Session> session_at(int64_t n, const std::string& salt = "") {
  auto session = new_session(uncached_pool(), {}, salt);
  if (n > 0) must_append(*session, random_prompt(static_cast<size_t>(n), 1));
  return session;
}

FileBytes text_bytes(std::string_view text) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text.data(), text.size()));
  return FileBytes(bytes.begin(), bytes.end());
}

// The pages of a session, held in its own pool.
ChainHold chain_of(Session& session) {
  const kv::PageId end = session.kv().chain_end();
  if (end == kv::kNoPage) return {};
  session.pool().pages().add_user(end);
  return ChainHold(&session.pool().pages(), end);
}

FileBytes must_save_state(const Session& session, std::optional<SnapshotKind> kind, SnapshotInfo* info = nullptr) {
  VectorSink sink;
  const Status status = session::save_state(session, sink, save_options(kind), info);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return sink.bytes();
}

Ids tail_of(const Session& session) {
  const Ids ids = session.tokens();
  return Ids(ids.begin() + session.position() / kPage * kPage, ids.end());
}

TEST_SUITE("session/snapshot: beside the tokens") {
  TEST_CASE("host data of length zero is there, and absent data is not") {
    const auto saved = session_at(5);
    const FileBytes name = text_bytes("a chat"), large(700000, std::byte{3});
    const HostSection host[] = {{7, name}, {0, {}}, {0xffffffff, large}};
    SnapshotOptions options = save_options(SnapshotKind::kPrefix);
    SnapshotInfo info;
    const FileBytes without = must_save(*saved, options, &info);
    CHECK(info.host_ids.empty());
    CHECK((info.parts & session::kPartHostData) == 0);
    options.host = host;
    const auto file = must_open(must_save(*saved, options, &info));
    CHECK(info.host_ids == std::vector<uint32_t>{7, 0, 0xffffffff});
    CHECK(file->info().host_ids == info.host_ids);
    CHECK(file->host_section(7).value() == name);
    CHECK(file->host_section(0).value().empty());
    CHECK(file->host_section(0xffffffff).value() == large);
    CHECK(file->host_section(1).status().code() == Code::kNOT_FOUND);
    CHECK(must_open(without)->host_section(0).status().code() == Code::kNOT_FOUND);
  }

  TEST_CASE("what was written is what a reader of the file says of it") {
    for (int64_t n : {0, 1, 129, 300}) {
      for (SnapshotKind kind : {SnapshotKind::kPrefix, SnapshotKind::kFull}) {
        CAPTURE(n);
        const auto saved = session_at(n, "salt");
        SnapshotInfo written;
        const FileBytes bytes = must_save(*saved, save_options(kind), &written);
        const SnapshotInfo read = must_open(bytes)->info();
        CHECK(written.total_bytes == bytes.size());
        CHECK(read.total_bytes == bytes.size());
        CHECK(read.kind == kind);
        CHECK(read.n_tokens == n);
        CHECK(read.parts == written.parts);
        CHECK(read.exact == written.exact);
        CHECK(read.layout_id == saved->pool().pages().geometry().layout_id());
        CHECK(read.fingerprint == pico()->fingerprint().value()->model);
        CHECK(read.salt_digest == sha256("salt"));
        CHECK(read.chain == written.chain);
        CHECK(read.numeric_class == pico()->model().backend()->numeric_class());
        CHECK(read.writer_version == written.writer_version);
        CHECK(!read.writer_version.empty());
        CHECK(read.saved_unix_ns == 1234567890123456789);
        CHECK(read.kv_raw_bytes == written.kv_raw_bytes);
        CHECK(read.kv_stored_bytes == written.kv_stored_bytes);
        CHECK(read.window_raw_bytes == written.window_raw_bytes);
        CHECK(read.window_stored_bytes == written.window_stored_bytes);
        CHECK((read.window_raw_bytes > 0) == (kind == SnapshotKind::kFull));
        if (n % kPage == 0) {
          CHECK(read.kv_raw_bytes ==
                static_cast<uint64_t>(n / kPage) * saved->pool().pages().geometry().payload_bytes());
        }
      }
    }
  }

  TEST_CASE("equal sessions give equal bytes, and the bound is the size without compression") {
    for (int64_t n : sweep<int64_t>({0, 1, 128, 301}, {127, 129, 700})) {
      for (SnapshotKind kind : {SnapshotKind::kPrefix, SnapshotKind::kFull}) {
        CAPTURE(n);
        const FileBytes data(3000);
        const HostSection host[] = {{1, data}, {2, {}}};
        Sampler sampler = test_sampler();
        SnapshotOptions options = save_options(kind);
        options.host = host;
        options.sampler = &sampler;
        options.compress = false;
        const auto saved = session_at(n);
        const FileBytes plain = must_save(*saved, options);
        CHECK(session::snapshot_bound(*saved, options).value() == plain.size());
        CHECK(must_save(*session_at(n), options) == plain);
        options.compress = true;
        const FileBytes packed = must_save(*saved, options);
        CHECK(session::snapshot_bound(*saved, options).value() == plain.size());
        CHECK(packed.size() <= plain.size());
        CHECK(must_save(*session_at(n), options) == packed);
      }
    }
  }

  TEST_CASE("the size follows from the tokens, not from limits, pool or windows that are not asked for") {
    const kv::PageGeometry geometry = uncached_pool()->pages().geometry();
    for (int64_t n : sweep<int64_t>({0, 1, 128, 300}, {2, 3, 64, 127, 129, 255, 256, 1023, 1024, 1025})) {
      CAPTURE(n);
      const uint64_t bytes = must_save(*session_at(n), SnapshotKind::kPrefix).size();
      const uint64_t of_tokens = static_cast<uint64_t>(n) * (geometry.payload_bytes() / 128 + 4);
      CHECK(bytes <= of_tokens + of_tokens / 100 + 16384);
    }
  }

  TEST_CASE("a copy has the same content, other compression, or fewer parts") {
    const auto saved = session_at(301);
    const FileBytes data = text_bytes("host");
    const HostSection host[] = {{1, data}};
    Sampler sampler = test_sampler();
    SnapshotOptions options = save_options(SnapshotKind::kFull);
    options.host = host;
    options.sampler = &sampler;
    const FileBytes packed = must_save(*saved, options);
    SnapshotOptions plain_options = options;
    plain_options.compress = false;
    const FileBytes plain = must_save(*saved, plain_options);
    const auto rewritten = [&](const FileBytes& bytes, const SnapshotOptions& with, uint32_t unwanted) {
      VectorSink sink;
      const Status status = must_open(bytes)->rewrite(sink, with, unwanted);
      REQUIRE_MESSAGE(status.ok(), status.message());
      return sink.bytes();
    };
    CHECK(rewritten(packed, options, 0) == packed);
    CHECK(rewritten(packed, plain_options, 0) == plain);
    CHECK(rewritten(plain, options, 0) == packed);
    // Without a part: as if it had been saved so.
    SnapshotOptions fewer = options;
    fewer.logits = false;
    CHECK(rewritten(packed, options, session::kPartLogits) == must_save(*saved, fewer));
    fewer = options;
    fewer.sampler = nullptr;
    CHECK(rewritten(packed, options, session::kPartSampler) == must_save(*saved, fewer));
    fewer = options;
    fewer.host = {};
    CHECK(rewritten(packed, options, session::kPartHostData) == must_save(*saved, fewer));
    fewer = options;
    fewer.decoder_windows = false;
    CHECK(rewritten(packed, options, session::kPartDecoderWindows) == must_save(*saved, fewer));
    fewer = options;
    fewer.kind = SnapshotKind::kPrefix;
    CHECK(rewritten(packed, options, session::kPartEncoderWindows) == must_save(*saved, fewer));
    CHECK(rewritten(packed, options, session::kPartOpenRows) == must_save(*saved, fewer));
    VectorSink sink;
    for (uint32_t part : {uint32_t{session::kPartTokens}, uint32_t{session::kPartGlobalKv}, uint32_t{128}}) {
      CHECK(must_open(packed)->rewrite(sink, options, part).code() == Code::kINVALID_ARG);
    }
    CHECK(sink.bytes().empty());
  }

  TEST_CASE("what is left out on the way in is as if it had been left out of the file") {
    const FileBytes full = must_save(*session_at(301), SnapshotKind::kFull);
    const FileBytes prefix = must_save(*session_at(301), SnapshotKind::kPrefix);
    for (uint32_t part : {session::kPartEncoderWindows, session::kPartOpenRows}) {
      RestoreOptions options = restore_options();
      options.unwanted_parts = part;
      RestoreInfo info;
      const auto session = must_restore(full, uncached_pool(), options, &info);
      CHECK(!session->has_logits());
      CHECK(session_digest(*session) == session_digest(*must_restore(prefix, uncached_pool())));
      CHECK((info.parts_to_rebuild & session::kPartEncoderWindows) != 0);
    }
  }
}

TEST_SUITE("session/snapshot: states") {
  TEST_CASE("a state on the pages that it was saved behind is the session that was saved") {
    for (int64_t n : {1, 2, 127, 128, 129, 256, 300, 301}) {
      for (SnapshotKind kind : {SnapshotKind::kPrefix, SnapshotKind::kFull}) {
        CAPTURE(n);
        const auto saved = session_at(n);
        SnapshotInfo info;
        const FileBytes bytes = must_save_state(*saved, kind, &info);
        CHECK(info.kind == SnapshotKind::kState);
        CHECK(info.n_tokens == n);
        CHECK(info.total_bytes == bytes.size());
        CHECK((info.parts & session::kPartTokens) == 0);
        CHECK(((info.parts & session::kPartEncoderWindows) != 0) == (kind == SnapshotKind::kFull));
        // The pages once more, in another pool.
        const auto pool = uncached_pool();
        const auto copy = must_restore(must_save(*saved, kind), pool);
        const auto file = must_open(bytes);
        RestoreInfo restored;
        const auto session =
            session::restore_on_chain(pool, chain_of(*copy), tail_of(*saved), file.get(), restore_options(), &restored)
                .value();
        CHECK(session->tokens() == saved->tokens());
        CHECK(restored.position == n);
        CHECK(session_digest(*session) == session_digest(*copy));
        CHECK(must_save(*session, kind) == must_save(*saved, kind));
        must_append(*session, random_prompt(9, 2));
        must_append(*copy, random_prompt(9, 2));
        CHECK(session_digest(*session) == session_digest(*copy));
        CHECK(file->tokens().status().code() == Code::kSECTION_MISSING);
        CHECK(file->restore(pool, restore_options(), nullptr).status().code() == Code::kUNSUPPORTED);
        CHECK(file->verify(snapshot::VerifyLevel::kDecode).value().ok());
      }
    }
  }

  TEST_CASE("pages alone give a session at their end") {
    const auto pool = uncached_pool();
    const auto saved = must_restore(must_save(*session_at(300), SnapshotKind::kPrefix), pool);
    RestoreInfo info;
    const auto session =
        session::restore_on_chain(pool, chain_of(*saved), {}, nullptr, restore_options(), &info).value();
    CHECK(session->tokens() == random_prompt(256, 1));
    CHECK(!session->encoder_windows_intact());
    CHECK((info.parts_to_rebuild & session::kPartEncoderWindows) != 0);
    REQUIRE(saved->truncate(256).ok());
    must_append(*session, random_prompt(9, 2));
    must_append(*saved, random_prompt(9, 2));
    CHECK(session_digest(*session) == session_digest(*saved));
    const auto empty = session::restore_on_chain(pool, {}, {}, nullptr, restore_options(), nullptr).value();
    CHECK(empty->position() == 0);
    RestoreOptions windows = restore_options();
    windows.required_parts = session::kPartEncoderWindows;
    CHECK(session::restore_on_chain(pool, chain_of(*saved), {}, nullptr, windows, nullptr).status().code() ==
          Code::kSECTION_MISSING);
  }

  TEST_CASE("a state behind other tokens is refused, and the pages are let go") {
    const auto saved = session_at(300);
    const auto file = must_open(must_save_state(*saved, SnapshotKind::kFull));
    const auto pool = uncached_pool();
    auto same = must_restore(must_save(*saved, SnapshotKind::kPrefix), pool);
    auto other = new_session(pool);
    must_append(*other, random_prompt(300, 2));
    const Ids tail = tail_of(*saved);
    const auto code = [&](ChainHold chain, const Ids& behind) {
      return session::restore_on_chain(pool, std::move(chain), behind, file.get(), restore_options(), nullptr)
          .status()
          .code();
    };
    CHECK(code(chain_of(*other), tail) == Code::kTOKENS_MISMATCH);
    CHECK(code({}, tail) == Code::kTOKENS_MISMATCH);
    CHECK(code(chain_of(*same), first(tail, 43)) == Code::kTOKENS_MISMATCH);
    Ids wrong = tail;
    wrong[5] ^= 1;
    CHECK(code(chain_of(*same), wrong) == Code::kTOKENS_MISMATCH);
    CHECK(code(chain_of(*same), random_prompt(128, 3)) == Code::kINVALID_ARG);
    RestoreOptions salted = restore_options("tenant");
    CHECK(session::restore_on_chain(pool, chain_of(*same), tail, file.get(), salted, nullptr).status().code() ==
          Code::kNAMESPACE_MISMATCH);
    const auto whole = must_open(must_save(*saved, SnapshotKind::kFull));
    CHECK(session::restore_on_chain(pool, chain_of(*same), tail, whole.get(), restore_options(), nullptr)
              .status()
              .code() == Code::kINVALID_ARG);
    CHECK(code(chain_of(*same), tail) == Code::kOK);
    same.reset();
    other.reset();
    const kv::PagePoolStats stats = pool->pages().stats();
    CHECK(stats.global_pages_free + stats.global_pages_cached == stats.global_pages);
  }

  TEST_CASE("the windows of a state serve a prompt from the host pool") {
    kv::KeySeed seed;
    seed.fill(std::byte{9});
    for (int64_t n : {100, 300, 301, 384}) {
      CAPTURE(n);
      const auto saved = session_at(n);
      const auto pool = cached_pool();
      REQUIRE(pool->adopt_seed(seed).ok());
      const auto file = must_open(must_save_state(*saved, SnapshotKind::kFull));
      {
        RestoreOptions prefix = restore_options();
        const auto pages = must_restore(must_save(*saved, SnapshotKind::kPrefix), pool, prefix);
        const kv::PrefixRootRef root = session::SessionState::root(*pages);
        const Result<kv::WindowEntryRef> entry =
            session::window_entry_of(*file, *pool, root, pages->kv().chain_end(), tail_of(*saved));
        REQUIRE_MESSAGE(entry.ok(), entry.status().message());
        pool->windows().put(entry.value());
        Ids wrong = tail_of(*saved);
        wrong.push_back(1);
        CHECK(session::window_entry_of(*file, *pool, root, pages->kv().chain_end(), wrong).status().code() ==
              Code::kTOKENS_MISMATCH);
        const auto without = must_open(must_save_state(*saved, SnapshotKind::kPrefix));
        CHECK(session::window_entry_of(*without, *pool, root, pages->kv().chain_end(), tail_of(*saved)).value() ==
              nullptr);
      }
      const auto session = new_session(pool);
      const RunResult result =
          must_sync(*session, join(random_prompt(static_cast<size_t>(n), 1), random_prompt(20, 2)));
      CHECK(result.hit_source == HitSource::kWindowEntry);
      CHECK(result.hit_position == n);
      must_append(*saved, random_prompt(20, 2));
      CHECK(session_digest(*session) == session_digest(*saved));
    }
  }
}

TEST_SUITE("session/pool: seeds") {
  TEST_CASE("a pool takes over a seed while no session is open and no page is in use") {
    kv::KeySeed seed;
    seed.fill(std::byte{7});
    const auto pool = cached_pool(), other = cached_pool();
    const Ids ids = random_prompt(300, 1);
    {
      const auto session = new_session(pool);
      CHECK(pool->adopt_seed(seed).code() == Code::kSTATE);
      must_sync(*session, ids);
    }
    CHECK(pool->adopt_seed(seed).code() == Code::kSTATE);  // cached pages
    CHECK(must_sync(*new_session(pool), join(ids, {5})).hit_position > 0);
    pool->trim(0);
    REQUIRE(pool->adopt_seed(seed).ok());
    REQUIRE(other->adopt_seed(seed).ok());
    const auto root = [](Pool& of) { return of.root({}); };
    CHECK(*root(*pool) == *root(*other));
    CHECK(root(*pool) == root(*pool));  // made once
    CHECK_FALSE(*root(*pool) == *cached_pool()->root({}));
    const Sha256Digest layout = pool->pages().geometry().layout_id();
    CHECK(root(*pool)->extras ==
          kv::chain_root(
              {std::as_bytes(std::span(layout)), std::as_bytes(std::span(pico()->fingerprint().value()->model)), {}}));
    // And works as before.
    leave_behind(pool, ids);
    CHECK(must_sync(*new_session(pool), join(ids, {5})).hit_position > 0);
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("the fingerprint is computed once, and is the model's") {
    const model::Fingerprint* const print = pico()->fingerprint().value();
    CHECK(pico()->fingerprint().value() == print);
    CHECK(print->model == model::compute_fingerprint(pico()->model().checkpoint()).value().model);
  }
}

}  // namespace
}  // namespace dsv41::test
