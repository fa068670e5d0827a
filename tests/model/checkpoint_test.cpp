#include "model/checkpoint.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/file.h"
#include "model/released_config.h"
#include "model/shard_writer.h"
#include "model/tensor_inventory.h"
#include "support/golden_file.h"
#include "support/linked_folder.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

namespace fs = std::filesystem;
using model::Checkpoint;
using model::StoredTensor;

std::string nano_folder() { return std::string(DSV41_SOURCE_DIR) + "/samples/nano"; }
std::string pico_folder() { return golden_path("pico/checkpoint"); }

struct CheckpointFolder : LinkedFolder {
  using LinkedFolder::LinkedFolder;
  void edit(const std::string& name, std::string_view from, std::string_view to) const {
    replace(name, with(read(name), from, to));
  }
  Status status() const { return Checkpoint::open(folder.path()).status(); }
};

constexpr char kConfig[] = "config.json";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kEmbedShard[] = "model-00001-of-00019.safetensors";  // holds embed.weight alone
constexpr char kLayer0Shard[] = "model-00002-of-00019.safetensors";

bool mentions(const Status& status, std::string_view text) {
  return status.message().find(text) != std::string_view::npos;
}

// The VmFlags line of the mapping that holds `address`.
std::string mapping_flags(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  for (bool inside = false; std::getline(smaps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= reinterpret_cast<uintptr_t>(address) && reinterpret_cast<uintptr_t>(address) < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

int n_mappings_and_files() {
  std::ifstream maps("/proc/self/maps");
  int n = 0;
  for (std::string line; std::getline(maps, line);) n += line.find(".safetensors") != std::string::npos;
  return n + static_cast<int>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

TEST_SUITE("model/checkpoint") {
  TEST_CASE("the small checkpoints open with every tensor of the inventory and the bytes of the files") {
    for (const std::string& folder : {nano_folder(), pico_folder()}) {
      CAPTURE(folder);
      Result<Checkpoint> opened = Checkpoint::open(folder);
      REQUIRE_MESSAGE(opened.ok(), opened.status().message());
      const Checkpoint checkpoint = std::move(opened).value();
      GoldenCheckpoint golden = GoldenCheckpoint::open(folder);
      const std::vector<model::TensorSpec> expected = expected_tensors(checkpoint.config());
      CHECK(checkpoint.tensors().size() == expected.size());
      uint64_t n_bytes = 0;
      for (const model::TensorSpec& spec : expected) {
        CAPTURE(spec.name);
        const StoredTensor* tensor = checkpoint.find(spec.name);
        REQUIRE(tensor != nullptr);
        n_bytes += tensor->bytes;
        const std::span<const std::byte> want = golden.tensor(spec.name).bytes;
        CHECK(std::equal(want.begin(), want.end(), tensor->data, tensor->data + tensor->bytes));
      }
      CHECK(checkpoint.payload_bytes() == n_bytes);
      CHECK(checkpoint.find("layers.0.attn.wq_c.weight") == nullptr);
      CHECK(checkpoint.config_json() == read_file(folder + "/config.json", 1 << 20).value());
    }
  }

  TEST_CASE("Engram tables are advised as randomly read, other tensors are not") {
    const Checkpoint checkpoint = Checkpoint::open(nano_folder() + "/").value();
    const StoredTensor* table = checkpoint.find("layers.1.engram.embed.weight");
    REQUIRE(table->bytes > 8192);
    const std::string flags = mapping_flags(table->data + table->bytes / 2);
    if (flags.empty()) return;  // no smaps on this system
    CHECK(flags.find(" rr ") != std::string::npos);
    CHECK(mapping_flags(checkpoint.find("embed.weight")->data).find(" rr ") == std::string::npos);
  }

  TEST_CASE("a folder that is absent or no checkpoint says what is missing and what belongs there") {
    TempFolder empty;
    for (const std::string& folder : {empty.path(), empty.file("absent"), std::string()}) {
      const Status status = Checkpoint::open(folder).status();
      CHECK(status.code() == Code::kNOT_FOUND);
      CHECK(mentions(status, "A checkpoint folder holds config.json"));
    }
    CHECK(mentions(Checkpoint::open(empty.path()).status(), empty.path() + "/config.json"));
    CHECK(Checkpoint::open(nano_folder() + "/config.json").status().code() == Code::kINVALID_ARG);

    CheckpointFolder linked(pico_folder());
    fs::remove(linked.folder.file(kIndex));
    CHECK(linked.status().code() == Code::kNOT_FOUND);
    CHECK(mentions(linked.status(), kIndex));
  }

  TEST_CASE("absent and truncated shards are reported together by name") {
    CheckpointFolder linked(pico_folder());
    fs::remove(linked.folder.file("model-00003-of-00019.safetensors"));
    fs::remove(linked.folder.file("model-00007-of-00019.safetensors"));
    const std::string shard = linked.read(kLayer0Shard);
    linked.replace(kLayer0Shard, std::string_view(shard).substr(0, shard.size() - 1));
    const Status status = linked.status();
    CHECK(status.code() == Code::kCHECKPOINT);
    CHECK(mentions(status, "3 problems"));
    CHECK(mentions(status, "model-00003-of-00019.safetensors: cannot open: No such file"));
    CHECK(mentions(status, "model-00007-of-00019.safetensors: cannot open"));
    CHECK(mentions(status, "model-00002-of-00019.safetensors: tensor \""));
    CHECK(mentions(status, "the file is truncated"));
  }

  TEST_CASE("an index that is damaged, points elsewhere or leaves the folder is refused") {
    struct Row {
      const char* from;
      const char* to;
      const char* named;
    };
    const Row rows[] = {
        {"\"weight_map\"", "\"weights\"", "weight_map"},
        {"\"embed.weight\": \"model-00001-of-00019.safetensors\"", "\"embed.weight\": 1", "embed.weight"},
        {"\"embed.weight\": \"model-00001-of", "\"embed.weight\": \"../model-00001-of", "embed.weight"},
        {"\"embed.weight\": \"model-00001-of", "\"embed.weight\": \"/etc/model-00001-of", "embed.weight"},
        {"\"embed.weight\": \"model-00001-of-00019.safetensors\"", "\"embed.weight\": \"config.json\"", "embed.weight"},
        {"\"embed.weight\": \"model-00001-of", "\"embed.weight\": \"model-00002-of", "lacks tensor \"embed.weight\""},
        {"\"embed.weight\": \"model-00001-of", "\"embed.wait\": \"model-00001-of", "lacks tensor \"embed.wait\""},
        {"\"layers.0.attn_norm.weight\": \"model-00002-of-00019.safetensors\",", "",
         "holds tensor \"layers.0.attn_norm.weight\", which the index does not place there"},
        {"\"weight_map\": {", "\"weight_map\": {\"embed.weight\": \"x.safetensors\",", "duplicate key"},
    };
    for (const Row& row : rows) {
      CAPTURE(row.to);
      CheckpointFolder linked(pico_folder());
      linked.edit(kIndex, row.from, row.to);
      CHECK(linked.status().code() == Code::kCHECKPOINT);
      CHECK(mentions(linked.status(), row.named));
    }
    CheckpointFolder linked(pico_folder());
    linked.replace(kIndex, "{\"weight_map\": {}}");
    CHECK(linked.status().code() == Code::kCHECKPOINT);
    CHECK(mentions(linked.status(), "tensor embed.weight is missing (BF16 [512, 128])"));
  }

  TEST_CASE("a name in two shards is refused") {
    CheckpointFolder linked(pico_folder());
    linked.replace("extra.safetensors", shard_bytes({{"embed.weight", "U8", {1}, "x"}, {"more", "U8", {1}, "x"}}));
    linked.edit(kIndex, "\"weight_map\": {", "\"weight_map\": {\"more\": \"extra.safetensors\",");
    CHECK(linked.status().code() == Code::kCHECKPOINT);
    CHECK(mentions(linked.status(),
                   "extra.safetensors holds tensor \"embed.weight\", which the index does not place there"));
  }

  TEST_CASE("missing, surplus, mistyped, misshapen and misaligned tensors are all listed") {
    const std::string rows(512 * 128 * 2, '\0');
    struct Row {
      std::vector<TensorToWrite> shard;
      const char* named;
    };
    const Row table[] = {
        {{{"embed.weight", "BF16", {512, 128}, rows}, {"layers.0.extra", "U8", {1}, "x"}},
         "tensor \"layers.0.extra\" is not part of this model"},
        {{{"embed.weight", "F16", {512, 128}, rows}},
         "tensor embed.weight is F16 [512, 128], the config asks for BF16 [512, 128]"},
        {{{"embed.weight", "BF16", {128, 512}, rows}},
         "tensor embed.weight is BF16 [128, 512], the config asks for BF16 [512, 128]"},
        {{{"pad", "U8", {1}, "x"}, {"embed.weight", "BF16", {512, 128}, rows}},
         "tensor embed.weight does not start at a multiple of 2 bytes"},
        {{{"embed.wait", "BF16", {512, 128}, rows}}, "tensor embed.weight is missing (BF16 [512, 128])"},
    };
    for (const Row& row : table) {
      CAPTURE(row.named);
      CheckpointFolder linked(pico_folder());
      linked.replace(kEmbedShard, shard_bytes(row.shard));
      std::string entries;
      for (const TensorToWrite& tensor : row.shard) {
        entries += (entries.empty() ? "\"" : ", \"") + tensor.name + "\": \"" + kEmbedShard + "\"";
      }
      linked.edit(kIndex, "\"embed.weight\": \"model-00001-of-00019.safetensors\"", entries);
      CHECK(linked.status().code() == Code::kCHECKPOINT);
      CHECK(mentions(linked.status(), row.named));
    }
  }

  TEST_CASE("a config of another size is answered with a bounded list and a count") {
    CheckpointFolder linked(pico_folder());
    linked.edit(kConfig, "\"n_routed_experts\": 8,\n    \"n_shared", "\"n_routed_experts\": 4096,\n    \"n_shared");
    const Status status = linked.status();
    CHECK(status.code() == Code::kCHECKPOINT);
    CHECK(mentions(status, "tensor layers.0.ffn.gate.weight is BF16 [8, 128], the config asks for BF16 [4096, 128]"));
    CHECK(mentions(status, "tensor layers.0.ffn.experts.8.w1.weight is missing (I8 [64, 64])"));
    // 12 layers: 3 tensors of the gate, and 6 for each of 4088 experts.
    CHECK(mentions(status, std::to_string(12 * (3 + 6 * 4088)) + " problems"));
    CHECK(mentions(status, "and " + std::to_string(12 * (3 + 6 * 4088) - 20) + " more"));
    CHECK(status.message().size() < 8000);
  }

  TEST_CASE("Engram rows that the primes contradict are refused") {
    CheckpointFolder linked(pico_folder());
    linked.edit(kConfig, "\"engram_vocab_size\": 128", "\"engram_vocab_size\": 129");
    CheckpointFolder other(pico_folder());
    other.edit(kConfig, "\"engram_vocab_size\": 128", "\"engram_vocab_size\": 140");
    CHECK(mentions(other.status(), "engram_num_embeddings[0]"));
    CHECK(linked.status().ok());  // the first prime is 131 either way
  }

  TEST_CASE("config failures name the file and keep their code") {
    CheckpointFolder linked(pico_folder());
    linked.edit(kConfig, "\"silu\"", "\"gelu\"");
    CHECK(linked.status().code() == Code::kCHECKPOINT_UNSUPPORTED);
    CHECK(mentions(linked.status(), "/config.json: text_config.hidden_act is \"gelu\""));
    linked.replace(kConfig, std::string(2 << 20, ' '));
    CHECK(linked.status().code() == Code::kCHECKPOINT);
  }

  TEST_CASE("the Engram map comes from its file, else is the identity where that is possible") {
    const std::vector<int32_t> nano = Checkpoint::open(nano_folder())->load_engram_vocab_map().value();
    CHECK(nano.size() == 4096);
    CHECK(*std::max_element(nano.begin(), nano.end()) == 3336);

    const std::vector<int32_t> pico = Checkpoint::open(pico_folder())->load_engram_vocab_map().value();
    REQUIRE(pico.size() == 512);
    for (int32_t i = 0; i < 512; ++i) CHECK(pico[static_cast<size_t>(i)] == i);

    CheckpointFolder linked(nano_folder());
    const std::string map = linked.read("engram_vocab_map.i32");
    std::string outside = map;
    outside[3] = 0x7f;
    for (const std::string& bad : {map.substr(0, map.size() - 1), map + "1234", std::string(), outside}) {
      linked.replace("engram_vocab_map.i32", bad);
      CHECK(Checkpoint::open(linked.folder.path())->load_engram_vocab_map().status().code() == Code::kCHECKPOINT);
    }
    fs::remove(linked.folder.file("engram_vocab_map.i32"));
    const Status status = Checkpoint::open(linked.folder.path())->load_engram_vocab_map().status();
    CHECK(status.code() == Code::kCHECKPOINT);
    CHECK(mentions(status, "engram_vocab_map.i32: does not exist"));
  }

  TEST_CASE("opening and closing again and again leaves no mapping and no file open") {
    const int before = n_mappings_and_files();
    for (int i = 0; i < 20; ++i) {
      CHECK(Checkpoint::open(nano_folder()).ok());
      CHECK_FALSE(Checkpoint::open(nano_folder() + "/absent").ok());
    }
    CHECK(n_mappings_and_files() == before);
  }
}

}  // namespace
}  // namespace dsv41::test
