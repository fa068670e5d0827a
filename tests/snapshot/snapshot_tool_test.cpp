// tests/tools/snapshot_reader.py against the writer: a reader that was written from FORMAT.md alone must find in a file
// what went in, and nothing in a damaged one.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>

#include "base/json.h"
#include "base/wire.h"
#include "snapshot/snapshot_bytes.h"
#include "snapshot/snapshot_hostile.h"
#include "snapshot/snapshot_samples.h"
#include "snapshot/snapshot_surgery.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using snapshot::SectionType;

const std::string kGeometry = " --head-dim 32 --index-head-dim 32 --ratios 2,1 --layers 2,1 --vocab 50";

struct Answer {
  int exit_code = -1;
  std::string text;
};

Answer run(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  Answer answer;
  std::array<char, 4096> buffer;
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) answer.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  answer.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return answer;
}

// False where Python or its packages are missing; the test then names itself as skipped.
bool tool_runs(const char* test_case) {
  static const Answer kAnswer = run(std::string(DSV41_PYTHON) + " " + DSV41_SNAPSHOT_READER + " --help");
  if (kAnswer.exit_code == 0) return true;
  MESSAGE("SKIPPED: " << test_case << ": " << DSV41_PYTHON
                      << " with python3-xxhash and python3-zstandard is needed: " << kAnswer.text);
  return false;
}

Answer tool(const std::string& arguments) {
  return run(std::string(DSV41_PYTHON) + " " + DSV41_SNAPSHOT_READER + " " + arguments);
}

void write(const TempFolder& folder, const std::string& name, std::span<const std::byte> file) {
  folder.write(name, {reinterpret_cast<const char*>(file.data()), file.size()});
}

// What verify says of each file: "ok" or a complaint. The files are given by name and must lie in the folder.
std::map<std::string, std::string> verify_all(const TempFolder& folder, const std::vector<std::string>& names,
                                              const std::string& options) {
  std::string list;
  for (const std::string& name : names) list += folder.file(name) + "\n";
  folder.write("list", list);
  const std::string command = std::string(DSV41_PYTHON) + " " + DSV41_SNAPSHOT_READER + " verify" + options;
  const Answer answer = run("xargs -a " + folder.file("list") + " " + command);
  std::map<std::string, std::string> said;
  for (size_t begin = 0; begin < answer.text.size();) {
    const size_t end = answer.text.find('\n', begin), colon = answer.text.find(": ", begin);
    const std::string path = answer.text.substr(begin, colon - begin);
    said[path.substr(path.rfind('/') + 1)] = answer.text.substr(colon + 2, end - colon - 2);
    begin = end + 1;
  }
  INFO(answer.text);
  REQUIRE(said.size() == names.size());
  return said;
}

std::string hex_of(const std::string& text) {
  std::string hex;
  for (const unsigned char c : text) hex += "0123456789abcdef"[c >> 4], hex += "0123456789abcdef"[c & 15];
  return hex;
}

std::string text_of(const Json& object, const char* key) {
  const Json* value = object.find(key);
  REQUIRE(value != nullptr);
  return value->is_string() ? value->as_string() : value->dump();
}

using Sections = std::vector<SectionContent>;
using Change = std::function<void(Sections&)>;

Change erase(SectionType type) {
  return [=](Sections& sections) {
    std::erase_if(sections, [=](const SectionContent& section) { return section.options.type == type; });
  };
}

Change add(SectionType type, bool critical, uint32_t id) {
  return [=](Sections& sections) { sections.push_back({section_options(type, 64, false, critical, id), Bytes(64)}); };
}

Change resize(SectionType type, int by) {
  return [=](Sections& sections) {
    Bytes& raw = section_of(sections, type).raw;
    raw.resize(raw.size() + static_cast<size_t>(by));
  };
}

template <class T>
Change set(SectionType type, uint64_t offset, T value) {
  return [=](Sections& sections) { set_field(section_of(sections, type).raw, offset, value); };
}

Change both(Change a, Change b) {
  return [=](Sections& sections) {
    a(sections);
    b(sections);
  };
}

// What is done to the sections of a sample, and a part of what the tool says of the file.
struct Contradiction {
  std::string sample;
  std::string complaint;
  Change change;
};

