#include "text/chat_format.h"

#include <doctest/doctest.h>

#include "base/sha256.h"
#include "text_fixtures.h"

namespace dsv41::test {
namespace {

using namespace text;

TEST_SUITE("text/chat_format") {
  TEST_CASE("the wire constants are those of the release") {
    CHECK(kToolsHead.size() == 884);
    CHECK(sha256_hex(sha256(kToolsHead)) == "2ae2ff83edf990187ed419c4e2901bb9ea6ce2129eb503ac543b258e7de8231d");
    CHECK(kToolsTail.size() == 99);
    CHECK(sha256_hex(sha256(kToolsTail)) == "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7");
    CHECK(kResponseFormatHead.size() == 80);
    CHECK(sha256_hex(sha256(kResponseFormatHead)) ==
          "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112");
    const std::string effort = std::string(kEffortHead) + "75" + std::string(kEffortTail);
    CHECK(effort.size() == 91);
    CHECK(sha256_hex(sha256(effort)) == "86fdea28dfcf6ee1cffe3c13c63f9472d1c250d444d06666b710530963194231");
  }

  TEST_CASE("special ids of the released vocabulary") {
    const Vocabulary* v = released_or_skip("special ids of the released vocabulary");
    if (v == nullptr) return;
    const ChatTokens& c = v->chat;
    CHECK(std::vector<int32_t>{c.bos, c.eos, c.pad, c.system, c.user, c.assistant} ==
          std::vector<int32_t>{0, 1, 2, 128799, 128803, 128804});
    CHECK(std::vector<int32_t>{c.think, c.end_think, c.dsml, c.latest_reminder, c.image} ==
          std::vector<int32_t>{128821, 128822, 128825, 128828, 129264});
    const int32_t tasks[kNChatTasks] = {-1, 128829, 128830, 128831, 128832, 128836, 128845};
    for (int i = 0; i < kNChatTasks; ++i) CHECK(c.task[i] == tasks[i]);
  }

  TEST_CASE("nano's special ids are the released ones minus 125,184") {
    const ChatTokens& c = nano().chat;
    CHECK(c.system == 128799 - 125184);
    CHECK(c.dsml == 128825 - 125184);
    CHECK(c.image == 129264 - 125184);
    CHECK(c.task[static_cast<size_t>(ChatTask::kReadUrl)] == 128845 - 125184);
  }

  TEST_CASE("a vocabulary without a needed token is refused by its literal") {
    std::string json = nano_json();
    const size_t at = json.find("<｜System｜>");
    REQUIRE(at != std::string::npos);
    json.replace(at, std::string("<｜System｜>").size(), "<｜Syst3m｜>");
    const auto tokenizer = Tokenizer::load(json);
    REQUIRE(tokenizer.ok());
    const auto tokens = ChatTokens::find(*tokenizer.value());
    REQUIRE_FALSE(tokens.ok());
    CHECK(tokens.status().code() == Code::kTOKENIZER);
    CHECK(tokens.status().message().find("<｜System｜>") != std::string::npos);
  }
}

}  // namespace
}  // namespace dsv41::test
