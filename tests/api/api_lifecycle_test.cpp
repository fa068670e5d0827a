// Lifetimes, memory, silence and the callbacks of a runtime.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "api/nano_api.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

// The host's memory functions with a ledger.
struct Ledger {
  std::atomic<int64_t> n_blocks{0}, n_allocations{0};
  int64_t fail_after = INT64_MAX;  // allocations from this number on fail
  static void* alloc(void* user, size_t size) {
    auto& self = *static_cast<Ledger*>(user);
    if (self.n_allocations++ >= self.fail_after) return nullptr;
    ++self.n_blocks;
    return std::malloc(size);
  }
  static void free(void* user, void* memory) {
    --static_cast<Ledger*>(user)->n_blocks;
    std::free(memory);
  }
  dsv41_runtime_options options() {
    auto options = make<dsv41_runtime_options>();
    options.n_threads = 1;
    options.alloc_fn = &alloc;
    options.free_fn = &free;
    options.alloc_user = this;
    return options;
  }
};

// Sends file descriptors 1 and 2 into a file while it lives.
class CapturedOutput {
 public:
  CapturedOutput() : path_(DSV41_BINARY_DIR "/captured_output_" + std::to_string(getpid())) {
    std::fflush(nullptr);
    for (int fd : {1, 2}) saved_[fd - 1] = dup(fd);
    const int file = open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600);
    for (int fd : {1, 2}) dup2(file, fd);
    close(file);
  }
  ~CapturedOutput() { restore(); }
  std::string restore() {
    if (restored_) return "";
    restored_ = true;
    std::fflush(nullptr);
    for (int fd : {1, 2}) {
      dup2(saved_[fd - 1], fd);
      close(saved_[fd - 1]);
    }
    std::ifstream file(path_);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    unlink(path_.c_str());
    return text;
  }

 private:
  std::string path_;
  int saved_[2];
  bool restored_ = false;
};

// What a new session of the nano model says after three tokens.
std::vector<float> logits_with(const dsv41_runtime_options& options) {
  Runtime runtime(options);
  Model model(runtime, kNanoFolder);
  Pool pool(model);
  Session session(pool);
  session.prefill({5, 6, 7});
  return session.logits();
}

struct LogLine {
  uint32_t level;
  std::string text;
};
void keep_line(void* user, uint32_t level, const char* text, size_t size) {
  static_cast<std::vector<LogLine>*>(user)->push_back({level, std::string(text, size)});
}