std::vector<Contradiction> contradictions() {
  const std::string prefix = "prefix-700-media", full = "full-255-decoder", state = "state-300-media";
  return {
      {prefix, "missing: identity", erase(SectionType::kIdentity)},
      {prefix, "missing: tokens", erase(SectionType::kTokens)},
      {prefix, "missing: token chain", erase(SectionType::kTokenChain)},
      {prefix, "missing: provenance", erase(SectionType::kProvenance)},
      {prefix, "the token chain of page", erase(SectionType::kMedia)},
      {full, "sections of windows do not fit", erase(SectionType::kOpenRows)},
      {full, "sections of the decoder windows", erase(SectionType::kDecoderCodes)},
      {"full-3", "sections of the decoder windows", add(SectionType::kDecoderCodes, false, 0)},
      {prefix, "decoder windows without their head", add(SectionType::kDecoderCodes, false, 0)},
      {state, "a state has neither", add(SectionType::kTokens, true, 0)},
      {state, "windows and open rows come together", erase(SectionType::kWindows)},
      {prefix, "critical section of the unknown type 99", add(static_cast<SectionType>(99), true, 0)},
      {prefix, "ok", add(static_cast<SectionType>(99), false, 0)},
      {prefix, "critical flag of logits", add(SectionType::kLogits, true, 0)},
      {prefix, "id of logits", add(SectionType::kLogits, false, 1)},
      {prefix, "kind 4", set(SectionType::kIdentity, 0, uint32_t{4})},
      {prefix, "sections of windows do not fit", set(SectionType::kIdentity, 0, uint32_t{2})},
      {prefix, "pages of 64 tokens", set(SectionType::kIdentity, 4, uint32_t{64})},
      {prefix, "size of the tokens", set(SectionType::kIdentity, 8, uint64_t{701})},
      {prefix, "the token chain of page 0", set(SectionType::kIdentity, 16, uint8_t{1})},
      {prefix, "chain of the identity", set(SectionType::kIdentity, 80, uint8_t{1})},
      {prefix, "identity is too short", resize(SectionType::kIdentity, -1)},
      {prefix, "identity is too long", resize(SectionType::kIdentity, 1)},
      {prefix, "identity is too short", set(SectionType::kIdentity, 120, uint32_t{1000})},
      {prefix, "not UTF-8", set(SectionType::kIdentity, 124, uint8_t{0xff})},
      {prefix, "the token chain of page 0", set(SectionType::kTokens, 0, int32_t{77})},
      {prefix, "the token chain of page 0", set(SectionType::kTokens, 4 * 127, int32_t{-1})},
      {prefix, "the token chain of page 5", set(SectionType::kTokens, 4 * 699, int32_t{77})},
      {prefix, "size of the tokens", resize(SectionType::kTokens, 4)},
      {prefix, "size of the token chain", resize(SectionType::kTokenChain, 32)},
      {prefix, "the token chain of page 2", set(SectionType::kTokenChain, 64, uint8_t{1})},
      {prefix, "the token chain of page 0", set(SectionType::kMedia, 16, uint8_t{1})},
      {prefix, "the token chain of page 0", set(SectionType::kMedia, 0, uint64_t{31})},
      {prefix, "media overlap", set(SectionType::kMedia, 8, uint64_t{0})},
      {prefix, "media overlap", set(SectionType::kMedia, 8, uint64_t{101})},
      {prefix, "media overlap", set(SectionType::kMedia, 6 * 48 + 8, uint64_t{71})},
      {prefix, "size of media", resize(SectionType::kMedia, 1)},
      {prefix, "do not fit their scales", resize(SectionType::kMainCodes, 16)},
      {prefix, "do not fit their scales", resize(SectionType::kIndexScales, 1)},
      {prefix, "size of index codes",
       both(resize(SectionType::kIndexCodes, -16), resize(SectionType::kIndexScales, -1))},
      {prefix, "size of main codes", both(resize(SectionType::kMainCodes, 16), resize(SectionType::kMainScales, 2))},
      {prefix, "begin of the provenance",
       both(resize(SectionType::kProvenance, -40), set(SectionType::kProvenance, 0, uint32_t{0}))},
      {prefix, "begin of the provenance", set(SectionType::kProvenance, 4, uint64_t{1})},
      {prefix, "provenance is too short", set(SectionType::kProvenance, 0, uint32_t{3})},
      {prefix, "provenance is too long", resize(SectionType::kProvenance, 8)},
      {prefix, "do not ascend", set(SectionType::kProvenance, 16, uint64_t{0})},
      {prefix, "provenance goes beyond", set(SectionType::kProvenance, 16, uint64_t{700})},
      {prefix, "provenance is too short", set(SectionType::kProvenance, 24, UINT32_MAX)},
      {full, "windows do not end", set(SectionType::kWindows, 0, uint64_t{254})},
      {full, "flags of windows", set(SectionType::kWindows, 8, uint32_t{3})},
      {full, "sections of the encoder windows",
       both(set(SectionType::kWindows, 8, uint32_t{0}),
            both(set(SectionType::kWindows, 16, uint64_t{0}), set(SectionType::kWindows, 24, uint64_t{0})))},
      {full, "rows of the decoder windows", set(SectionType::kWindows, 12, uint32_t{0})},
      {full, "rows of the encoder windows", set(SectionType::kWindows, 16, uint64_t{200})},
      {full, "rows of the encoder windows", set(SectionType::kWindows, 24, uint64_t{256})},
      {full, "size of the encoder windows", set(SectionType::kWindows, 24, uint64_t{123})},
      {full, "first open row", set(SectionType::kWindows, 48, uint64_t{241})},
      {full, "first open row", set(SectionType::kWindows, 48, uint64_t{256})},
      {full, "windows is too short", resize(SectionType::kWindows, -1)},
      {full, "codes and scales of the encoder", resize(SectionType::kEncoderCodes, 32)},
      {full, "codes and scales of the decoder", resize(SectionType::kDecoderScales, -1)},
      {full, "size of the open rows", resize(SectionType::kOpenRows, 2048)},
      {full, "size of the logits", resize(SectionType::kLogits, 4)},
      {full, "sampler version 2", set(SectionType::kSampler, 0, uint32_t{2})},
      {full, "sampler is too short", set(SectionType::kSampler, 4, uint64_t{41})},
      {full, "sampler is too long", set(SectionType::kSampler, 4, uint64_t{39})},
  };
}

