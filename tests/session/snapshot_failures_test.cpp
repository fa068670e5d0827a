// Saves and restores that fail or are cancelled in every place they can: the session that was saved stays as it was, the pool
// as it was but for cached pages, and the next try succeeds.
#include "snapshot_oracles.h"

namespace dsv41::test {
namespace {

// Fails the n-th write; counts what it took.
class FailingSink final : public ByteSink {
 public:
  explicit FailingSink(int64_t fails_at) : fails_at_(fails_at) {}
  Status write(std::span<const std::byte> bytes) override {
    if (++n_writes == fails_at_) return Status(Code::kNO_SPACE, "the disk is full");
    n_bytes += bytes.size();
    return Status();
  }
  Status commit() override { return Status(); }
  void abandon() override {}
  int64_t n_writes = 0;
  uint64_t n_bytes = 0;

 private:
  const int64_t fails_at_;
};

// Fails the n-th read, or triggers a flag at it.
class FailingSource final : public ByteSource {
 public:
  FailingSource(FileBytes bytes, int64_t at, CancelFlag* flag = nullptr)
      : inner_(std::move(bytes)), at_(at), flag_(flag) {}
  uint64_t size() const override { return inner_.size(); }
  Status read_at(uint64_t offset, std::span<std::byte> out) override {
    if (++n_reads == at_ && flag_) flag_->trigger();
    if (n_reads == at_ && !flag_) return Status(Code::kIO, "the disk is broken", 5);
    return inner_.read_at(offset, out);
  }
  int64_t n_reads = 0;

