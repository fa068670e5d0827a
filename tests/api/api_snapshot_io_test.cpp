// Snapshots and what the host brings: streams that fail at each of their calls, saving inside a progress callback, threads,
// memory, bytes of any origin.
#include <doctest/doctest.h>
#include <malloc.h>

#include <optional>
#include <random>
#include <thread>

#include "api/memory_streams.h"
#include "api/nano_api.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

struct Saved {
  explicit Saved(size_t n = 150) : tokens(filler_tokens(nano_model(), n)) { session.prefill(tokens); }
  Tokens tokens;
  Pool pool{nano_model()};
  Session session{pool};
};

TEST_SUITE("api/snapshot_io") {
  TEST_CASE("whichever call of a writer fails, its value comes back and it is told once that nothing will come") {
    Saved saved(140);
    int n_failures = 0;
    for (int k = 1;; ++k) {
      CAPTURE(k);
      MemoryWriter writer(k);
      int32_t host_code = 0;
      const dsv41_status status = status_of([&] { saved.session.save(writer.functions()); }, &host_code);
      CAPTURE(writer.calls);
      if (status == DSV41_OK) break;
      ++n_failures;
      REQUIRE(n_failures < 10000);
      CHECK(status == DSV41_HOST_CALLBACK);
      CHECK(host_code == MemoryWriter::kFailure);
      // A commit that fails is the last call; before it, abort is.
      const bool commit_failed = writer.calls.find('c') != std::string::npos;
      CHECK(writer.calls.find('a') == (commit_failed ? std::string::npos : writer.calls.size() - 1));
    }
    CHECK(n_failures > 3);
    CHECK(saved.session.info().position == 140);
  }

  TEST_CASE("a writer needs no more than its write function") {
    Saved saved(20);
    MemoryWriter writer;
    dsv41_writer functions = writer.functions();
    functions.sync_fn = nullptr;
    functions.commit_fn = nullptr;
    functions.abort_fn = nullptr;
    saved.session.save(functions);
    CHECK(writer.calls.find_first_not_of('w') == std::string::npos);
    MemoryWriter failing(2);
    functions = failing.functions();
    functions.abort_fn = nullptr;
    CHECK(status_of([&] { saved.session.save(functions); }) == DSV41_HOST_CALLBACK);
    functions.write_fn = nullptr;
    CHECK(status_of([&] { saved.session.save(functions); }) == DSV41_INVALID_ARG);
  }

  TEST_CASE("whichever call of a reader fails, its value comes back, and a later try works") {
    Saved saved(140);
    const Bytes bytes = saved.session.save();
    Pool pool(nano_model());
    int n_failures = 0;
    for (int k = 1;; ++k) {
      CAPTURE(k);
      MemoryReader reader(bytes, k);
      int32_t host_code = 0;
      bool opened = false;
      const dsv41_status status = status_of(
          [&] {
            const Snapshot snapshot = Snapshot::open_io(nano_runtime(), reader.functions());
            opened = true;
            snapshot.verify(DSV41_VERIFY_DECODE);
            snapshot.restore(pool);
          },
          &host_code);
      CHECK(reader.n_closed == (opened ? 1 : 0));
      if (status == DSV41_OK) break;
      ++n_failures;
      REQUIRE(n_failures < 10000);
      CHECK(status == DSV41_HOST_CALLBACK);
      CHECK(host_code == MemoryReader::kFailure);
      CHECK(pool.stats().n_sessions == 0);
    }
    CHECK(n_failures > 10);
    pool.check();

    MemoryReader shaky(bytes);
    const Snapshot snapshot = Snapshot::open_io(nano_runtime(), shaky.functions());
    shaky.fail_at = shaky.n_calls + 7;
    CHECK(status_of([&] { snapshot.restore(pool); }) == DSV41_HOST_CALLBACK);
    CHECK(snapshot.restore(pool).digest() == saved.session.digest());
  }

  TEST_CASE("a reader is closed once, when the last user of the snapshot is gone") {
    Saved saved(20);
    MemoryReader reader(saved.session.save());
    dsv41_snapshot* snapshot = nullptr;
    const dsv41_reader functions = reader.functions();
    REQUIRE(dsv41_snapshot_open_io(nano_runtime().get(), &functions, &snapshot, nullptr) == DSV41_OK);
    CHECK(reader.n_closed == 0);
    dsv41_snapshot_release(snapshot);
    CHECK(reader.n_closed == 1);
    dsv41_snapshot_release(nullptr);
    MemoryReader foreign(Bytes(1000, 7));
    CHECK(status_of([&] { Snapshot::open_io(nano_runtime(), foreign.functions()); }) == DSV41_NOT_SNAPSHOT);
    CHECK(foreign.n_closed == 0);
  }

  TEST_CASE("an exception of a C++ writer comes out unchanged") {
    Saved saved(20);
    Bytes bytes;
    saved.session.save([&](const void* data, size_t size) {
      const auto* begin = static_cast<const uint8_t*>(data);
      bytes.insert(bytes.end(), begin, begin + size);
      return true;
    });
    CHECK(Snapshot::open_buffer(nano_runtime(), bytes).tokens() == saved.tokens);
    CHECK_THROWS_WITH_AS(saved.session.save([](const void*, size_t) -> bool { throw std::runtime_error("mine"); }),
                         "mine", std::runtime_error);
  }

  TEST_CASE("inside a callback of a stream the handles of the call are busy") {
    Saved saved(20);
    Bytes bytes = saved.session.save();
    struct Host {
      dsv41_session* session;
      dsv41_status decode = 0, save = 0, info = 0;
    } host{saved.session.get()};
    auto writer = make<dsv41_writer>();
    writer.user = &host;
    writer.write_fn = [](void* user, const void*, size_t) {
      auto& self = *static_cast<Host*>(user);
      size_t n = 0;
      auto info = make<dsv41_session_info>();
      self.decode = dsv41_decode(self.session, 5, nullptr, nullptr, nullptr);
      self.save = dsv41_snapshot_save_buffer(self.session, nullptr, nullptr, 0, &n, nullptr);
      self.info = dsv41_session_info_get(self.session, &info, nullptr);
      return 0;
    };
    saved.session.save(writer);
    CHECK(host.decode == DSV41_BUSY);
    CHECK(host.save == DSV41_BUSY);
    CHECK(host.info == DSV41_OK);
  }

  TEST_CASE("a second thread on a snapshot gets BUSY") {
    Saved saved(20);
    MemoryReader inner(saved.session.save());
    struct Host {
      MemoryReader* inner;
      dsv41_snapshot* snapshot = nullptr;
      dsv41_status other = 0;
    } host{&inner};
    auto reader = make<dsv41_reader>();
    reader.user = &host;
    reader.size_fn = [](void* user, uint64_t* size) {
      *size = static_cast<Host*>(user)->inner->bytes.size();
      return int32_t{0};
    };
    reader.read_at_fn = [](void* user, uint64_t offset, void* buffer, size_t size) {
      auto& self = *static_cast<Host*>(user);
      if (self.snapshot) {
        std::thread([&] {
          auto info = make<dsv41_snapshot_info>();
          self.other = dsv41_snapshot_info_get(self.snapshot, &info, nullptr);
        }).join();
      }
      const dsv41_reader functions = self.inner->functions();
      return functions.read_at_fn(functions.user, offset, buffer, size);
    };
    const Snapshot snapshot = Snapshot::open_io(nano_runtime(), reader);
    host.snapshot = snapshot.get();
    snapshot.tokens();
    CHECK(host.other == DSV41_BUSY);
  }

  TEST_CASE("a prefix saved inside a running call is the session from before it, and changes nothing about the call") {
    const Tokens first = filler_tokens(nano_model(), 200);
    Tokens more = filler_tokens(nano_model(), 301);
    more.erase(more.begin());
    auto chunks = make<dsv41_run_options>();
    chunks.chunk_tokens = 64;
    Pool pool(nano_model()), lone(nano_model());
    Session session(pool), want(lone);
    session.prefill(first);
    want.prefill(first);
    auto prefix = make<dsv41_snapshot_options>();
    prefix.kind = DSV41_SNAPSHOT_PREFIX;
    const Bytes before = session.save(prefix);
    size_t n_saves = 0;
    session.prefill(
        more,
        [&](const dsv41_progress& progress) {
          CHECK((progress.flags & DSV41_PROGRESS_DURABLE_POINT) != 0);
          const Bytes bytes = session.save();
          CHECK(bytes.size() == before.size());
          CHECK(session.snapshot_size() >= bytes.size());
          auto full = make<dsv41_snapshot_options>();
          full.kind = DSV41_SNAPSHOT_FULL;
          CHECK(status_of([&] { session.save(full); }) == DSV41_STATE);
          CHECK(status_of([&] { session.decode(5); }) == DSV41_BUSY);
          CHECK(status_of([&] { want.save(); }) == DSV41_BUSY);
          if (++n_saves == 3) {
            MemoryWriter writer;
            session.save(writer.functions());
            CHECK(writer.bytes.size() == before.size());
          }
          return true;
        },
        chunks);
    CHECK(n_saves == 5);
    want.prefill(more, chunks);
    CHECK(session.digest() == want.digest());
    CHECK(session.logits() == want.logits());
    pool.check();
  }

  TEST_CASE("what was saved inside a call is a session like any other") {
    const Tokens first = filler_tokens(nano_model(), 201);
    Pool pool(nano_model()), other(nano_model());
    Session session(pool);
    session.prefill(first);
    Bytes bytes;
    session.prefill(filler_tokens(nano_model(), 40), [&](const dsv41_progress&) {
      bytes = session.save();
      return true;
    });
    Session restored = Snapshot::open_buffer(nano_runtime(), bytes).restore(other);
    CHECK(restored.tokens() == first);
    session.truncate(201);
    const uint32_t parts = DSV41_DIGEST_TOKENS | DSV41_DIGEST_GLOBAL_KV;
    CHECK(restored.digest(parts) == session.digest(parts));
  }

  TEST_CASE("outside of durable points no callback may save") {
    Saved saved(20);
    Sampler sampler(nano_model());
    dsv41_status in_token = 0;
    auto options = make<dsv41_generate_options>();
    options.max_new_tokens = 1;
    saved.session.generate(
        sampler,
        [&](const dsv41_token_event&) {
          in_token = status_of([&] { saved.session.save(); });
          return true;
        },
        options);
    CHECK(in_token == DSV41_BUSY);
    auto open = make<dsv41_model_options>();
    open.folder = kNanoFolder.data();
    open.folder_size = kNanoFolder.size();
    uint32_t flags = 0;
    open.progress_user = &flags;
    open.progress_fn = [](void* user, const dsv41_progress* progress) {
      *static_cast<uint32_t*>(user) |= progress->flags;
      return int32_t{0};
    };
    Model model(nano_runtime(), open);
    CHECK(flags == 0);
  }

  TEST_CASE("any flipped byte is an error or changes nothing") {
    Saved saved(10);
    const Bytes bytes = saved.session.save();
    const Digest digest = saved.session.digest();
    Pool pool(nano_model());
    std::mt19937 random(12);
    size_t n_restored = 0;
    const size_t n_trials = kSanitized ? 60 : 600;
    for (size_t trial = 0; trial < n_trials; ++trial) {
      Bytes flipped = bytes;
      // The first and last bytes are head and tail: every one of them has its turn.
      const size_t at = trial < 64 ? trial : trial < 128 ? bytes.size() - 1 - (trial - 64) : random() % bytes.size();
      flipped[at] ^= static_cast<uint8_t>(1u << (random() % 8));
      CAPTURE(at);
      const dsv41_status status = status_of([&] {
        const Snapshot snapshot = Snapshot::open_buffer(nano_runtime(), flipped);
        const Session session = snapshot.restore(pool);
        CHECK(session.digest() == digest);
        ++n_restored;
      });
      CAPTURE(dsv41_status_name(status));
      CHECK((status == DSV41_OK || status <= DSV41_IO));
    }
    CHECK(n_restored < n_trials / 2);
    CHECK(pool.stats().n_sessions == 0);
    pool.check();
  }

  TEST_CASE("bytes of any origin answer status codes") {
    Saved saved(10);
    const Bytes bytes = saved.session.save();
    Pool pool(nano_model());
    std::mt19937 random(5);
    for (int trial = 0; trial < (kSanitized ? 100 : 1000); ++trial) {
      Bytes any(trial % 3 == 0 ? random() % 4096 : bytes.size());
      if (trial % 3 == 1) any.assign(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(random() % bytes.size()));
      if (trial % 3 == 2) any = bytes;
      for (int i = 0; trial % 3 == 0 && i < static_cast<int>(any.size()); ++i) {
        any[static_cast<size_t>(i)] = static_cast<uint8_t>(random());
      }
      if (trial % 3 == 2) {  // a run of bytes from elsewhere in the file
        const size_t n = 1 + random() % 64, from = random() % (any.size() - n), to = random() % (any.size() - n);
        std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(from), n, any.begin() + static_cast<ptrdiff_t>(to));
      }
      CAPTURE(trial);
      const dsv41_status status = status_of([&] {
        const Snapshot snapshot = Snapshot::open_buffer(nano_runtime(), any);
        snapshot.info();
        snapshot.tokens();
        snapshot.restore(pool);
      });
      CHECK((status == DSV41_OK || status <= DSV41_IO));
    }
    CHECK(pool.stats().n_sessions == 0);
    pool.check();
  }
}

// Heap of this thread that is in use.
uint64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST_SUITE("api/snapshot_memory") {
  TEST_CASE("a save through a stream takes memory for a chunk, whatever the length" * doctest::skip(kSanitized)) {
    Pool pool(nano_model());
    Session session(pool);
    auto options = make<dsv41_snapshot_options>();
    options.kind = DSV41_SNAPSHOT_PREFIX;
    for (size_t n_tokens : {2000, 4000}) {
      CAPTURE(n_tokens);
      session.sync(filler_tokens(nano_model(), n_tokens));
      uint64_t total = 0, largest = 0, peak = 0;
      const auto measure = [&](const void*, size_t size) {
        total += size;
        largest = std::max<uint64_t>(largest, size);
        peak = std::max(peak, heap_bytes());
        return true;
      };
      const uint64_t before = heap_bytes();
      session.save(measure, options);
      const uint64_t extra = peak - before;
      CAPTURE(total);
      CAPTURE(extra);
      CHECK(total > n_tokens * 600);
      CHECK(largest <= (256 << 10));
      // A chunk as it is, one as it is stored, and what zstd needs for one.
      CHECK(extra < (3 << 19));
    }
  }
}

}  // namespace
}  // namespace dsv41::test