TEST_SUITE("snapshot/tool") {
  TEST_CASE("the second reader finds in each sample what the writer put in") {
    if (!tool_runs("the second reader finds in each sample what the writer put in")) return;
    const TempFolder folder;
    for (const Sample& sample : samples()) {
      CAPTURE(sample.name);
      const std::vector<SectionContent> sections = sections_of(sample);
      write(folder, sample.name, write_file(sections));
      const std::string salt = sample.salt.empty() ? "" : " --salt " + hex_of(sample.salt);
      const Answer answer = tool("dump" + kGeometry + salt + " " + folder.file(sample.name));
      CAPTURE(answer.text);
      REQUIRE(answer.exit_code == 0);
      const Json dump = Json::parse(answer.text).value();
      CHECK(text_of(dump, "version") == "1.0");
      CHECK(text_of(dump, "layout_id") == sha256_hex(test_layout_id()));
      CHECK(text_of(dump, "tokens") == std::to_string(sample.n_tokens));
      CHECK(text_of(dump, "chain_from_root") == (sample.kind == SampleKind::kState ? "false" : "true"));
      const Json& identity = *dump.find("identity");
      CHECK(text_of(identity, "kind") == std::to_string(static_cast<int>(sample.kind)));
      CHECK(text_of(identity, "fingerprint") == sha256_hex(sha256("a model")));
      CHECK(text_of(identity, "salt") == sha256_hex(sha256(sample.salt)));
      CHECK(text_of(identity, "numeric_class") == "cpu/avx512/1");
      CHECK(text_of(identity, "saved_unix_ns") == "1800000000123456789");
      const std::vector<Json>& found = dump.find("sections")->items();
      REQUIRE(found.size() == sections.size());
      for (size_t i = 0; i < sections.size(); ++i) {
        CAPTURE(i);
        CHECK(text_of(found[i], "type") == std::to_string(static_cast<uint32_t>(sections[i].options.type)));
        CHECK(text_of(found[i], "id") == std::to_string(sections[i].options.id));
        CHECK(text_of(found[i], "raw") == std::to_string(sections[i].raw.size()));
        CHECK(text_of(found[i], "sha256") == sha256_hex(sha256(sections[i].raw)));
      }
    }
    const Answer info = tool("info " + folder.file("full-255-decoder"));
    CHECK(info.exit_code == 0);
    CHECK(info.text.find("full, 255 tokens") != std::string::npos);
    CHECK(info.text.find("decoder window codes") != std::string::npos);
  }

  TEST_CASE("the second reader refuses flipped bits and cut files") {
    if (!tool_runs("the second reader refuses flipped bits and cut files")) return;
    const TempFolder folder;
    const Bytes whole = write_file(small_sections());
    std::vector<std::string> names;
    const auto add = [&](const std::string& name, std::span<const std::byte> file) {
      write(folder, name, file);
      names.push_back(name);
    };
    const uint64_t table = section_entry(whole, 0);
    // Head, table and tail byte by byte, the rest here and there; another bit each time.
    for (size_t i = 0; i < whole.size(); i += i < 64 || i >= table ? 1 : 23) {
      Bytes file = whole;
      file[i] ^= std::byte{1} << i % 8;
      add("flip-" + std::to_string(i), file);
    }
    for (size_t n = 0; n < whole.size(); n += 61) add("cut-" + std::to_string(n), std::span(whole).first(n));
    add("whole", whole);
    for (const auto& [name, said] : verify_all(folder, names, " --container")) {
      CAPTURE(name);
      CHECK((said == "ok") == (name == "whole"));
    }
  }

  TEST_CASE("both readers refuse the same hostile files") {
    if (!tool_runs("both readers refuse the same hostile files")) return;
    const TempFolder folder;
    std::vector<HostileFile> files = hostile_tables();
    for (HostileFile& file : hostile_frames()) files.push_back(std::move(file));
    std::vector<std::string> names;
    for (size_t i = 0; i < files.size(); ++i) {
      names.push_back(std::to_string(i));
      write(folder, names.back(), files[i].file);
    }
    const std::map<std::string, std::string> said = verify_all(folder, names, " --container");
    for (size_t i = 0; i < files.size(); ++i) {
      CAPTURE(files[i].name);
      CHECK(said.at(names[i]) != "ok");
      std::vector<Bytes> raw;
      CHECK(!read_file(files[i].file, &raw).ok());
    }
  }

  TEST_CASE("the second reader refuses sections that contradict each other") {
    if (!tool_runs("the second reader refuses sections that contradict each other")) return;
    const TempFolder folder;
    std::vector<std::string> names;
    const std::vector<Contradiction> rows = contradictions();
    for (const Contradiction& row : rows) {
      Sections sections = sections_of(row.sample);
      row.change(sections);
      names.push_back(std::to_string(names.size()));
      write(folder, names.back(), write_file(sections));
    }
    const std::map<std::string, std::string> said = verify_all(folder, names, kGeometry);
    for (size_t i = 0; i < names.size(); ++i) {
      CAPTURE(rows[i].sample);
      CAPTURE(rows[i].complaint);
      const std::string& complaint = said.at(names[i]);
      CAPTURE(complaint);
      CHECK(complaint.find(rows[i].complaint) != std::string::npos);
    }
  }

  TEST_CASE("without the salt the second reader checks the links between pages, with a wrong one it refuses") {
    if (!tool_runs("without the salt the second reader checks the links between pages")) return;
    const TempFolder folder;
    Sample sample;
    sample.n_tokens = 300;
    sample.salt = "tenant";
    std::vector<SectionContent> sections = sections_of(sample);
    write(folder, "whole", write_file(sections));
    set_field(section_of(sections, SectionType::kTokens).raw, 4 * 299, int32_t{1});
    write(folder, "last-token", write_file(sections));
    CHECK(tool("verify " + folder.file("whole")).exit_code == 0);
    CHECK(tool("verify --salt " + hex_of("tenant") + " " + folder.file("whole")).exit_code == 0);
    const Answer other = tool("verify --salt " + hex_of("tenants") + " " + folder.file("whole"));
    CHECK(other.exit_code == 1);
    CHECK(other.text.find("another salt") != std::string::npos);
    const Answer changed = tool("verify " + folder.file("last-token"));
    CHECK(changed.exit_code == 1);
    CHECK(changed.text.find("the token chain of page 2") != std::string::npos);
  }
}

}  // namespace
}  // namespace dsv41::test
