#include "base/sha256.h"

#include <doctest/doctest.h>

namespace dsv41::test {
namespace {

std::string hex(std::string_view text, Sha256::Path path = Sha256::Path::kBest) {
  Sha256 hash(path);
  hash.update(text);
  return sha256_hex(hash.finish());
}

TEST_SUITE("base/sha256") {
  // NIST, examples of FIPS 180-4 and the secure hash standard's test messages.
  TEST_CASE("the published messages give the published digests on every path") {
    struct Row {
      const char* name;
      std::string message;
      const char* digest;
    };
    const Row rows[] = {
        {"empty", "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"24 bits", "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"448 bits", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"896 bits",
         "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqr"
         "s"
         "tu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
        {"a million a", std::string(1000000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      CHECK(hex(row.message) == row.digest);
      CHECK(hex(row.message, Sha256::Path::kPortable) == row.digest);
    }
  }

  TEST_CASE("the digest does not depend on how the message is cut or on the instructions used") {
    std::string message;
    for (int i = 0; i < 300; ++i) message += static_cast<char>(i * 37 + 11);
    for (size_t length = 0; length <= message.size(); ++length) {
      const std::string_view text = std::string_view(message).substr(0, length);
      const std::string want = hex(text, Sha256::Path::kPortable);
      CAPTURE(length);
      CHECK(hex(text) == want);
      for (size_t piece : {1, 3, 63, 64, 65}) {
        Sha256 hash;
        for (size_t at = 0; at < length; at += piece) hash.update(text.substr(at, piece));
        CHECK(sha256_hex(hash.finish()) == want);
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
