// tests/tools/snapshot_reader.py, which was written from FORMAT.md alone, on files of real sessions: it accepts them with all
// its checks, and finds in each section the bytes that the library does.
#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "base/json.h"
#include "snapshot_oracles.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

struct Answer {
  int exit_code = -1;
  std::string text;
};

Answer run_tool(const std::string& arguments) {
  const std::string command = std::string(DSV41_PYTHON) + " " + DSV41_SNAPSHOT_READER + " " + arguments + " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Answer answer;
  std::array<char, 4096> buffer;
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) answer.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  answer.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return answer;
}

std::string geometry_options(const Pool& pool) {
  const kv::KvShape& shape = pool.pages().geometry().shape();
  std::string ratios;
  for (const kv::KvSource& source : shape.sources) ratios += (ratios.empty() ? "" : ",") + std::to_string(source.ratio);
  const int64_t n_encoder_layers = pool.shape().n_encoder_layers;
  return " --head-dim " + std::to_string(shape.head_dim) + " --index-head-dim " + std::to_string(shape.index_head_dim) +
         " --ratios " + ratios + " --layers " + std::to_string(n_encoder_layers) + "," +
         std::to_string(shape.n_window_layers - n_encoder_layers) + " --vocab " +
         std::to_string(pool.loaded_model()->vocab_size());
}

// What `file` must look like to the tool: its sections and their hashes.
void check_dump(const Json& dump, const FileBytes& bytes) {
  snapshot::SnapshotReader reader = snapshot::SnapshotReader::open(std::make_shared<BytesSource>(bytes)).value();
  const Json* const sections = dump.find("sections");
  REQUIRE(sections != nullptr);
  REQUIRE(sections->items().size() == reader.sections().size());
  for (size_t i = 0; i < reader.sections().size(); ++i) {
    const snapshot::Section& section = reader.sections()[i];
    const Json& said = sections->items()[i];
    CAPTURE(static_cast<uint32_t>(section.type));
    CHECK(said.find("type")->dump() == std::to_string(static_cast<uint32_t>(section.type)));
    CHECK(said.find("raw")->dump() == std::to_string(section.raw_bytes));
    const FileBytes raw = reader.read_section(section, section.raw_bytes).value();
    CHECK(said.find("sha256")->as_string() == sha256_hex(sha256(raw)));
  }
}

TEST_SUITE("session/snapshot_reader_tool") {
  TEST_CASE("a reader written from the format alone finds in files of sessions what was saved") {
    const Answer help = run_tool("--help");
    if (help.exit_code != 0) {
      MESSAGE("SKIPPED: " << DSV41_PYTHON << " with python3-xxhash and python3-zstandard is needed: " << help.text);
      return;
    }
    const TempFolder folder;
    const std::shared_ptr<const session::LoadedModel> nano = open_model("nano", make_backend("cpu"));
    for (const auto& model : {pico(), nano}) {
      const auto pool = make_pool(model, pool_options(false, false));
      for (int64_t n : {0, 1, 255, 256, 301}) {
        CAPTURE(model->vocab_size());
        CAPTURE(n);
        const auto saved = new_session(pool, {}, n == 256 ? "tenant" : "");
        if (n > 0) must_append(*saved, random_prompt(static_cast<size_t>(n), 1));
        if (n == 301) {  // approximate
          lose_windows(*saved);
          must_append(*saved, random_prompt(5, 2));
        }
        Sampler sampler = Sampler::create({}, model->vocab_size()).value();
        const FileBytes data(100, std::byte{3});
        const session::HostSection host[] = {{9, data}, {4, {}}};
        for (SnapshotKind kind : {SnapshotKind::kPrefix, SnapshotKind::kFull, SnapshotKind::kState}) {
          CAPTURE(static_cast<uint32_t>(kind));
          const bool state = kind == SnapshotKind::kState;
          SnapshotOptions options = save_options(state ? SnapshotKind::kFull : kind);
          options.host = host;
          options.sampler = &sampler;
          VectorSink sink;
          must_succeed(state ? session::save_state(*saved, sink, options, nullptr)
                             : session::save_snapshot(*saved, sink, options, nullptr));
          const FileBytes& bytes = sink.bytes();
          folder.write("file", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
          const std::string salt = n == 256 ? " --salt 74656e616e74" : "";
          const Answer answer = run_tool("dump" + geometry_options(*pool) + salt + " " + folder.file("file"));
          REQUIRE_MESSAGE(answer.exit_code == 0, answer.text);
          const Result<Json> dump = Json::parse(answer.text);
          REQUIRE(dump.ok());
          CHECK(dump.value().find("tokens")->dump() == std::to_string(saved->position()));
          check_dump(dump.value(), bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
