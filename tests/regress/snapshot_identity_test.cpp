// What a file belongs to:
//
//   antirez/ds4#805                other weights under the same model id took the old cache
//   ai-dynamo/dynamo#14416         a changed layout of the records was read as the old one
//   Mesh-LLM#1226, joryirving/home-ops#9674
//                                  context size and slots were part of the identity: another setting lost everything
//   osaurus-ai/osaurus#1989        saving again under a name changed what readers of it held
#include <doctest/doctest.h>

#include "model/safetensors.h"
#include "regress/reuse_oracles.h"
#include "snapshot/snapshot_writer.h"
#include "support/linked_folder.h"
#include "support/model_runner.h"
#include "support/snapshot_files.h"

namespace dsv41::test {
namespace {

const Oracles& model() { return Oracles::of("pico"); }

std::unique_ptr<session::Session> session_with(const Tokens& tokens) {
  auto session = model().session(model().pool(pages_only()));
  synced(*session, tokens);
  return session;
}

// A shard of the folder whose last byte, which belongs to a weight, is another one.
void change_a_weight(const LinkedFolder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.folder.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string name = entry.path().filename().string();
    std::string bytes = folder.read(name);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    folder.replace(name, bytes);
    return;
  }
  FAIL("a checkpoint without weights");
}

std::shared_ptr<session::Pool> pool_of_folder(const std::string& folder) {
  session::ModelOptions options;
  options.folder = folder;
  options.backend = make_backend("cpu");
  return session::Pool::create(session::LoadedModel::open(options).value(), pages_only()).value();
}

// The file as a library with other records would have written it.
FileBytes with_layout(const FileBytes& bytes, const Sha256Digest& layout_id) {
  snapshot::SnapshotReader reader = snapshot::SnapshotReader::open(std::make_shared<BytesSource>(bytes)).value();
  VectorSink sink;
  snapshot::SnapshotWriter writer = snapshot::SnapshotWriter::begin(sink, layout_id).value();
  for (const snapshot::Section& section : reader.sections()) {
    snapshot::SectionOptions options;
    options.type = section.type;
    options.critical = section.critical;
    must_succeed(writer.add_section(options, reader.read_section(section, section.raw_bytes).value()));
  }
  must_succeed(writer.finish());
  return sink.bytes();
}

TEST_SUITE("regress/snapshot_identity") {
  TEST_CASE("ds4#805: a weight that changed is another model, whatever the folder is called") {
    const FileBytes bytes = must_save(*session_with(words(1, 200)), SnapshotKind::kFull);
    const LinkedFolder copy(checkpoint_folder("pico"));
    CHECK(restore(bytes, pool_of_folder(copy.folder.path())).ok());
    change_a_weight(copy);
    const auto changed = pool_of_folder(copy.folder.path());
    CHECK(restore(bytes, changed).status().code() == Code::kMODEL_MISMATCH);
    CHECK(changed->pages().stats().global_pages_free == changed->pages().stats().global_pages);
  }

  TEST_CASE("dynamo#14416: another layout is refused before a page is touched") {
    const FileBytes bytes = must_save(*session_with(words(1, 200)), SnapshotKind::kFull);
    Sha256Digest layout = must_open(bytes)->info().layout_id;
    CHECK(restore(with_layout(bytes, layout), model().pool(pages_only())).ok());
    layout.back() ^= 1;
    const auto pool = model().pool(pages_only());
    CHECK(restore(with_layout(bytes, layout), pool).status().code() == Code::kLAYOUT_MISMATCH);
    CHECK(pool->pages().stats().global_pages_free == pool->pages().stats().global_pages);
    CHECK(pool->pages().stats().pages_sealed == 0);
  }

  TEST_CASE("Mesh-LLM#1226, home-ops#9674: context limit, chunks, threads and pool are not identity") {
    const Tokens prompt = words(1, 300);
    const FileBytes bytes = must_save(*session_with(prompt), SnapshotKind::kFull);
    const Answer want = model().live({prompt}, 4);
    struct Setting {
      const char* name;
      int64_t max_tokens, chunk_tokens;
      int n_threads;
      uint64_t pool_tokens;
      uint32_t max_sessions;
    };
    const Setting settings[] = {
        {"as before", 4096, 0, 1, 8192, 4},        {"a small context", 310, 0, 1, 8192, 4},
        {"the model's context", 0, 0, 1, 8192, 4}, {"small chunks", 4096, 5, 1, 8192, 4},
        {"three threads", 4096, 0, 3, 8192, 4},    {"a small pool", 4096, 0, 1, 512, 1},
        {"many slots", 4096, 0, 1, 8192, 40},
    };
    for (const Setting& setting : settings) {
      CAPTURE(setting.name);
      const auto pool = make_pool(open_model("pico", make_backend("cpu", setting.n_threads)),
                                  pages_only(setting.pool_tokens, setting.max_sessions));
      RestoreOptions options = restore_options();
      options.session.max_tokens = setting.max_tokens;
      options.session.chunk_tokens = setting.chunk_tokens;
      options.strict_numeric_class = true;
      options.expected_tokens = prompt;
      CHECK(answer(*must_restore(bytes, pool, options), 4) == want);
    }
  }

  TEST_CASE("osaurus#1989: an open handle reads the content it was opened on, though the name has another") {
    const TempFolder folder;
    const std::string path = folder.file("chat");
    const auto save = [&](const session::Session& session) {
      const auto sink = create_file_sink(system_file_system(), path, Durability::kNone).value();
      must_succeed(session::save_snapshot(session, *sink, save_options(SnapshotKind::kFull), nullptr));
      must_succeed(sink->commit());
    };
    save(*session_with(words(1, 300)));
    const auto old = SessionSnapshot::open(open_file_source(system_file_system(), path).value()).value();
    save(*session_with(words(2, 200)));
    const auto now = SessionSnapshot::open(open_file_source(system_file_system(), path).value()).value();
    const auto pool = model().pool(pages_only());
    CHECK(answer(*old->restore(pool, restore_options(), nullptr).value(), 3) == model().live({words(1, 300)}, 3));
    CHECK(answer(*now->restore(pool, restore_options(), nullptr).value(), 3) == model().live({words(2, 200)}, 3));
  }
}

}  // namespace
}  // namespace dsv41::test
