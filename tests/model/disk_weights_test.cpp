// Experts and Engram rows copied into memory or served from disk: the same bits as mapped ones, whatever happens on the way.
#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "model/engram_rows.h"
#include "model/expert_cache.h"
#include "support/linked_folder.h"
#include "support/model_runner.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

using model::LayoutChoice;
using model::OpenOptions;
using model::Placement;

using LoadedModel = std::shared_ptr<const session::LoadedModel>;

// Of the nano model: 4 experts a token, 16 a layer, 12 layers.
constexpr uint64_t kExpertsOfToken = 4, kLayers = 12, kSlotBytes = 61440, kTokenSlots = kExpertsOfToken * kSlotBytes;

Result<LoadedModel> try_open(const OpenOptions& open, int n_threads = 1, const std::string& backend = "cpu",
                             const std::string& folder = checkpoint_folder("nano")) {
  session::ModelOptions options;
  options.folder = folder;
  options.backend = make_backend(backend, n_threads);
  options.open = open;
  return session::LoadedModel::open(options);
}

OpenOptions from_disk(uint64_t expert_cache_bytes = 0, ReadEngine engine = ReadEngine::kAuto) {
  OpenOptions open;
  open.layout = LayoutChoice::kMapped;
  open.experts = open.engram = Placement::kDisk;
  open.expert_cache_bytes = expert_cache_bytes;
  open.reader.engine = engine;
  return open;
}

std::vector<int32_t> prompt() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 20; ++i) ids.push_back(3 + i * 37 % 3000);
  return ids;
}

std::unique_ptr<session::Session> new_session(const LoadedModel& model) {
  return make_session(make_pool(model, 2, 256), session::DecoderPolicy::kFull, 128);
}

// Over the records and logits of a session after a prompt and a few tokens.
std::string digest_after(session::Session& session) {
  REQUIRE(session.prefill(prompt(), {}, nullptr).ok());
  greedy(session, 3);
  return session_digest(session);
}

std::string digest_of(const LoadedModel& model) { return digest_after(*new_session(model)); }

const std::string& mapped_digest() {
  static const std::string digest = [] {
    OpenOptions open;
    open.layout = LayoutChoice::kMapped;
    return digest_of(try_open(open).value());
  }();
  return digest;
}

struct PlacementCase {
  const char* name;
  LayoutChoice layout;
  Placement experts, engram;
  ReadEngine engine;
  int n_threads;
  uint64_t expert_cache_bytes, engram_cache_bytes;
};

constexpr PlacementCase kCases[] = {
    {"mapped beside packed", LayoutChoice::kPacked, Placement::kMapped, Placement::kMapped, ReadEngine::kAuto, 2, 0, 0},
    {"all copied, packed", LayoutChoice::kPacked, Placement::kMemory, Placement::kMemory, ReadEngine::kAuto, 2, 0, 0},
    {"all copied as it is", LayoutChoice::kMapped, Placement::kMemory, Placement::kMemory, ReadEngine::kThreads, 1, 0,
     0},
    {"disk, ring, room for all", LayoutChoice::kMapped, Placement::kDisk, Placement::kDisk, ReadEngine::kAuto, 1, 0, 0},
    {"disk, threads, room for all", LayoutChoice::kMapped, Placement::kDisk, Placement::kDisk, ReadEngine::kThreads, 2,
     0, 0},
    {"disk, ring, room for a token", LayoutChoice::kPacked, Placement::kDisk, Placement::kDisk, ReadEngine::kAuto, 2,
     kTokenSlots, 1},
    {"disk, threads, room for a token", LayoutChoice::kMapped, Placement::kDisk, Placement::kDisk, ReadEngine::kThreads,
     1, kTokenSlots, 1},
    {"experts from disk, rows in memory", LayoutChoice::kMapped, Placement::kDisk, Placement::kMemory,
     ReadEngine::kAuto, 2, 7 * kSlotBytes, 0},
    {"rows from disk, a few kept", LayoutChoice::kPacked, Placement::kAuto, Placement::kDisk, ReadEngine::kAuto, 2, 0,
     2000},
};

