#include "model/tensor_inventory.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "model/released_config.h"

namespace dsv41::test {
namespace {

using model::TensorSpec;

struct Total {
  int64_t n_tensors = 0;
  uint64_t bytes = 0;
  bool operator==(const Total&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Total& total) {
  return out << total.n_tensors << " tensors, " << total.bytes << " bytes";
}

bool starts(const std::string& name, std::string_view prefix) { return name.starts_with(prefix); }

// Number of the release's shard that holds a tensor (model.md 2.1).
int shard_of(const std::string& name) {
  if (starts(name, "vision.") || starts(name, "aligner.")) return 1;
  if (name == "embed.weight" || starts(name, "image_")) return 2;
  if (starts(name, "layers.1.engram.")) return 47;
  if (starts(name, "layers.14.engram.")) return 48;
  if (starts(name, "layers.")) return 3 + std::stoi(name.substr(7));
  if (starts(name, "mtp.")) return 44 + std::stoi(name.substr(4));
  return 43;
}

std::map<int, Total> totals_by_shard() {
  std::map<int, Total> totals;
  for (const TensorSpec& spec : expected_tensors(model::parse_config(kReleasedConfig).value())) {
    Total& total = totals[shard_of(spec.name)];
    ++total.n_tensors;
    total.bytes += spec.bytes();
  }
  return totals;
}

TEST_SUITE("model/tensor_inventory") {
  TEST_CASE("the released config asks for 96,085 tensors of 510,286,023,000 bytes") {
    Total total;
    std::set<std::string> names;
    for (const TensorSpec& spec : expected_tensors(model::parse_config(kReleasedConfig).value())) {
      ++total.n_tensors;
      total.bytes += spec.bytes();
      names.insert(spec.name);
    }
    CHECK(total == Total{96085, 510286023000});
    CHECK(names.size() == 96085);
  }

  TEST_CASE("counts and bytes per shard are those of the release") {
    std::map<int, Total> totals = totals_by_shard();
    CHECK(totals[1] == Total{263, 970506240});
    CHECK(totals[2] == Total{4, 1323857920});
    CHECK(totals[43] == Total{2, 1323837440});
    CHECK(totals[44] == Total{801, 2652643800});
    CHECK(totals[45] == Total{798, 2573913560});
    CHECK(totals[46] == Total{802, 2706317272});
    CHECK(totals[47].n_tensors == 6);
    CHECK(totals[48].n_tensors == 6);
    for (int layer = 0; layer < 40; ++layer) {
      CAPTURE(layer);
      Total want = {2334, 7389500888};
      if (layer == 24 || layer == 28 || layer == 32 || layer == 36) want = {2337, 7395076568};
      if (layer == 20) want = {2341, 7400451800};
      if (layer == 2 || layer == 8 || layer == 14) want = {2342, 7405694680};
      CHECK(totals[3 + layer] == want);
    }
  }

  TEST_CASE("groups have the totals of the release") {
    std::map<std::string, Total> groups;
    for (const TensorSpec& spec : expected_tensors(model::parse_config(kReleasedConfig).value())) {
      const std::string& name = spec.name;
      const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
      std::string group = "other";
      if (starts(name, "mtp.")) {
        group = has(".experts.") ? "draft experts" : "draft rest";
      } else if (has(".engram.")) {
        group = has(".embed.") ? "engram tables" : "engram projections";
      } else if (starts(name, "layers.")) {
        group = has(".experts.")          ? "experts"
                : has(".shared_experts.") ? "shared experts"
                : has(".gate.")           ? "gates"
                : has(".attn.")           ? "attention"
                : has(".hc_")             ? "mhc"
                                          : "norms";
      }
      ++groups[group].n_tensors;
      groups[group].bytes += spec.bytes();
    }
    CHECK(groups["experts"] == Total{92160, 288777830400});
    CHECK(groups["engram tables"] == Total{4, 202758032400});
    CHECK(groups["engram projections"] == Total{8, 315043840});
    CHECK(groups["attention"] == Total{563, 5151556608});
    CHECK(groups["shared experts"] == Total{240, 1416960000});
    CHECK(groups["gates"] == Total{120, 157409280});
    CHECK(groups["mhc"] == Total{240, 157295040});
    CHECK(groups["norms"] == Total{80, 819200});
    CHECK(groups["draft experts"] == Total{2304, 7219445760});
    CHECK(groups["draft rest"] == Total{97, 713428872});
  }

  TEST_CASE("single tensors have their published dtype and shape") {
    std::map<std::string, std::string> shapes;
    for (const TensorSpec& spec : expected_tensors(model::parse_config(kReleasedConfig).value())) {
      shapes[spec.name] = describe(spec.dtype, spec.shape);
    }
    const std::pair<const char*, const char*> rows[] = {
        {"layers.0.attn.wq_a.scale", "F8_E8M0 [40, 160]"},
        {"layers.39.attn.wo_a.weight", "F8_E4M3 [8192, 4096]"},
        {"layers.7.ffn.experts.383.w2.weight", "I8 [5120, 1152]"},
        {"layers.7.ffn.experts.0.w1.scale", "F8_E8M0 [2304, 160]"},
        {"layers.3.hc_attn_fn", "F32 [24, 20480]"},
        {"layers.36.attn.indexer.wq_b.scale", "F8_E8M0 [128, 40]"},
        {"layers.20.attn.indexer.wk.weight", "BF16 [128, 512]"},
        {"layers.14.engram.embed.scale", "F8_E8M0 [384016682, 8]"},
        {"layers.1.engram.wkv.weight", "F8_E4M3 [25600, 6144]"},
        {"mtp.0.main_proj.weight", "F8_E4M3 [5120, 15360]"},
        {"mtp.2.confidence_head.proj.weight", "BF16 [1, 5376]"},
        {"vision.patch_embed.proj.weight", "BF16 [1024, 588]"},
        {"aligner.w1.weight", "BF16 [5120, 9216]"},
    };
    for (const auto& [name, shape] : rows) {
      CAPTURE(name);
      CHECK(shapes[name] == shape);
    }
    CHECK(shapes.count("layers.2.attn.compressor.wgate.weight") == 1);
    CHECK(shapes.count("layers.20.attn.compressor.wgate.weight") == 0);
    CHECK(shapes.count("layers.24.attn.indexer.wk.weight") == 0);
  }

  TEST_CASE("a config without vision asks for no image tensors") {
    std::string text(kReleasedConfig);
    text = text.substr(0, text.find("\"vision_config\"")) + "\"vision_config\": null}";
    for (const TensorSpec& spec : expected_tensors(model::parse_config(text).value())) {
      if (shard_of(spec.name) == 1 || starts(spec.name, "image_")) FAIL(spec.name);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