 private:
  BytesSource inner_;
  const int64_t at_;
  CancelFlag* const flag_;
};

struct Failing {
  std::shared_ptr<FailingBackend> backend = std::make_shared<FailingBackend>(make_backend("cpu"));
  std::shared_ptr<const session::LoadedModel> model = open_model("pico", backend);
  std::shared_ptr<Pool> pool(uint64_t tokens = 4096, uint32_t max_sessions = 4) const {
    PoolOptions options = pool_options(true, false);
    options.poison_pages = false;  // poisoning copies too, and nobody hears of its failures
    options.tokens = tokens;
    options.max_sessions = max_sessions;
    return make_pool(model, options);
  }
};

std::unique_ptr<Session> session_in(const std::shared_ptr<Pool>& pool, int64_t n = 390, uint64_t seed = 1) {
  auto session = new_session(pool);
  must_append(*session, random_prompt(static_cast<size_t>(n), seed));
  return session;
}

// Nothing is held and nothing is lost; restored pages may stay cached.
void check_nothing_held(Pool& pool) {
  const kv::PagePoolStats stats = pool.pages().stats();
  CHECK(stats.global_pages_free + stats.global_pages_cached == stats.global_pages);
  CHECK(stats.window_slots_free == stats.window_slots);
  CHECK(pool.counters().sessions_open == 0);
  const Status status = pool.check_invariants();
  CHECK_MESSAGE(status.ok(), status.message());
}

constexpr SnapshotKind kKinds[] = {SnapshotKind::kPrefix, SnapshotKind::kFull};

TEST_SUITE("session/snapshot_failures") {
  TEST_CASE("a sink that fails at any write ends the save, and the session is as before") {
    const auto saved = session_in(uncached_pool());
    const std::string digest = session_digest(*saved);
    const std::vector<uint64_t> pool = pool_state(saved->pool());
    for (SnapshotKind kind : kKinds) {
      const FileBytes good = must_save(*saved, kind);
      Status status(Code::kIO, "not begun");
      int64_t n = 1;
      for (; !status.ok(); ++n) {
        CAPTURE(n);
        REQUIRE(n < 1000);
        FailingSink sink(n);
        status = session::save_snapshot(*saved, sink, save_options(kind), nullptr);
        CHECK((status.code() == Code::kNO_SPACE || status.ok()));
        if (status.ok()) CHECK(sink.n_bytes == good.size());
      }
      CHECK(n > 15);  // it failed in every section
      CHECK(session_digest(*saved) == digest);
      CHECK(pool_state(saved->pool()) == pool);
      CHECK(must_save(*saved, kind) == good);
    }
  }

  TEST_CASE("a source that fails at any read ends the restore, and nothing is held") {
    for (SnapshotKind kind : kKinds) {
      const auto saved = session_in(uncached_pool());
      const FileBytes bytes = must_save(*saved, kind);
      bool failed = true;
      int64_t n = 1;
      for (; failed; ++n) {
        CAPTURE(n);
        REQUIRE(n < 1000);
        const auto pool = page_pool();
        const auto source = std::make_shared<FailingSource>(bytes, n);
        const Result<std::unique_ptr<SessionSnapshot>> file = SessionSnapshot::open(source);
        if (!file.ok()) {
          CHECK(file.status().code() == Code::kIO);
          continue;
        }
        {
          const auto session = file.value()->restore(pool, restore_options(), nullptr);
          failed = !session.ok();
          if (failed) CHECK(session.status().code() == Code::kIO);
          if (!failed) CHECK(session.value()->tokens() == saved->tokens());
        }
        check_nothing_held(*pool);
        // The failure was the source's, not the file's: the same handle may be asked again.
        if (failed) CHECK(file.value()->restore(pool, restore_options(), nullptr).ok());
        check_nothing_held(*pool);
      }
      CHECK(n > 15);
    }
  }

  TEST_CASE("whatever copy or allocation of the device fails, the pool is as before but for cached pages") {
    const Failing f;
    for (SnapshotKind kind : kKinds) {
      const auto saving_pool = f.pool();
      const auto saved = session_in(saving_pool);
      const std::string digest = session_digest(*saved);
      const FileBytes bytes = must_save(*saved, kind);
      for (bool allocations : {false, true}) {
        const auto fail = [&](int64_t n) { allocations ? f.backend->fail_allocation(n) : f.backend->fail_copy(n); };
        bool struck = true;
        for (int64_t n = 1; struck; ++n) {
          CAPTURE(allocations);
          CAPTURE(n);
          VectorSink sink;
          fail(n);
          const Status status = session::save_snapshot(*saved, sink, save_options(kind), nullptr);
          struck = f.backend->struck();
          fail(0);
          CHECK(status.ok() == !struck);
        }
        CHECK(session_digest(*saved) == digest);
        for (int64_t n = 1;; ++n) {
          CAPTURE(allocations);
          CAPTURE(n);
          const auto pool = f.pool();
          fail(n);
          {
            const auto session = restore(bytes, pool);
            struck = f.backend->struck();
            fail(0);
            CHECK(session.ok() == !struck);
          }
          check_nothing_held(*pool);
          if (!struck) break;
          const auto again = must_restore(bytes, pool);
          if (kind == SnapshotKind::kFull) CHECK(session_digest(*again) == digest);
        }
      }
    }
  }

  TEST_CASE("a cancelled restore ends at the next read and holds nothing") {
    for (SnapshotKind kind : kKinds) {
      const auto saved = session_in(uncached_pool(), 1000);
      const FileBytes bytes = must_save(*saved, kind);
      bool cancelled = true;
      for (int64_t n = 1; cancelled; ++n) {
        CAPTURE(n);
        REQUIRE(n < 1000);
        CancelFlag flag;
        const auto source = std::make_shared<FailingSource>(bytes, n, &flag);
        const auto file = SessionSnapshot::open(source).value();
        const auto pool = page_pool();
        RestoreOptions options = restore_options();
        options.cancel = &flag;
        const auto session = file->restore(pool, options, nullptr);
        cancelled = !session.ok();
        if (cancelled) CHECK(session.status().code() == Code::kCANCELLED);
        if (cancelled) check_nothing_held(*pool);
      }
    }
  }

  TEST_CASE("cancelled at any copy, a restore leaves all its pages in the cache or none") {
    const Failing f;
    const auto saved = session_in(uncached_pool(), 1000);
    for (SnapshotKind kind : kKinds) {
      const FileBytes bytes = must_save(*saved, kind);
      int64_t n_cancelled_before = 0, n_cancelled_behind = 0;  // the pages were sealed
      bool cancelled = true;
      for (int64_t n = 1; cancelled; ++n) {
        CAPTURE(n);
        CancelFlag flag;
        RestoreOptions options = restore_options();
        options.cancel = &flag;
        const auto pool = f.pool();
        f.backend->cancel_at_copy(n, &flag);
        const auto session = restore(bytes, pool, options);
        f.backend->cancel_at_copy(0, nullptr);
        cancelled = !session.ok();
        if (!cancelled) break;
        CHECK(session.status().code() == Code::kCANCELLED);
        check_nothing_held(*pool);
        const uint64_t n_cached = pool->pages().stats().global_pages_cached;
        REQUIRE((n_cached == 0 || n_cached == 7));
        ++(n_cached == 0 ? n_cancelled_before : n_cancelled_behind);
      }
      CHECK(n_cancelled_before > 7);  // looked at in every page
      CHECK(n_cancelled_behind > 0);
    }
  }

  TEST_CASE("a cancelled save is told so, at any chunk") {
    const auto saved = session_in(uncached_pool(), 1000);
    class CancellingSink final : public ByteSink {
     public:
      CancellingSink(CancelFlag& flag, int64_t at) : flag_(flag), at_(at) {}
      Status write(std::span<const std::byte>) override {
        if (++n_ == at_) flag_.trigger();
        return Status();
      }
      Status commit() override { return Status(); }
      void abandon() override {}

     private:
      CancelFlag& flag_;
      const int64_t at_;
      int64_t n_ = 0;
    };
    bool cancelled = true;
    int64_t n = 1;
    for (; cancelled; ++n) {
      CAPTURE(n);
      REQUIRE(n < 1000);
      CancelFlag flag;
      CancellingSink sink(flag, n);
      SnapshotOptions options = save_options(SnapshotKind::kFull);
      options.cancel = &flag;
      const Status status = session::save_snapshot(*saved, sink, options, nullptr);
      cancelled = !status.ok();
      if (cancelled) CHECK(status.code() == Code::kCANCELLED);
    }
    CHECK(n > 15);
  }

  TEST_CASE("a pool that is too small says so before anything changes") {
    const FileBytes full = must_save(*session_in(uncached_pool(), 390), SnapshotKind::kFull);
    const FileBytes prefix = must_save(*session_in(uncached_pool(), 390), SnapshotKind::kPrefix);
    const auto check_full = [&](const std::shared_ptr<Pool>& pool, const FileBytes& bytes) {
      const std::vector<uint64_t> before = pool_state(*pool);
      const auto session = restore(bytes, pool);
      CHECK(session.status().code() == Code::kPOOL_FULL);
      CHECK(pool_state(*pool) == before);
      CHECK(pool->check_invariants().ok());
    };
    const Failing f;
    // 390 tokens: three full pages and a fourth.
    check_full(f.pool(256, 1), full);
    check_full(f.pool(256, 1), prefix);
    CHECK(restore(full, f.pool(384, 1)).ok());
    {                                    // pages enough but for the last
      const auto pool = f.pool(384, 2);  // five pages
      const auto other = session_in(pool, 130, 2);
      check_full(pool, full);
      check_full(pool, prefix);
    }
    {                                    // cached pages are there, and are not given up for what cannot be had anyway
      const auto pool = f.pool(512, 2);  // six pages
      leave_behind(pool, random_prompt(256, 7));
      const auto other = session_in(pool, 250, 2);
      const auto third = session_in(pool, 100, 3);
      check_full(pool, full);
      check_full(pool, prefix);
      CHECK(pool->pages().stats().global_pages_cached > 0);
    }
    {  // no window slot: a prefix needs none
      const auto pool = f.pool(4096, 1);
      const auto other = session_in(pool, 10);
      check_full(pool, full);
      const auto session = restore(prefix, pool);
      REQUIRE(session.ok());
      CHECK(session.value()->decode(5, {}, nullptr).code() == Code::kPOOL_FULL);
      CHECK(session.value()->position() == 390);
    }
  }

  TEST_CASE("options that cannot be are refused before anything is written") {
    const auto saved = session_in(uncached_pool(), 10);
    const std::byte data[1] = {};
    const session::HostSection twice[] = {{3, data}, {4, {}}, {3, {}}};
    for (int row = 0; row < 4; ++row) {
      CAPTURE(row);
      SnapshotOptions options = save_options(SnapshotKind::kFull);
      if (row == 0) options.kind = SnapshotKind::kState;
      if (row == 1) options.host = twice;
      if (row == 2) options.zstd_level = 0;
      if (row == 3) options.zstd_level = 20;
      VectorSink sink;
      const Code want = row == 0 ? Code::kUNSUPPORTED : Code::kINVALID_ARG;
      CHECK(session::save_snapshot(*saved, sink, options, nullptr).code() == want);
      CHECK(session::snapshot_bound(*saved, options).status().code() == want);
      CHECK(sink.bytes().empty());
    }
  }
}

}  // namespace
}  // namespace dsv41::test
