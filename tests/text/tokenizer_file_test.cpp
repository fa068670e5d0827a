#include "text/tokenizer_file.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "text/tokenizer.h"
#include "text_fixtures.h"

namespace dsv41::test {
namespace {

using namespace text;

// Pieces of a small right file; a case changes one and looks at the answer.
struct SmallFile {
  std::string normalizer = "null";
  std::string pre =
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\d+"},"behavior":"Isolated",)"
      R"("invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})";
  std::string added = R"([{"id":258,"content":"<x>","special":true}])";
  std::string vocab_tail = R"(,"ab":256,"abc":257)";
  std::string merges = R"(["a b","ab c"])";
  std::string model_head = R"("type":"BPE","dropout":null,"unk_token":null,"byte_fallback":false)";
  std::string tail =
      R"(,"decoder":{"type":"ByteLevel"},"post_processor":{"type":"ByteLevel"},"truncation":null,"padding":null)";
  bool without_byte_7 = false;

  std::string text() const {
    std::string vocab;
    const auto alphabet = byte_level_alphabet();
    for (int byte = 0; byte < 256; ++byte) {
      if (without_byte_7 && byte == 7) continue;
      const uint16_t c = alphabet[static_cast<size_t>(byte)];
      std::string spelled;
      if (c < 0x80) {
        spelled = std::string(1, static_cast<char>(c));
      } else {
        spelled = {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
      }
      vocab += (vocab.empty() ? "" : ",") + json_quote(spelled) + ":" + std::to_string(byte);
    }
    return R"({"version":"1.0","added_tokens":)" + added + R"(,"normalizer":)" + normalizer + R"(,"pre_tokenizer":)" +
           pre + tail + R"(,"model":{)" + model_head + R"(,"vocab":{)" + vocab + vocab_tail + R"(},"merges":)" +
           merges + "}}";
  }
};

std::string failure(const SmallFile& file) {
  const auto read = TokenizerFile::read(file.text());
  if (read.ok()) return "";
  CHECK(read.status().code() == Code::kTOKENIZER);
  return std::string(read.status().message());
}

TEST_SUITE("text/tokenizer_file") {
  TEST_CASE("a small right file is read") {
    const auto read = TokenizerFile::read(SmallFile().text());
    REQUIRE(read.ok());
    CHECK(read->tokens.size() == 259);
    CHECK(read->tokens[258].is_added);
    CHECK(read->tokens[257].bytes == "abc");
    CHECK(read->byte_ids[' '] == ' ');
    CHECK(read->byte_ids[0xff] == 0xff);
    CHECK(read->patterns == std::vector<std::string>{"\\d+"});
    REQUIRE(read->merges.size() == 2);
    CHECK(read->merges[1].joined == 257);
  }

  TEST_CASE("merges may be pairs, a bare ByteLevel needs no Sequence, ids may have gaps") {
    SmallFile file;
    file.merges = R"([["a","b"],["ab","c"]])";
    file.pre = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})";
    file.added = R"([{"id":300,"content":"<x>"}])";
    const auto tokenizer = Tokenizer::load(file.text());
    REQUIRE(tokenizer.ok());
    std::vector<int32_t> ids;
    REQUIRE(tokenizer.value()->encode("abc1<x>", Literals::kSpecial, ids).ok());
    CHECK(ids == std::vector<int32_t>{257, '1', 300});
    CHECK(tokenizer.value()->token_bytes(299).empty());
    std::string out = "kept";
    CHECK(tokenizer.value()->decode(std::vector<int32_t>{'a', 299}, out).code() == Code::kINVALID_ARG);
    CHECK(out == "kept");
  }

  TEST_CASE("anything outside the pipeline is refused with its name") {
    const struct {
      const char* name;
      void (*change)(SmallFile&);
      const char* expected;
    } rows[] = {
        {"normaliser", [](SmallFile& f) { f.normalizer = R"({"type":"NFC"})"; }, "normalizer"},
        {"filled sequence of normalisers",
         [](SmallFile& f) { f.normalizer = R"({"type":"Sequence","normalizers":[{"type":"NFC"}]})"; }, "normalizer"},
        {"no pre-tokenizer", [](SmallFile& f) { f.pre = "null"; }, "pre_tokenizer"},
        {"empty sequence", [](SmallFile& f) { f.pre = R"({"type":"Sequence","pretokenizers":[]})"; }, "pre_tokenizer"},
        {"other split", [](SmallFile& f) { f.pre.replace(f.pre.find("Isolated"), 8, "Removed"); }, "step 0"},
        {"inverted split", [](SmallFile& f) { f.pre.replace(f.pre.find("\"invert\":false"), 14, "\"invert\":true"); },
         "step 0"},
        {"split by a string", [](SmallFile& f) { f.pre.replace(f.pre.find("Regex"), 5, "String"); }, "step 0"},
        {"prefix space", [](SmallFile& f) { f.pre.replace(f.pre.find("_space\":false"), 13, "_space\":true"); },
         "add_prefix_space"},
        {"regex of its own", [](SmallFile& f) { f.pre.replace(f.pre.find("_regex\":false"), 13, "_regex\":true"); },
         "regex"},
        {"Metaspace", [](SmallFile& f) { f.pre = R"({"type":"Metaspace"})"; }, "ByteLevel"},
        {"WordPiece", [](SmallFile& f) { f.model_head = R"("type":"WordPiece")"; }, "BPE"},
        {"dropout", [](SmallFile& f) { f.model_head += R"(,"ignore_merges":true)"; }, "ignore_merges"},
        {"unknown token", [](SmallFile& f) { f.model_head = R"("type":"BPE","unk_token":"a")"; }, "unk_token"},
        {"byte fallback", [](SmallFile& f) { f.model_head = R"("type":"BPE","byte_fallback":true)"; }, "byte_fallback"},
        {"word suffix", [](SmallFile& f) { f.model_head += R"(,"end_of_word_suffix":"</w>")"; }, "end_of_word_suffix"},
        {"other decoder", [](SmallFile& f) { f.tail = R"(,"decoder":{"type":"WordPiece"})"; }, "decoder"},
        {"template", [](SmallFile& f) { f.tail = R"(,"post_processor":{"type":"TemplateProcessing"})"; },
         "post_processor"},
        {"truncation", [](SmallFile& f) { f.tail = R"(,"truncation":{"max_length":5})"; }, "truncation"},
        {"stripping added token", [](SmallFile& f) { f.added = R"([{"id":258,"content":"<x>","lstrip":true}])"; },
         "lstrip"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.name);
      SmallFile file;
      row.change(file);
      const std::string message = failure(file);
      CAPTURE(message);
      CHECK(message.find(row.expected) != std::string::npos);
    }
  }

  TEST_CASE("a damaged file is refused") {
    const struct {
      const char* name;
      void (*change)(SmallFile&);
    } rows[] = {
        {"byte without a token", [](SmallFile& f) { f.without_byte_7 = true; }},
        {"id twice", [](SmallFile& f) { f.vocab_tail = R"(,"ab":256,"abc":256)"; }},
        {"id of an added token taken", [](SmallFile& f) { f.added = R"([{"id":257,"content":"<x>"}])"; }},
        {"negative id", [](SmallFile& f) { f.vocab_tail = R"(,"ab":-1)"; }},
        {"huge id", [](SmallFile& f) { f.vocab_tail = R"(,"ab":2000000000)"; }},
        {"fraction as id", [](SmallFile& f) { f.vocab_tail = R"(,"ab":256.5)"; }},
        {"string as id", [](SmallFile& f) { f.vocab_tail = R"(,"ab":"256")"; }},
        {"space in the byte-level alphabet", [](SmallFile& f) { f.vocab_tail = R"(,"ab":256,"abc":257,"a b":259)"; }},
        {"letter outside the byte-level alphabet",
         [](SmallFile& f) { f.vocab_tail = R"(,"ab":256,"abc":257,"你":259)"; }},
        {"empty entry", [](SmallFile& f) { f.vocab_tail = R"(,"ab":256,"abc":257,"":259)"; }},
        {"merge of unknown tokens", [](SmallFile& f) { f.merges = R"(["a b","x yz"])"; }},
        {"merge to an unknown token", [](SmallFile& f) { f.merges = R"(["a b","b c"])"; }},
        {"merge twice", [](SmallFile& f) { f.merges = R"(["a b","a b"])"; }},
        {"merge of one", [](SmallFile& f) { f.merges = R"(["ab"])"; }},
        {"merge of three", [](SmallFile& f) { f.merges = R"([["a","b","c"]])"; }},
        {"number as merge", [](SmallFile& f) { f.merges = "[1]"; }},
        {"merges no list", [](SmallFile& f) { f.merges = "{}"; }},
        {"added token without id", [](SmallFile& f) { f.added = R"([{"content":"<x>"}])"; }},
        {"empty added token", [](SmallFile& f) { f.added = R"([{"id":258,"content":""}])"; }},
        {"added token twice",
         [](SmallFile& f) { f.added = R"([{"id":258,"content":"<x>"},{"id":259,"content":"<x>"}])"; }},
        {"number as added token", [](SmallFile& f) { f.added = "[7]"; }},
        {"added tokens no list", [](SmallFile& f) { f.added = "7"; }},
    };
    for (const auto& row : rows) {
      CAPTURE(row.name);
      SmallFile file;
      row.change(file);
      CHECK(failure(file) != "");
    }
  }

  TEST_CASE("any cut or changed byte of a file gives a tokenizer or an error") {
    const std::string right = SmallFile().text();
    SeededRandom random(4);
    CAPTURE(random.seed);
    size_t n_refused = 0;
    for (int round = 0; round < 400; ++round) {
      std::string text = right;
      if (round % 2 == 0) {
        text.resize(random.below(text.size()));
      } else {
        text[random.below(text.size())] = static_cast<char>(random.engine());
      }
      const auto tokenizer = Tokenizer::load(text);
      n_refused += !tokenizer.ok();
      if (tokenizer.ok()) {
        std::vector<int32_t> ids;
        CHECK(tokenizer.value()->encode("abc 12", Literals::kSpecial, ids).ok());
      } else {
        CHECK(tokenizer.status().code() == Code::kTOKENIZER);
      }
    }
    CHECK(n_refused >= 200);
  }

  TEST_CASE("other JSON is refused") {
    for (const char* text : {"", "null", "[]", "7", "{}", R"({"model":null})", R"({"model":[]})", "\xff"}) {
      CAPTURE(text);
      CHECK(TokenizerFile::read(text).status().code() == Code::kTOKENIZER);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
