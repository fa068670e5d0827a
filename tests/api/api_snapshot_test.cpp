// Snapshots through the public API on nano: what a save holds, what comes back, who may open it.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "api/memory_streams.h"
#include "api/nano_api.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

Bytes file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

dsv41_snapshot_options of_kind(uint32_t kind) {
  auto options = make<dsv41_snapshot_options>();
  options.kind = kind;
  return options;
}

// A runtime whose date stands still, so that saves can be compared byte for byte.
constexpr uint64_t kDate = 1790000000000000000u;
const Runtime& dated_runtime() {
  static const Runtime runtime = [] {
    auto options = make<dsv41_runtime_options>();
    options.n_threads = 2;
    options.wall_clock_fn = [](void* user) { return *static_cast<const uint64_t*>(user); };
    options.wall_clock_user = const_cast<uint64_t*>(&kDate);
    return Runtime(options);
  }();
  return runtime;
}
const Model& dated_model() {
  static const Model model(dated_runtime(), kNanoFolder);
  return model;
}

// A session of n tokens with logits.
struct Saved {
  explicit Saved(size_t n = 150) : tokens(filler_tokens(dated_model(), n)) { session.prefill(tokens); }
  Tokens tokens;
  Pool pool{dated_model()};
  Session session{pool};
};

std::vector<int32_t> greedy_tokens(Session& session, size_t n) {
  Sampler sampler(dated_model());
  std::vector<int32_t> out;
  for (size_t i = 0; i < n; ++i) {
    out.push_back(sampler.sample(session).token);
    session.decode(out.back());
  }
  return out;
}