TEST_SUITE("model/disk_weights") {
  TEST_CASE("every placement gives the bits of mapped weights, by both engines, with one thread and with two") {
    for (const PlacementCase& row : kCases) {
      CAPTURE(row.name);
      OpenOptions open = from_disk(row.expert_cache_bytes, row.engine);
      open.layout = row.layout;
      open.experts = row.experts;
      open.engram = row.engram;
      open.engram_cache_bytes = row.engram_cache_bytes;
      const Result<LoadedModel> model = try_open(open, row.n_threads);
      REQUIRE(model.ok());
      CHECK(digest_of(model.value()) == mapped_digest());
      const model::Model& opened = model.value()->model();
      CHECK((opened.expert_cache() != nullptr) == (row.experts == Placement::kDisk));
      CHECK((opened.engram_rows() != nullptr) == (row.engram == Placement::kDisk));
      CHECK((opened.weights().copied_bytes > 0) ==
            (row.engram == Placement::kMemory ||
             (row.experts == Placement::kMemory && row.layout == LayoutChoice::kMapped)));
    }
  }

  TEST_CASE("counters say what a scripted run asked, had and read") {
    const LoadedModel model = try_open(from_disk()).value();
    const model::EngramHash& hash = *model->model().engram_hash();
    const std::vector<int32_t> same(5, 77);  // its n-grams repeat
    uint64_t n_asked = 0, n_distinct = 0;
    for (int64_t table = 0; table < 2; ++table) {
      std::vector<int32_t> history;
      for (const int32_t id : same) history.push_back(hash.compress(id));
      std::vector<int64_t> rows(same.size() * static_cast<size_t>(hash.n_columns()));
      hash.hash(table, history, static_cast<int64_t>(same.size()), rows.data());
      n_asked += rows.size();
      n_distinct += std::set<int64_t>(rows.begin(), rows.end()).size();
    }
    REQUIRE(n_distinct < n_asked);

    REQUIRE(new_session(model)->prefill(same, {}, nullptr).ok());
    const model::DiskStats first = model->model().disk_stats();
    CHECK(first.engram_rows_asked == n_asked);
    CHECK(first.engram_rows_deduplicated == n_asked - n_distinct);
    CHECK(first.engram_rows_hit == 0);
    CHECK(first.engram_rows_missed == n_distinct);
    CHECK(first.engram.reads == 2 * n_distinct);
    CHECK(first.engram.bytes_read > 264 * n_distinct - 1);
    CHECK(first.experts_missed >= kExpertsOfToken * kLayers);
    CHECK(first.experts_hit == 0);
    CHECK(first.experts.reads == 6 * first.experts_missed);
    CHECK(first.expert_waits > 0);
    CHECK(first.expert_waits <= first.experts_missed);

    // The same again: nothing is read.
    REQUIRE(new_session(model)->prefill(same, {}, nullptr).ok());
    const model::DiskStats second = model->model().disk_stats();
    CHECK(second.engram_rows_asked == 2 * n_asked);
    CHECK(second.engram_rows_hit == n_distinct);
    CHECK(second.experts_hit == first.experts_missed);
    CHECK(second.experts_missed == first.experts_missed);
    CHECK(second.experts.reads == first.experts.reads);
    CHECK(second.engram.reads == first.engram.reads);
  }

  TEST_CASE("a cache of one token's experts forgets the experts of the layer before") {
    const LoadedModel model = try_open(from_disk(kTokenSlots)).value();
    CHECK(model->model().expert_cache()->n_slots() == 4);
    for (uint64_t again = 1; again <= 2; ++again) {
      REQUIRE(new_session(model)->prefill(std::vector<int32_t>{77}, {}, nullptr).ok());
      CHECK(model->model().disk_stats().experts_missed == again * kExpertsOfToken * kLayers);
      CHECK(model->model().disk_stats().experts_hit == 0);
    }
  }

  TEST_CASE("a cache smaller than the experts of a token is refused with the size that it takes") {
    const Status refused = try_open(from_disk(kTokenSlots - 1)).status();
    CHECK(refused.code() == Code::kINVALID_ARG);
    CHECK(std::string(refused.message()).find(std::to_string(kTokenSlots)) != std::string::npos);
  }

  TEST_CASE("copies that the machine has no memory for are refused, and so is what ref cannot do") {
    OpenOptions open = from_disk();
    open.engram = Placement::kMemory;
    open.memory_bytes = 1000;
    CHECK(try_open(open).status().code() == Code::kNO_MEMORY);
    for (const Placement placement : {Placement::kMemory, Placement::kDisk}) {
      OpenOptions ref;
      ref.experts = placement;
      CHECK(try_open(ref, 1, "ref").status().code() == Code::kUNSUPPORTED);
      ref.experts = Placement::kMapped;
      ref.engram = placement;
      CHECK(try_open(ref, 1, "ref").status().code() == Code::kUNSUPPORTED);
    }
    OpenOptions mapped;
    mapped.experts = mapped.engram = Placement::kMapped;
    CHECK(try_open(mapped, 1, "ref").ok());
  }

  TEST_CASE("where the system refuses a ring, threads read") {
    OpenOptions open = from_disk(kTokenSlots);
    open.reader.refuse_ring = true;
    CHECK(digest_of(try_open(open).value()) == mapped_digest());
    open.reader.engine = ReadEngine::kRing;
    CHECK(try_open(open).status().code() == Code::kUNSUPPORTED);
  }

  TEST_CASE("an error of the disk ends the call, and the same call succeeds when the disk is well again") {
    for (const ReadEngine engine : {ReadEngine::kAuto, ReadEngine::kThreads}) {
      std::atomic<int64_t> until{0};
      OpenOptions open = from_disk(kTokenSlots + kSlotBytes, engine);
      open.reader.change_answer = [&](uint64_t, int64_t answer) -> int64_t {
        return until > 0 && until.fetch_sub(1) == 1 ? -EIO : answer;
      };
      const LoadedModel model = try_open(open).value();
      for (const int64_t n : {1, 7, 100, 333, 700}) {
        CAPTURE(n);
        auto session = new_session(model);
        until = n;
        const Status failed = session->prefill(prompt(), {}, nullptr);
        REQUIRE(until <= 0);
        CHECK(failed.code() == Code::kIO);
        CHECK(failed.os_error() == EIO);
        CHECK(std::string(failed.message()).find(".safetensors") != std::string::npos);
        session->reset();
        CHECK(digest_after(*session) == mapped_digest());
      }
    }
  }

  TEST_CASE("a file cut off under an open model gives an error") {
    LinkedFolder folder(checkpoint_folder("nano"));
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint_folder("nano"))) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".safetensors")) folder.replace(name, folder.read(name));
    }
    const LoadedModel model = try_open(from_disk(), 1, "cpu", folder.folder.path()).value();
    const model::Checkpoint& checkpoint = model->model().checkpoint();
    const auto place = checkpoint.place_of(*checkpoint.find("layers.0.ffn.experts.0.w1.weight"));
    std::filesystem::resize_file(*place.path, 4096);
    // What is mapped of that file is gone as well, so the cache alone is asked.
    std::vector<int32_t> all;
    for (int32_t e = 0; e < 16; ++e) all.push_back(e);
    model::ExpertRun run(*model->model().expert_cache(), 0, all);
    const auto given = run.next(nullptr);
    CHECK(given.status().code() == Code::kIO_SHORT);
  }

  TEST_CASE("a call that waits for the disk is cancelled at once, and what it left behind is in order") {
    for (const ReadEngine engine : {ReadEngine::kAuto, ReadEngine::kThreads}) {
      std::atomic<bool> hold{true};
      std::atomic<int> n_held{0};
      OpenOptions open = from_disk(kTokenSlots, engine);
      open.reader.depth = 2;
      open.reader.change_answer = [&](uint64_t, int64_t answer) {
        ++n_held;
        while (hold) std::this_thread::yield();
        return answer;
      };
      const LoadedModel model = try_open(open).value();
      auto session = new_session(model);
      CancelFlag cancel;
      std::thread watcher([&] {
        while (n_held == 0) std::this_thread::yield();
        cancel.trigger();
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        hold = false;
      });
      session::RunOptions run;
      run.cancel = &cancel;
      const Status status = session->prefill(prompt(), run, nullptr);
      watcher.join();
      CHECK(status.code() == Code::kCANCELLED);
      // One is destroyed as it is, with rows of Engram tables on their way into its memory.
      session.reset();
      CHECK(digest_of(model) == mapped_digest());
      cancel.reset();
      session = new_session(model);
      std::thread second([&] { cancel.trigger(); });
      static_cast<void>(session->prefill(prompt(), run, nullptr));
      second.join();
      session->reset();
      CHECK(digest_after(*session) == mapped_digest());
    }
  }

  TEST_CASE("sessions of several threads share a cache that is smaller than what they want together") {
    for (const ReadEngine engine : {ReadEngine::kAuto, ReadEngine::kThreads}) {
      const LoadedModel model = try_open(from_disk(kTokenSlots + kSlotBytes, engine), 2).value();
      std::string digests[3];
      std::vector<std::thread> threads;
      for (std::string& digest : digests) threads.emplace_back([&] { digest = digest_of(model); });
      for (std::thread& thread : threads) thread.join();
      for (const std::string& digest : digests) CHECK(digest == mapped_digest());
    }
  }
}

}  // namespace
}  // namespace dsv41::test
