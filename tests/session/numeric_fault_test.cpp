// A damaged model: NaN in the weights must come out as an error, never as a token.
#include <doctest/doctest.h>

#include <cstring>

#include "base/json.h"
#include "session/generate.h"
#include "support/linked_folder.h"
#include "support/model_runner.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

// A copy of nano in which the BF16 tensor `name` begins with a NaN.
std::unique_ptr<LinkedFolder> poisoned_nano(const std::string& name) {
  auto folder = std::make_unique<LinkedFolder>(checkpoint_folder("nano"));
  const Json index = Json::parse(folder->read("model.safetensors.index.json")).value();
  const std::string file = index.find("weight_map")->find(name)->as_string();
  std::string shard = folder->read(file);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, shard.data(), 8);
  const Json header = Json::parse(std::string_view(shard).substr(8, header_bytes)).value();
  int64_t offset = 0;
  REQUIRE(header.find(name)->find("data_offsets")->items()[0].to_int64(&offset));
  const uint16_t nan = 0x7fc0;
  std::memcpy(shard.data() + 8 + header_bytes + static_cast<uint64_t>(offset), &nan, sizeof nan);
  folder->replace(file, shard);
  return folder;
}

TEST_SUITE("session/numeric_fault") {
  TEST_CASE("NaN weights end in NUMERIC and the session stays as it was") {
    for (const char* backend : {"cpu", "ref"}) {
      for (const char* tensor : {"norm.weight", "layers.3.attn.kv_norm.weight", "layers.11.ffn_norm.weight"}) {
        CAPTURE(backend);
        CAPTURE(tensor);
        const auto folder = poisoned_nano(tensor);
        session::ModelOptions options;
        options.folder = folder->folder.path();
        options.backend = make_backend(backend);
        auto session = make_session(make_pool(session::LoadedModel::open(options).value()));
        CHECK(session->prefill(std::vector<int32_t>{0, 3, 4, 5}, {}, nullptr).code() == Code::kNUMERIC);
        CHECK(session->position() == 0);
        CHECK(!session->has_logits());
        CHECK(session->n_pages() == 0);
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
