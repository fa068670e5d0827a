#include "model/fingerprint.h"

#include <doctest/doctest.h>

#include "support/linked_folder.h"
#include "support/model_runner.h"

namespace dsv41::test {
namespace {

using model::Checkpoint;
using model::Fingerprint;

Fingerprint of(const std::string& folder) {
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  return model::compute_fingerprint(checkpoint).value();
}

TEST_SUITE("model/fingerprint") {
  TEST_CASE("nano has the fingerprint that another program computes") {
    // From the grammar in fingerprint.h with Python's hashlib, over samples/nano.
    const Fingerprint print = of(checkpoint_folder("nano"));
    CHECK(sha256_hex(print.tensors) == "385043eadc277e1561b739247ee1a288280aba28a4cded10051b1200625f4101");
    CHECK(sha256_hex(print.model) == "4540feacfc9fedd0d8b2c13b1ff2b50384d5a2ae2dfe5a598921c46c93781591");
  }

  TEST_CASE("the folder's place does not count, its content does") {
    const Fingerprint nano = of(checkpoint_folder("nano"));
    CHECK(of(LinkedFolder(checkpoint_folder("nano")).folder.path()).model == nano.model);
    struct Row {
      const char* file;
      Sha256Digest Fingerprint::*part;
    };
    for (const Row& row : {Row{"config.json", &Fingerprint::config}, Row{"tokenizer.json", &Fingerprint::tokenizer}}) {
      CAPTURE(row.file);
      const LinkedFolder changed(checkpoint_folder("nano"));
      changed.replace(row.file, changed.read(row.file) + "\n");
      const Fingerprint print = of(changed.folder.path());
      CHECK(print.*row.part != nano.*row.part);
      CHECK(print.model != nano.model);
      CHECK(print.tensors == nano.tensors);
    }
    const LinkedFolder weights(checkpoint_folder("nano"));
    std::string shard = weights.read("model-00005-of-00019.safetensors");
    shard[shard.size() / 2] ^= 1;
    weights.replace("model-00005-of-00019.safetensors", shard);
    CHECK(of(weights.folder.path()).tensors != nano.tensors);
    const LinkedFolder map(checkpoint_folder("nano"));
    std::string bytes = map.read("engram_vocab_map.i32");
    bytes[4 * 100] ^= 1;
    map.replace("engram_vocab_map.i32", bytes);
    CHECK(of(map.folder.path()).engram != nano.engram);
  }

  TEST_CASE("without a tokenizer that part is zero") {
    CHECK(of(checkpoint_folder("pico")).tokenizer == Sha256Digest{});
  }

  TEST_CASE("of a large tensor the first, the last and 62 pieces between count, and its size") {
    std::vector<std::byte> bytes(3000001, std::byte{7});
    model::StoredTensor tensor;
    tensor.data = bytes.data();
    tensor.bytes = bytes.size();
    const Sha256Digest before = model::tensor_content_digest(tensor);
    const uint64_t span = bytes.size() - 4096, step = span / 63;
    for (uint64_t i = 0; i < 64; ++i) {
      const uint64_t first = i == 63 ? span : i * step;
      for (uint64_t at : {first, first + 4095}) {
        bytes[at] = std::byte{8};
        CHECK(model::tensor_content_digest(tensor) != before);
        bytes[at] = std::byte{7};
      }
    }
    bytes[4096] = std::byte{8};  // between two samples: not seen, as the header says
    CHECK(model::tensor_content_digest(tensor) == before);
    --tensor.bytes;
    CHECK(model::tensor_content_digest(tensor) != before);
  }
}

}  // namespace
}  // namespace dsv41::test