TEST_SUITE("api/snapshot") {
  TEST_CASE("a full snapshot goes through file, buffer and stream and comes back bit for bit") {
    Saved saved;
    TempFolder folder;
    const std::string path = folder.file("chat.dsv41");
    const dsv41_snapshot_info info = saved.session.save(path);
    const Bytes buffer = saved.session.save();
    MemoryWriter writer;
    const dsv41_snapshot_info streamed = saved.session.save(writer.functions());
    CHECK(file_bytes(path) == buffer);
    CHECK(writer.bytes == buffer);
    CHECK(writer.calls.substr(writer.calls.size() - 2) == "sc");
    CHECK(info.total_bytes == buffer.size());
    CHECK(streamed.total_bytes == buffer.size());
    CHECK(saved.session.snapshot_size() >= buffer.size());
    CHECK(info.kind == DSV41_SNAPSHOT_FULL);
    CHECK(info.saved_unix_ns == kDate);

    const Digest digest = saved.session.digest();
    const std::vector<float> logits = saved.session.logits();
    const std::vector<int32_t> want = greedy_tokens(saved.session, 8);
    MemoryReader reader(buffer);
    const Snapshot opened[] = {Snapshot::open_file(dated_runtime(), path),
                               Snapshot::open_buffer(dated_runtime(), buffer),
                               Snapshot::open_io(dated_runtime(), reader.functions())};
    for (const Snapshot& snapshot : opened) {
      Pool pool(dated_model());
      auto back = make<dsv41_restore_info>();
      auto replay = make<dsv41_replay_info>();
      Session session = snapshot.restore(pool, make<dsv41_restore_options>(), &back, &replay);
      CHECK(back.position == 150);
      CHECK(back.parts_to_rebuild == 0);
      CHECK(back.parts_absent == DSV41_PART_SAMPLER);
      CHECK(back.same_numeric_class == 1);
      CHECK(back.bytes_read > buffer.size() / 2);
      CHECK(replay.encoder_tokens_replayed == 0);
      CHECK(replay.encoder_windows_intact == 1);
      CHECK(session.digest() == digest);
      CHECK(session.logits() == logits);
      CHECK(session.tokens() == saved.tokens);
      CHECK(greedy_tokens(session, 8) == want);
      pool.check();
    }
    CHECK_FALSE(reader.asked_beyond);
  }

  TEST_CASE("a prefix snapshot comes back as a session that was cut far: by replay, and says so") {
    Saved saved(300);
    const Bytes bytes = saved.session.save(of_kind(DSV41_SNAPSHOT_PREFIX));
    CHECK(bytes.size() < saved.session.save(of_kind(DSV41_SNAPSHOT_FULL)).size());
    Pool pool(dated_model());
    auto back = make<dsv41_restore_info>();
    auto replay = make<dsv41_replay_info>();
    Session session =
        Snapshot::open_buffer(dated_runtime(), bytes).restore(pool, make<dsv41_restore_options>(), &back, &replay);
    CHECK(session.tokens() == saved.tokens);
    CHECK((back.parts_restored & DSV41_PART_GLOBAL_KV) != 0);
    CHECK((back.parts_to_rebuild & DSV41_PART_ENCODER_WINDOWS) != 0);
    CHECK((back.parts_absent & DSV41_PART_LOGITS) != 0);
    CHECK((back.parts_restored & back.parts_to_rebuild) == 0);
    CHECK(replay.encoder_windows_intact == 0);
    CHECK(replay.encoder_tokens_replayed > 0);
    CHECK(session.info().has_logits == 0);
    CHECK(status_of([&] { Sampler(dated_model()).sample(session); }) == DSV41_STATE);
    const dsv41_run_result result = session.decode(saved.tokens[5]);
    CHECK(result.encoder_tokens_replayed == replay.encoder_tokens_replayed);
    CHECK(result.result_class == DSV41_RESULT_APPROXIMATE);
    CHECK(result.position == 301);

    // The same as a cut in memory whose windows are gone.
    auto no_windows = make<dsv41_pool_options>();
    no_windows.no_window_cache = 1;
    Pool other(dated_model(), no_windows);
    Session cut(other);
    Tokens more = saved.tokens;
    for (int i = 0; i < 200; ++i) more.push_back(saved.tokens[static_cast<size_t>(i)]);
    cut.prefill(more);
    cut.truncate(300);
    cut.decode(saved.tokens[5]);
    CHECK(session.logits() == cut.logits());
  }

  TEST_CASE("info and verify need no model") {
    Saved saved;
    auto options = of_kind(DSV41_SNAPSHOT_FULL);
    const uint8_t data[] = {1, 2, 3};
    const dsv41_host_section sections[] = {{77, 0, data, 3}, {5, 0, nullptr, 0}};
    options.host_sections = sections;
    options.n_host_sections = 2;
    Sampler sampler(dated_model());
    options.sampler = sampler.get();
    const Bytes bytes = saved.session.save(options);
    Runtime bare;
    const Snapshot snapshot = Snapshot::open_buffer(bare, bytes);
    const dsv41_snapshot_info info = snapshot.info();
    CHECK(info.kind == DSV41_SNAPSHOT_FULL);
    CHECK(info.parts == (DSV41_DIGEST_ALL | DSV41_PART_SAMPLER | DSV41_PART_HOST_DATA));
    CHECK(info.is_exact == 1);
    CHECK(info.format_major == build_info().snapshot_major);
    CHECK(info.format_minor == build_info().snapshot_minor);
    CHECK(info.n_tokens == 150);
    CHECK(info.total_bytes == bytes.size());
    CHECK(info.kv_stored_bytes <= info.kv_raw_bytes);
    CHECK(info.kv_stored_bytes + info.window_stored_bytes < info.total_bytes);
    CHECK(info.n_host_sections == 2);
    const dsv41_fingerprint print = dated_model().fingerprint();
    CHECK(std::equal(std::begin(info.model), std::end(info.model), std::begin(print.model)));
    CHECK(std::string(info.numeric_class) == dated_model().info().numeric_class);
    CHECK(std::string(info.writer_version) == dsv41_version_string());
    CHECK(snapshot.tokens() == saved.tokens);
    CHECK(snapshot.host_ids() == std::vector<uint32_t>{5, 77});
    CHECK(snapshot.host_section(77) == Bytes{1, 2, 3});
    CHECK(snapshot.host_section(5) == Bytes{});
    CHECK(status_of([&] { snapshot.host_section(6); }) == DSV41_NOT_FOUND);
    for (uint32_t level : {DSV41_VERIFY_TABLE, DSV41_VERIFY_CHUNKS, DSV41_VERIFY_DECODE}) {
      CAPTURE(level);
      const dsv41_verify_report report = snapshot.verify(level);
      CHECK(report.is_intact == 1);
      CHECK(report.n_bad_chunks == 0);
      CHECK((report.n_chunks > 0) == (level != DSV41_VERIFY_TABLE));
    }
  }

  TEST_CASE("damage in a chunk is counted and placed") {
    Saved saved;
    Bytes bytes = saved.session.save();
    bytes[bytes.size() / 2] ^= 4;
    const Snapshot snapshot = Snapshot::open_buffer(dated_runtime(), bytes);
    auto report = make<dsv41_verify_report>();
    auto error = make<dsv41_error>();
    CHECK(dsv41_snapshot_verify(snapshot.get(), DSV41_VERIFY_TABLE, &report, nullptr) == DSV41_OK);
    const dsv41_status status = dsv41_snapshot_verify(snapshot.get(), DSV41_VERIFY_CHUNKS, &report, &error);
    CHECK((status == DSV41_CHECKSUM || status == DSV41_CORRUPT));
    CHECK(report.is_intact == 0);
    CHECK(report.n_bad_chunks + report.n_bad_gaps == 1);
    CHECK(report.first_bad_offset <= bytes.size() / 2);
    CHECK(report.first_bad_offset > 0);
    CHECK(error.message[0] != '\0');
  }

  TEST_CASE("the sampler comes back with its history and draws on as it would have") {
    Saved saved;
    auto wanted = make<dsv41_sampler_options>();
    wanted.temperature = 1;
    wanted.top_k = 40;
    wanted.repetition_penalty = 1.3;
    wanted.seed = 99;
    Sampler sampler(dated_model(), wanted);
    for (int32_t token : greedy_tokens(saved.session, 4)) sampler.accept(token);
    auto options = make<dsv41_snapshot_options>();
    options.sampler = sampler.get();
    const Bytes bytes = saved.session.save(options);
    const Snapshot snapshot = Snapshot::open_buffer(dated_runtime(), bytes);
    Pool pool(dated_model());
    Session session = snapshot.restore(pool);
    Sampler again = snapshot.sampler(dated_model());
    for (int i = 0; i < 12; ++i) {
      const int32_t want = sampler.sample(saved.session).token;
      CHECK(again.sample(session).token == want);
      sampler.accept(want);
      again.accept(want);
      saved.session.decode(want);
      session.decode(want);
    }
    const Bytes without = saved.session.save();
    CHECK(status_of([&] { Snapshot::open_buffer(dated_runtime(), without).sampler(dated_model()); }) ==
          DSV41_SECTION_MISSING);
  }

  TEST_CASE("restoring into a session replaces what it holds, and a failure leaves it") {
    Saved saved;
    const Bytes bytes = saved.session.save();
    const Snapshot snapshot = Snapshot::open_buffer(dated_runtime(), bytes);
    Pool pool(dated_model());
    auto options = make<dsv41_session_options>();
    options.max_tokens = 200;
    options.decoder = DSV41_DECODER_FULL;
    Session session(pool, options);
    session.prefill({9, 8, 7});
    const Digest before = session.digest();

    auto strict = make<dsv41_restore_options>();
    const Tokens others = {1, 2, 3};
    auto expected = make<dsv41_input>();
    expected.tokens = others.data();
    expected.n_tokens = others.size();
    strict.expected_tokens = &expected;
    CHECK(status_of([&] { snapshot.restore_into(session, strict); }) == DSV41_TOKENS_MISMATCH);
    CHECK(session.digest() == before);
    expected.tokens = saved.tokens.data();
    expected.n_tokens = saved.tokens.size();
    CHECK(snapshot.restore_into(session, strict).position == 150);
    CHECK(session.digest() == saved.session.digest());
    CHECK(session.info().max_tokens == 200);
    CHECK(session.info().decoder == DSV41_DECODER_FULL);
    CHECK(status_of([&] {
            for (int i = 0; i < 60; ++i) session.decode(5);
          }) == DSV41_CONTEXT_FULL);

    auto small = make<dsv41_session_options>();
    small.max_tokens = 100;
    Session tiny(pool, small);
    CHECK(status_of([&] { snapshot.restore_into(tiny); }) == DSV41_CONTEXT_FULL);
    CHECK(tiny.info().position == 0);
    pool.check();
  }

  TEST_CASE("a session of another salt, class or model is told apart") {
    Saved saved;
    Pool pool(dated_model());
    auto salted = make<dsv41_session_options>();
    salted.salt = "tenant";
    salted.salt_size = 6;
    Session session(pool, salted);
    session.prefill(saved.tokens);
    const Bytes bytes = session.save();
    const Snapshot snapshot = Snapshot::open_buffer(dated_runtime(), bytes);
    CHECK(status_of([&] { snapshot.restore(pool); }) == DSV41_NAMESPACE_MISMATCH);
    auto options = make<dsv41_restore_options>();
    options.salt = "tenant";
    options.salt_size = 6;
    CHECK(snapshot.restore(pool, options).digest() == session.digest());

    Runtime runtime;
    Model ref(runtime, kNanoFolder, "ref");
    const dsv41_compat_report same = snapshot.compatible(dated_model()), other = snapshot.compatible(ref);
    CHECK(same.status == DSV41_OK);
    CHECK((same.same_model == 1 && same.same_layout == 1 && same.same_numeric_class == 1));
    CHECK(other.status == DSV41_OK);
    CHECK((other.same_model == 1 && other.same_layout == 1 && other.same_numeric_class == 0));
    Pool ref_pool(ref);
    auto info = make<dsv41_restore_info>();
    Session foreign = snapshot.restore(ref_pool, options, &info);
    CHECK(info.same_numeric_class == 0);
    CHECK(foreign.tokens() == saved.tokens);
    options.strict_numeric_class = 1;
    CHECK(status_of([&] { snapshot.restore(ref_pool, options); }) == DSV41_NUMERIC_MISMATCH);
  }

  TEST_CASE("parts can be demanded and left out") {
    Saved saved;
    const Bytes full = saved.session.save(), prefix = saved.session.save(of_kind(DSV41_SNAPSHOT_PREFIX));
    Pool pool(dated_model());
    auto options = make<dsv41_restore_options>();
    options.required_parts = DSV41_PART_ENCODER_WINDOWS | DSV41_PART_LOGITS;
    CHECK(Snapshot::open_buffer(dated_runtime(), full).restore(pool, options).info().has_logits == 1);
    CHECK(status_of([&] { Snapshot::open_buffer(dated_runtime(), prefix).restore(pool, options); }) ==
          DSV41_SECTION_MISSING);
    options.required_parts = 0;
    options.unwanted_parts = DSV41_PART_LOGITS;
    auto info = make<dsv41_restore_info>();
    Session session = Snapshot::open_buffer(dated_runtime(), full).restore(pool, options, &info);
    CHECK(session.info().has_logits == 0);
    CHECK(session.info().encoder_windows_intact == 1);
    CHECK(info.parts_absent == (DSV41_PART_LOGITS | DSV41_PART_SAMPLER));
    CHECK(status_of([&] {
            options.unwanted_parts = DSV41_PART_TOKENS;
            Snapshot::open_buffer(dated_runtime(), full).restore(pool, options);
          }) == DSV41_INVALID_ARG);

    auto lean = of_kind(DSV41_SNAPSHOT_FULL);
    lean.no_decoder_windows = 1;
    lean.no_logits = 1;
    const Bytes half = saved.session.save(lean);
    const dsv41_snapshot_info told = Snapshot::open_buffer(dated_runtime(), half).info();
    CHECK((told.parts & (DSV41_PART_DECODER_WINDOWS | DSV41_PART_LOGITS)) == 0);
    CHECK((told.parts & DSV41_PART_ENCODER_WINDOWS) != 0);
    CHECK(half.size() < full.size());
  }

  TEST_CASE("a rewrite drops parts and compresses anew, and the session stays the same") {
    Saved saved;
    auto options = make<dsv41_snapshot_options>();
    options.no_compression = 1;
    const Bytes raw = saved.session.save(options);
    const Snapshot snapshot = Snapshot::open_buffer(dated_runtime(), raw);
    CHECK(snapshot.info().kv_stored_bytes == snapshot.info().kv_raw_bytes);
    MemoryWriter smaller, lean;
    snapshot.rewrite(smaller.functions());
    snapshot.rewrite(lean.functions(), DSV41_PART_LOGITS | DSV41_PART_DECODER_WINDOWS);
    CHECK(smaller.bytes == saved.session.save());
    CHECK(lean.bytes.size() < smaller.bytes.size());
    Pool pool(dated_model());
    CHECK(Snapshot::open_buffer(dated_runtime(), smaller.bytes).restore(pool).digest() == saved.session.digest());
    CHECK(Snapshot::open_buffer(dated_runtime(), lean.bytes).restore(pool).info().has_logits == 0);
    CHECK(lean.calls.back() == 'c');
  }

  TEST_CASE("an empty session comes back empty") {
    Pool pool(dated_model());
    Session session(pool);
    const Bytes bytes = session.save();
    const Snapshot snapshot = Snapshot::open_buffer(dated_runtime(), bytes);
    CHECK(snapshot.info().n_tokens == 0);
    CHECK(snapshot.tokens().empty());
    Session other(pool);
    other.prefill({4, 5});
    snapshot.restore_into(other);
    CHECK(other.info().position == 0);
    other.prefill({6, 7});
    CHECK(other.info().position == 2);
  }

  TEST_CASE("a full save where window rows are missing asks for a replay; by default it is a prefix") {
    Saved saved(300);
    Pool pool(dated_model());
    const Bytes prefix = saved.session.save(of_kind(DSV41_SNAPSHOT_PREFIX));
    Session session = Snapshot::open_buffer(dated_runtime(), prefix).restore(pool);
    CHECK(status_of([&] { session.save(of_kind(DSV41_SNAPSHOT_FULL)); }) == DSV41_REPLAY_REQUIRED);
    CHECK(status_of([&] { session.snapshot_size(of_kind(DSV41_SNAPSHOT_FULL)); }) == DSV41_REPLAY_REQUIRED);
    CHECK(Snapshot::open_buffer(dated_runtime(), session.save()).info().kind == DSV41_SNAPSHOT_PREFIX);
    session.replay();
    CHECK(Snapshot::open_buffer(dated_runtime(), session.save()).info().kind == DSV41_SNAPSHOT_FULL);
  }

  TEST_CASE("whoever has a file open goes on reading it while another takes its name") {
    Saved saved;
    TempFolder folder;
    const std::string path = folder.file("chat.dsv41");
    saved.session.save(path);
    const Digest before = saved.session.digest();
    const Snapshot old = Snapshot::open_file(dated_runtime(), path);
    saved.session.decode(5);
    saved.session.save(path);
    Pool pool(dated_model());
    CHECK(old.restore(pool).digest() == before);
    CHECK(Snapshot::open_file(dated_runtime(), path).restore(pool).digest() == saved.session.digest());
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  }

  TEST_CASE("files that are none, or are gone, answer their codes") {
    TempFolder folder;
    const auto code_of = [&](const std::string& path) {
      return status_of([&] { Snapshot::open_file(dated_runtime(), path); });
    };
    CHECK(code_of(folder.file("nothing")) == DSV41_NOT_FOUND);
    CHECK(code_of(folder.write("text", std::string(5000, 'x'))) == DSV41_NOT_SNAPSHOT);
    CHECK(code_of(folder.write("empty", "")) != DSV41_OK);
    CHECK(code_of(folder.path()) < 0);
    Saved saved(20);
    CHECK(status_of([&] { saved.session.save(folder.path() + "/no/such/file"); }) == DSV41_NOT_FOUND);
    const Bytes bytes = saved.session.save();
    CHECK(status_of([&] { Snapshot::open_buffer(dated_runtime(), bytes.data(), bytes.size() - 1); }) < 0);
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
  }

  TEST_CASE("a buffer that is too small learns the size and stays as it was") {
    Saved saved;
    const Bytes want = saved.session.save();
    size_t n = 0;
    CHECK(dsv41_snapshot_save_buffer(saved.session.get(), nullptr, nullptr, 0, &n, nullptr) == DSV41_OK);
    CHECK(n == want.size());
    Bytes buffer(n - 1, 0x5a);
    n = 0;
    CHECK(dsv41_snapshot_save_buffer(saved.session.get(), nullptr, buffer.data(), buffer.size(), &n, nullptr) ==
          DSV41_BUFFER_TOO_SMALL);
    CHECK(n == want.size());
    CHECK(buffer == Bytes(want.size() - 1, 0x5a));
    buffer.resize(n);
    CHECK(dsv41_snapshot_save_buffer(saved.session.get(), nullptr, buffer.data(), buffer.size(), &n, nullptr) ==
          DSV41_OK);
    CHECK(buffer == want);
  }

  TEST_CASE("a session restored into a pool that is too small is refused, and the pool stays as it was") {
    Saved saved(300);
    const Bytes bytes = saved.session.save();
    auto options = make<dsv41_pool_options>();
    options.bytes = 2 * saved.pool.stats().page_bytes;
    Pool pool(dated_model(), options);
    const dsv41_pool_stats before = pool.stats();
    CHECK(status_of([&] { Snapshot::open_buffer(dated_runtime(), bytes).restore(pool); }) == DSV41_POOL_FULL);
    const dsv41_pool_stats after = pool.stats();
    CHECK(after.n_token_pages_free == before.n_token_pages_free);
    CHECK(after.n_window_slots_free == before.n_window_slots_free);
    pool.check();
  }

  TEST_CASE("pages that the pool has are shared, and metrics count") {
    Saved saved(300);
    Runtime runtime;
    Model model(runtime, kNanoFolder);
    const Bytes bytes = saved.session.save();
    Pool pool(model);
    const Snapshot snapshot = Snapshot::open_buffer(runtime, bytes);
    Session first = snapshot.restore(pool);
    auto info = make<dsv41_restore_info>();
    Session second = snapshot.restore(pool, make<dsv41_restore_options>(), &info);
    CHECK(info.n_pages_shared == 2);
    CHECK(second.digest() == first.digest());
    const Bytes again = second.save();
    const dsv41_metrics metrics = runtime.metrics();
    CHECK(metrics.snapshots_restored == 2);
    CHECK(metrics.snapshot_bytes_restored > bytes.size());
    CHECK(metrics.snapshots_saved == 1);
    CHECK(metrics.snapshot_bytes_saved == again.size());
  }

  TEST_CASE("a snapshot keeps its runtime, and a restored session its pool, whatever the order of release") {
    Saved saved;
    const Bytes bytes = saved.session.save();
    const Digest digest = saved.session.digest();
    std::optional<Session> session;
    {
      std::optional<Snapshot> snapshot;
      std::optional<Sampler> sampler;
      {
        Runtime runtime;
        snapshot.emplace(Snapshot::open_buffer(runtime, bytes));
      }
      CHECK(snapshot->info().n_tokens == 150);
      {
        Runtime runtime;
        Model model(runtime, kNanoFolder);
        Pool pool(model);
        session.emplace(snapshot->restore(pool));
      }
    }
    CHECK(session->digest() == digest);
    session->decode(5);
  }

  TEST_CASE("cancelled saves and restores answer CANCELLED and leave nothing") {
    Saved saved(300);
    const Bytes bytes = saved.session.save();
    Cancel cancel(dated_runtime());
    cancel.trigger();
    auto options = make<dsv41_snapshot_options>();
    options.cancel = cancel.get();
    TempFolder folder;
    CHECK(status_of([&] { saved.session.save(folder.file("x"), options); }) == DSV41_CANCELLED);
    CHECK(std::filesystem::is_empty(folder.path()));
    MemoryWriter writer;
    CHECK(status_of([&] { saved.session.save(writer.functions(), options); }) == DSV41_CANCELLED);
    CHECK(writer.calls.back() == 'a');
    Pool pool(dated_model());
    auto restore = make<dsv41_restore_options>();
    restore.cancel = cancel.get();
    CHECK(status_of([&] { Snapshot::open_buffer(dated_runtime(), bytes).restore(pool, restore); }) == DSV41_CANCELLED);
    CHECK(pool.stats().n_sessions == 0);
    pool.check();
  }
}

}  // namespace
}  // namespace dsv41::test