TEST_SUITE("api/lifecycle") {
  TEST_CASE("handles may be released in any order and children keep their parents alive") {
    Ledger ledger;
    const int n_orders = 24;
    for (int order = 0; order < n_orders; ++order) {
      CAPTURE(order);
      auto runtime = std::make_unique<Runtime>(ledger.options());
      auto model = std::make_unique<Model>(*runtime, kNanoFolder);
      auto pool = std::make_unique<Pool>(*model);
      auto session = std::make_unique<Session>(*pool);
      auto sampler = std::make_unique<Sampler>(*model);
      // The permutation number `order` of the four parents and children.
      std::vector<int> left = {0, 1, 2, 3};
      for (int n = 4, code = order; n > 0; --n) {
        const int pick = code % n;
        code /= n;
        switch (left[static_cast<size_t>(pick)]) {
          case 0: runtime.reset(); break;
          case 1: model.reset(); break;
          case 2: pool.reset(); break;
          case 3: sampler.reset(); break;
        }
        left.erase(left.begin() + pick);
        session->prefill({5, 6, 7});
        session->reset();
      }
      CHECK(ledger.n_blocks > 0);
      session.reset();
      CHECK(ledger.n_blocks == 0);
    }
  }

  TEST_CASE("a stream and a parser outlive the handles they came from") {
    std::optional<TextStream> stream;
    std::optional<ChatParser> parser;
    int32_t token = 0;
    {
      Runtime runtime;
      Model model(runtime, kNanoFolder);
      token = model.tokenize("x")[0];
      stream.emplace(model);
      parser.emplace(model);
    }
    CHECK(stream->push(token) == "x");
    parser->push(token);
    CHECK(parser->next()->text == "x");
  }

  TEST_CASE("a second release of a handle that children keep alive does nothing") {
    dsv41_runtime* runtime = nullptr;
    REQUIRE(dsv41_runtime_create(nullptr, &runtime, nullptr) == DSV41_OK);
    auto options = make<dsv41_model_options>();
    options.folder = kNanoFolder.data();
    options.folder_size = kNanoFolder.size();
    dsv41_model* model = nullptr;
    REQUIRE(dsv41_model_open(runtime, &options, &model, nullptr) == DSV41_OK);
    dsv41_runtime_release(runtime);
    dsv41_runtime_release(runtime);
    auto metrics = make<dsv41_metrics>();
    CHECK(dsv41_metrics_get(runtime, &metrics, nullptr) == DSV41_INVALID_ARG);
    auto info = make<dsv41_model_info>();
    CHECK(dsv41_model_info_get(model, &info, nullptr) == DSV41_OK);
    dsv41_model_release(model);
  }

  TEST_CASE("a model tells its fingerprint, whichever backend holds it") {
    Runtime runtime;
    const dsv41_fingerprint cpu = Model(runtime, kNanoFolder).fingerprint();
    const dsv41_fingerprint ref = Model(runtime, kNanoFolder, "ref").fingerprint();
    // The digest that tests/model/fingerprint_test.cpp pins for samples/nano begins and ends with these bytes.
    CHECK(cpu.model[0] == 0x45);
    CHECK(cpu.model[31] == 0x91);
    CHECK(std::equal(std::begin(cpu.model), std::end(cpu.model), std::begin(ref.model)));
    CHECK(std::string(cpu.numeric_class).substr(0, 4) == "cpu/");
    CHECK(std::string(ref.numeric_class).substr(0, 4) == "ref/");
  }

  TEST_CASE("opening and closing twenty times keeps memory and descriptors flat") {
    const auto cycle = [] {
      Runtime runtime;
      Model model(runtime, kNanoFolder);
      Pool pool(model);
      Session session(pool);
      session.prefill(filler_tokens(model, 20));
    };
    for (int i = 0; i < 3; ++i) cycle();
    const uint64_t before = resident_bytes();
    const int first_free_fd = dup(0);
    close(first_free_fd);
    for (int i = 0; i < 20; ++i) cycle();
    const int free_fd = dup(0);
    close(free_fd);
    CHECK(free_fd == first_free_fd);
    if (!kSanitized) CHECK(static_cast<int64_t>(resident_bytes()) - static_cast<int64_t>(before) < (8 << 20));
  }

  TEST_CASE("sessions come and go without growing the pool") {
    Pool pool(nano_model());
    const dsv41_pool_stats before = pool.stats();
    for (int i = 0; i < 60; ++i) {
      Session session(pool);
      session.prefill({5, 6, 7});
    }
    const dsv41_pool_stats after = pool.stats();
    CHECK(after.n_token_pages_free == before.n_token_pages_free);
    CHECK(after.n_window_slots_free == before.n_window_slots_free);
    CHECK(after.n_sessions == 0);
    pool.check();
  }

  TEST_CASE("the library writes nothing to stdout and stderr, also when calls fail") {
    std::string reply;
    size_t n_saved = 0, n_found = 0;
    dsv41_status bad_open = 0, bad_snapshot = 0, bad_save = 0, bad_store = 0;
    TempFolder folder;
    CapturedOutput captured;
    {
      Runtime runtime;
      Model model(runtime, kNanoFolder);
      Pool pool(model);
      reply = greedy_reply(model, pool, chat_prompt(model, "What is 4 + 5?"));
      auto options = make<dsv41_model_options>();
      options.folder = "/no/such/folder";
      options.folder_size = 15;
      dsv41_model* none = nullptr;
      bad_open = dsv41_model_open(runtime.get(), &options, &none, nullptr);
      dsv41_pool_check(nullptr, nullptr);
      Session session(pool);
      session.prefill({5, 6, 7});
      Bytes bytes = session.save();
      n_saved = bytes.size();
      Snapshot::open_buffer(runtime, bytes).restore(pool);
      bytes.back() ^= 1;
      dsv41_snapshot* no_snapshot = nullptr;
      bad_snapshot = dsv41_snapshot_open_buffer(runtime.get(), bytes.data(), bytes.size(), &no_snapshot, nullptr);
      Store store(runtime, folder.path());
      store.put(session);
      store.flush();
      n_found = store.lookup(model, session.tokens())->info().n_tokens;
      auto locked = make<dsv41_store_options>();
      locked.folder = folder.path().data();
      locked.folder_size = folder.path().size();
      dsv41_store* no_store = nullptr;
      bad_store = dsv41_store_open(runtime.get(), &locked, &no_store, nullptr);
      bad_save = dsv41_snapshot_save_file(session.get(), "/no/such/folder/x", 17, nullptr, nullptr, nullptr);
    }
    const std::string written = captured.restore();
    CHECK(written == "");
    CHECK(reply != "");
    CHECK(bad_open == DSV41_NOT_FOUND);
    CHECK(n_saved > 0);
    CHECK(n_found == 3);
    CHECK(bad_snapshot < 0);
    CHECK(bad_store == DSV41_LOCKED);
    CHECK(bad_save == DSV41_NOT_FOUND);
  }

  TEST_CASE("log lines go to the runtime that they belong to, from its level on") {
    std::vector<LogLine> first, second;
    auto options = make<dsv41_runtime_options>();
    options.log_fn = &keep_line;
    options.log_user = &first;
    Runtime talkative(options);
    options.log_user = &second;
    options.log_min_level = DSV41_LOG_ERROR;
    Runtime terse(options);
    Model model(talkative, kNanoFolder);
    REQUIRE(first.size() == 1);
    CHECK(first[0].level == DSV41_LOG_INFO);
    CHECK(first[0].text.find("samples/nano") != std::string::npos);
    Model other(terse, kNanoFolder);
    CHECK(second.empty());
    CHECK_THROWS_AS(Model(terse, "/no/such/folder"), Error);
    REQUIRE(second.size() == 1);
    CHECK(second[0].level == DSV41_LOG_ERROR);
    CHECK(second[0].text.find("/no/such/folder") != std::string::npos);
    CHECK(first.size() == 1);
  }

  TEST_CASE("times come from the host's clock") {
    auto options = make<dsv41_runtime_options>();
    uint64_t now = 1000;
    options.clock_fn = [](void* user) { return *static_cast<uint64_t*>(user) += 500; };
    options.clock_user = &now;
    Runtime runtime(options);
    Model model(runtime, kNanoFolder);
    auto no_windows = make<dsv41_pool_options>();
    no_windows.no_window_cache = 1;  // it looks at the clock too
    Pool pool(model, no_windows);
    Session session(pool);
    const uint64_t before = now;
    const dsv41_run_result result = session.prefill({5, 6, 7});
    CHECK(result.time_ns == 500);
    CHECK(now == before + 1000);
  }

  TEST_CASE("dates in files come from the host's wall clock") {
    auto options = make<dsv41_runtime_options>();
    uint64_t now = 1234567890123456789u;
    options.wall_clock_fn = [](void* user) { return *static_cast<uint64_t*>(user); };
    options.wall_clock_user = &now;
    Runtime runtime(options);
    Model model(runtime, kNanoFolder);
    Pool pool(model);
    Session session(pool);
    session.prefill({5, 6, 7});
    const Bytes bytes = session.save();
    now += 7;
    CHECK(Snapshot::open_buffer(runtime, bytes).info().saved_unix_ns == 1234567890123456789u);
    CHECK(Snapshot::open_buffer(runtime, session.save()).info().saved_unix_ns == now);
  }

  TEST_CASE("when the host's memory ends, calls answer NO_MEMORY and the session goes on afterwards") {
    Ledger ledger;
    Runtime runtime(ledger.options());
    Model model(runtime, kNanoFolder);
    Pool pool(model);
    Session session(pool);
    const Tokens tokens = filler_tokens(model, 135);
    auto options = make<dsv41_run_options>();
    options.chunk_tokens = 100;  // two chunks, decoder on the tail
    auto input = make<dsv41_input>();
    input.tokens = tokens.data();
    input.n_tokens = tokens.size();
    int n_failures = 0;
    for (int64_t allowed = 0;; ++allowed) {
      REQUIRE(allowed < 1000);
      ledger.fail_after = ledger.n_allocations + allowed;
      const dsv41_status status = dsv41_prefill(session.get(), &input, &options, nullptr, nullptr);
      ledger.fail_after = INT64_MAX;
      if (status == DSV41_OK) break;
      ++n_failures;
      CHECK(status == DSV41_NO_MEMORY);
      CHECK(session.info().position == 0);
      pool.check();
    }
    CHECK(n_failures > 0);
    Pool untouched(nano_model());
    Session want(untouched);
    want.prefill(tokens, options);
    CHECK(session.logits() == want.logits());
  }

  TEST_CASE("a model that cannot get memory is not opened") {
    Ledger ledger;
    Runtime runtime(ledger.options());
    ledger.fail_after = 0;
    auto options = make<dsv41_model_options>();
    options.folder = kNanoFolder.data();
    options.folder_size = kNanoFolder.size();
    dsv41_model* model = nullptr;
    const dsv41_status status = dsv41_model_open(runtime.get(), &options, &model, nullptr);
    // A model whose weights all stay mapped needs none; its session does.
    if (status == DSV41_OK) {
      dsv41_pool* pool = nullptr;
      dsv41_session* session = nullptr;
      REQUIRE(dsv41_pool_create(model, nullptr, &pool, nullptr) == DSV41_OK);
      CHECK(dsv41_session_create(pool, nullptr, &session, nullptr) == DSV41_NO_MEMORY);
      dsv41_pool_release(pool);
      dsv41_model_release(model);
    } else {
      CHECK(status == DSV41_NO_MEMORY);
    }
    CHECK(ledger.n_blocks == 0);
  }

  TEST_CASE("opening reports progress and can be stopped by callback and by cancel token") {
    auto options = make<dsv41_model_options>();
    options.folder = kNanoFolder.data();
    options.folder_size = kNanoFolder.size();
    std::vector<uint64_t> done;
    options.progress_user = &done;
    options.progress_fn = [](void* user, const dsv41_progress* progress) {
      if (progress->phase != DSV41_PHASE_OPEN || progress->total != 1000) return int32_t{1};
      static_cast<std::vector<uint64_t>*>(user)->push_back(progress->done);
      return int32_t{0};
    };
    Model model(nano_runtime(), options);
    REQUIRE(!done.empty());
    CHECK(std::is_sorted(done.begin(), done.end()));
    CHECK(done.back() == 1000);
    options.progress_fn = [](void*, const dsv41_progress*) { return int32_t{42}; };
    dsv41_model* none = nullptr;
    auto error = make<dsv41_error>();
    CHECK(dsv41_model_open(nano_runtime().get(), &options, &none, &error) == DSV41_HOST_CALLBACK);
    CHECK(error.host_code == 42);
    options.progress_fn = nullptr;
    Cancel cancel(nano_runtime());
    cancel.trigger();
    options.cancel = cancel.get();
    CHECK(dsv41_model_open(nano_runtime().get(), &options, &none, nullptr) == DSV41_CANCELLED);
    CHECK(none == nullptr);
  }

  TEST_CASE("the first backend of the list that exists is taken") {
    Model model(nano_runtime(), kNanoFolder, "cuda,ref,cpu");
    CHECK(std::string(model.info().backend) == "ref");
    CHECK(std::string(nano_model().info().backend) == "cpu");
    CHECK(std::string(nano_model().info().numeric_class).find("cpu/") == 0);
  }

  TEST_CASE("workers bound to a list of processors give the same logits") {
    const std::vector<float> expected = logits_with(make<dsv41_runtime_options>());
    auto options = make<dsv41_runtime_options>();
    const std::string cpu = std::to_string(sched_getcpu());
    options.affinity = DSV41_AFFINITY_LIST;
    options.worker_cpus = cpu.data();
    options.worker_cpus_size = cpu.size();
    options.n_threads = 3;
    options.numa = DSV41_NUMA_INTERLEAVE;
    CHECK(logits_with(options) == expected);
  }

  TEST_CASE("a list of processors that cannot be had is refused with the reason") {
    struct Row {
      std::string_view cpus, message;
    };
    for (const Row& row :
         {Row{"0-", "\"0-\" is no number"}, Row{"9999", "9999 is above 8191"},
          Row{"8191", "processor 8191 is none of those"}, Row{std::string_view("0\0", 2), "worker_cpus: "}}) {
      CAPTURE(row.cpus);
      auto options = make<dsv41_runtime_options>();
      options.affinity = DSV41_AFFINITY_LIST;
      options.worker_cpus = row.cpus.data();
      options.worker_cpus_size = row.cpus.size();
      try {
        Runtime runtime(options);
        FAIL_CHECK("made");
      } catch (const Error& error) {
        CHECK(error.status() == DSV41_INVALID_ARG);
        CHECK(std::string_view(error.what()).find(row.message) != std::string_view::npos);
      }
    }
  }

  TEST_CASE("the layout of the weights is the host's choice, and shows in the model") {
    auto options = make<dsv41_model_options>();
    options.folder = kNanoFolder.data();
    options.folder_size = kNanoFolder.size();
    options.weight_layout = DSV41_WEIGHTS_MAPPED;
    CHECK(Model(nano_runtime(), options).info().packed_weight_bytes == 0);
    options.weight_layout = DSV41_WEIGHTS_PACKED;
    CHECK(Model(nano_runtime(), options).info().packed_weight_bytes > 10'000'000);
    options.backends = "ref";  // has one layout
    options.backends_size = 3;
    CHECK(Model(nano_runtime(), options).info().packed_weight_bytes == 0);
  }

  TEST_CASE("weights can be served from disk, which shows in the model and in the metrics") {
    Runtime runtime;
    auto options = make<dsv41_model_options>();
    options.folder = kNanoFolder.data();
    options.folder_size = kNanoFolder.size();
    options.expert_placement = options.engram_placement = DSV41_PLACE_DISK;
    options.expert_cache_bytes = 1'000'000;
    {
      Model model(runtime, options);
      CHECK(model.info().expert_cache_bytes > 900'000);
      CHECK(model.info().expert_cache_bytes <= 1'000'000);
      CHECK(model.info().engram_cache_bytes > 0);
      Pool pool(model);
      Session(pool).prefill({5, 6, 7});
      const dsv41_metrics open = runtime.metrics();
      CHECK(open.experts_missed >= 48);
      CHECK(open.expert_reads >= 6 * open.experts_missed);
      CHECK(open.expert_bytes_read > 20'000 * open.experts_missed);
      CHECK(open.engram_rows_asked == open.engram_rows_deduplicated + open.engram_rows_hit + open.engram_rows_missed);
      CHECK(open.engram_reads == 2 * open.engram_rows_missed);
    }
    CHECK(runtime.metrics().experts_missed >= 48);  // of models that are gone too
    options.expert_cache_bytes = 1;
    dsv41_model* none = nullptr;
    CHECK(dsv41_model_open(runtime.get(), &options, &none, nullptr) == DSV41_INVALID_ARG);
    options.expert_placement = options.engram_placement = DSV41_PLACE_RAM;
    options.weight_layout = DSV41_WEIGHTS_MAPPED;
    CHECK(Model(runtime, options).info().copied_weight_bytes > 5'000'000);
  }

  TEST_CASE("a forced CPU target shows in the model") {
    auto options = make<dsv41_runtime_options>();
    options.cpu_target = DSV41_CPU_TARGET_SCALAR;
    Runtime runtime(options);
    Model model(runtime, kNanoFolder);
    CHECK(std::string(model.info().numeric_class).find("cpu/scalar") == 0);
  }

  TEST_CASE("a CPU target can be forced where its capability says so, and is unsupported elsewhere") {
    const struct {
      uint32_t target, capability;
    } rows[] = {{DSV41_CPU_TARGET_AVX2, DSV41_CAP_CPU_AVX2},
                {DSV41_CPU_TARGET_AVX512, DSV41_CAP_CPU_AVX512},
                {DSV41_CPU_TARGET_AVX512_BF16, DSV41_CAP_CPU_AVX512_BF16},
                {DSV41_CPU_TARGET_AMX, DSV41_CAP_CPU_AMX},
                {DSV41_CPU_TARGET_NEON, DSV41_CAP_CPU_NEON}};
    for (const auto& row : rows) {
      CAPTURE(row.target);
      auto options = make<dsv41_runtime_options>();
      options.cpu_target = row.target;
      dsv41_runtime* runtime = nullptr;
      const dsv41_status status = dsv41_runtime_create(&options, &runtime, nullptr);
      CHECK(status == (dsv41_has_capability(row.capability) ? DSV41_OK : DSV41_UNSUPPORTED));
      dsv41_runtime_release(runtime);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
