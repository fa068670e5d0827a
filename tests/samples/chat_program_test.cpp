// dsv41-chat as its users run it, on the nano model.
#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "samples/chat_talk.h"

namespace dsv41::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

ProgramOutput chat(const std::vector<std::string>& arguments, const std::string& input = "") {
  return run_program(chat_command(arguments), input);
}

// The answer to one prompt, without the line feed.
std::string greedy_answer(const std::string& prompt) {
  const ProgramOutput result = chat({"--greedy", "-p", prompt});
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  REQUIRE(result.out.size() > 1);
  return result.out.substr(0, result.out.size() - 1);
}

std::vector<json> json_lines(const std::string& text) {
  std::vector<json> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\n', start);
    lines.push_back(json::parse(text.substr(start, end - start)));
    start = end == std::string::npos ? text.size() : end + 1;
  }
  return lines;
}

bool begins(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }

std::string repeated(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

// What /stats says of the last turn.
struct TurnFigures {
  std::string source;
  int hit = -1, n_tokens = -1, reused = -1;
  int encoder_computed = -1, decoder_computed = -1, encoder_replayed = -1, decoder_replayed = -1;
  int layer_tokens = -1, answer_tokens = -1;
  std::string result, hits;
};

TurnFigures turn_figures(const std::string& stats) {
  static const std::regex pattern(
      "last turn +source +(.*), hit at (\\d+) of (\\d+) tokens\n +reused +(\\d+)\n"
      " +computed +(\\d+) encoder, (\\d+) decoder\n +replayed +(\\d+) encoder, (\\d+) decoder\n"
      " +work +(\\d+) layer x token units, and \\d+ for (\\d+) tokens of answer\n +result +(.*)\n +hits +(.*)\n");
  std::smatch match;
  REQUIRE_MESSAGE(std::regex_search(stats, match, pattern), stats);
  const auto number = [&](size_t i) { return std::stoi(match[i].str()); };
  return {match[1],  number(2), number(3), number(4),  number(5), number(6),
          number(7), number(8), number(9), number(10), match[11], match[12]};
}

// The figures of the last turn, checked for what holds of every turn of the nano model's 6 + 6 layers.
TurnFigures stats_of(PtyProgram& program) {
  const TurnFigures figures = turn_figures(say(program, "/stats"));
  CHECK(figures.reused == figures.hit);
  CHECK(figures.reused + figures.encoder_computed == figures.n_tokens);
  CHECK(figures.layer_tokens == 6 * (figures.encoder_computed + figures.encoder_replayed) +
                                    6 * (figures.decoder_computed + figures.decoder_replayed));
  CHECK((figures.source == "nothing") == (figures.reused == 0));
  return figures;
}

// Pages of the pool by state, and whether they are all of them.
struct PoolFigures {
  int n_pages = -1, n_free = -1, n_private = -1, n_sealed = -1, n_cached = -1, n_windows = -1;
};

PoolFigures pool_figures(PtyProgram& program) {
  static const std::regex pattern(
      "pool +pages +(\\d+) of \\d+ tokens: (\\d+) free, (\\d+) private, (\\d+) sealed, (\\d+) cached\n +windows "
      "+(\\d+) in "
      "memory, [0-9.]+ of [0-9.]+ MiB; \\d+ of \\d+ slots free\n");
  const std::string stats = say(program, "/stats");
  std::smatch match;
  REQUIRE_MESSAGE(std::regex_search(stats, match, pattern), stats);
  const auto number = [&](size_t i) { return std::stoi(match[i].str()); };
  const PoolFigures figures{number(1), number(2), number(3), number(4), number(5), number(6)};
  CHECK(figures.n_free + figures.n_private + figures.n_sealed + figures.n_cached == figures.n_pages);
  return figures;
}

// The answers of a talk of its own, without branches and cuts.
std::vector<std::string> cold_talk(const std::vector<std::string>& options, const std::vector<std::string>& messages) {
  PtyProgram program(chat_command(options));
  start(program);
  std::vector<std::string> answers;
  for (const std::string& message : messages) answers.push_back(say(program, message));
  quit(program);
  return answers;
}

constexpr const char* kSum = "What is 4 + 5?";
constexpr const char* kColour = "What is the colour of flour?";
constexpr const char* kHat = "Bob has a red hat. Bob gives the hat to Anna. Who has the hat?";
constexpr const char* kSpell = "How do you spell the word flour?";
// About 350 tokens: what comes behind it is far beyond the windows' rows of the first 128.
const std::string kLongSystem = repeated("Anna has a blue ball. ", 50);

TEST_SUITE("samples/chat") {
  TEST_CASE("one prompt puts the answer alone on stdout and nothing on stderr") {
    const ProgramOutput result = chat({"--greedy", "-p", kSum});
    CHECK(result.exit_code == 0);
    CHECK(result.err == "");
    REQUIRE(!result.out.empty());
    CHECK(result.out.find('\n') == result.out.size() - 1);
    CHECK(result.out.find("9") != std::string::npos);
  }

  TEST_CASE("a prompt from a file, from a pipe and by -p - gets the same answer") {
    const std::string want = greedy_answer(kSum) + "\n";
    const Scratch scratch;
    const std::string file = scratch.write("prompt.txt", std::string(kSum) + "\n");
    CHECK(chat({"--greedy", "--prompt-file", file}).out == want);
    CHECK(chat({"--greedy"}, std::string(kSum) + "\n").out == want);
    CHECK(chat({"--greedy", "-p", "-"}, kSum).out == want);
  }

  TEST_CASE("thinking mode puts the reasoning on stderr") {
    const ProgramOutput result = chat({"--greedy", "--think", "-p", "What is 23 + 14?"});
    CHECK(result.exit_code == 0);
    CHECK(result.err.size() > 1);
    CHECK(result.out.find("37") != std::string::npos);
    CHECK(result.out.find("think>") == std::string::npos);
  }

  TEST_CASE("the same seed gives the same text, and another seed another one") {
    const std::string prompt = "Tell me a story.";
    const auto draw = [&](const char* seed) {
      return chat({"--temp", "1.5", "--max-tokens", "40", "--seed", seed, "-p", prompt}).out;
    };
    const std::string first = draw("1");
    CHECK(first.size() > 10);
    CHECK(draw("1") == first);
    CHECK(draw("2") != first);
  }

  TEST_CASE("a missing folder and a folder without a checkpoint are explained") {
    const Scratch scratch;
    const std::string missing = (scratch.path / "nowhere").string();
    for (const std::string& model : {missing, scratch.path.string()}) {
      CAPTURE(model);
      const ProgramOutput result = run_program(chat_command({"-p", "Hi"}, model));
      CHECK(result.exit_code == 3);
      CHECK(result.out == "");
      CHECK(result.err.find(model) != std::string::npos);
      CHECK(result.err.find("config.json") != std::string::npos);
      CHECK(result.err.find("--model FOLDER") != std::string::npos);
    }
  }

  TEST_CASE("wrong options and files that cannot be read have exit codes of their own") {
    struct Row {
      const char* name;
      std::vector<std::string> arguments;
      int exit_code;
    };
    const Row rows[] = {
        {"unknown option", {"--frobnicate"}, 2},
        {"two inputs", {"-p", "Hi", "--jsonl", "-"}, 2},
        {"top_p of 0", {"-p", "Hi", "--top-p", "0"}, 2},
        {"temperature that is no number", {"-p", "Hi", "--temp", "nan"}, 2},
        {"greedy with a temperature", {"-p", "Hi", "--greedy", "--temp", "1"}, 2},
        {"effort out of range", {"-p", "Hi", "--effort", "101"}, 2},
        {"empty prompt", {"-p", "-"}, 2},
        {"missing prompt file", {"--prompt-file", "/nonexistent/prompt"}, 4},
        {"folder as prompt file", {"--prompt-file", "/"}, 4},
        {"missing jsonl file", {"--jsonl", "/nonexistent/lines"}, 4},
        {"plan of an unknown model", {"--plan", "V5"}, 2},
        {"plan of no session", {"--plan", "V4-Pro", "--plan-sessions", "0"}, 2},
        {"plan beyond the model's limit", {"--plan", "V4-Pro", "--plan-tokens", "1048577"}, 2},
        {"plan in a format that the model lacks", {"--plan", "V4.1-Flash", "--plan-kv", "bf16"}, 2},
        {"plan and prompt", {"--plan", "V4-Pro", "-p", "Hi"}, 2},
        {"plan options without plan", {"-p", "Hi", "--plan-tokens", "5"}, 2},
        {"plan of a folder that is no checkpoint", {"--plan", "/"}, 3},
        {"experts nowhere", {"-p", "Hi", "--experts", "tape"}, 2},
        {"a cache too small for a token", {"-p", "Hi", "--experts", "disk", "--expert-cache", "1KB"}, 1},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      const ProgramOutput result = chat(row.arguments);
      CHECK(result.exit_code == row.exit_code);
      CHECK(result.out == "");
      CHECK(result.err != "");
    }
    CHECK(chat({"--help"}).exit_code == 0);
  }

  TEST_CASE("the answer is the same with experts and Engram rows from disk") {
    const ProgramOutput result =
        chat({"--greedy", "--experts", "disk", "--engram", "disk", "--expert-cache", "1MB", "-p", "What is 4 + 5?"});
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    CHECK(result.out == greedy_answer("What is 4 + 5?") + "\n");
  }

  TEST_CASE("a plan of memory needs no model and names its sums and fields") {
    const ProgramOutput v4 = chat({"--plan", "V4-Pro", "--plan-kv", "bf16", "--plan-sessions", "2", "--plan-drafts"});
    CHECK(v4.exit_code == 0);
    for (const char* text :
         {"V4-Pro, BF16: 2 sessions of 1,048,576 tokens", "9848 bytes per token; pages of 256 tokens", "20,652,752,896",
          "windows of drafts", "index compressor row"}) {
      CAPTURE(text);
      CHECK(v4.out.find(text) != std::string::npos);
    }
    for (const std::string& place : {kNano, kNano + "/config.json"}) {
      const ProgramOutput nano = chat({"--plan", place, "--plan-tokens", "1000"});
      CHECK(nano.exit_code == 0);
      CHECK(nano.out.find("native format: 1 session of 1,000 tokens") != std::string::npos);
      CHECK(nano.out.find("8 token pages") != std::string::npos);
    }
  }

  TEST_CASE("jsonl answers every line in order and reports bad lines in their place") {
    const std::string text =
        "{\"id\": 7, \"messages\": [{\"role\": \"user\", \"content\": \"What is 4 + 5?\"}]}\n"
        "\n"
        "this is no JSON\n"
        "{\"id\": \"b\", \"mode\": \"thinking\", \"effort\": 100, \"messages\": [{\"role\": \"user\", \"content\": "
        "\"What is 23 + "
        "14?\"}]}\n"
        "{\"id\": 8}\n"
        "[1]\n"
        "{\"id\": 9, \"messages\": [{\"role\": \"oracle\", \"content\": \"Hi\"}]}\n"
        "{\"id\": 10, \"messages\": [{\"role\": \"user\", \"content\": \"What is 4 + 5?\"}]}";
    const Scratch scratch;
    const ProgramOutput result = chat({"--greedy", "--jsonl", scratch.write("lines.jsonl", text)});
    CHECK(result.exit_code == 5);
    const std::vector<json> lines = json_lines(result.out);
    REQUIRE(lines.size() == 7);
    CHECK(lines[0]["id"] == 7);
    CHECK(lines[0]["answer"] == greedy_answer(kSum));
    CHECK(lines[0]["content"] == lines[0]["answer"]);
    CHECK(lines[0]["reasoning"] == "");
    CHECK(lines[0]["tool_calls"].empty());
    CHECK(lines[0]["error"].is_null());
    CHECK(lines[1]["id"].is_null());
    CHECK(lines[1]["error"].get<std::string>().find("line 3") == 0);
    CHECK(lines[2]["id"] == "b");
    CHECK(lines[2]["error"].is_null());
    CHECK(lines[2]["reasoning"] != "");
    CHECK(lines[2]["answer"] ==
          lines[2]["reasoning"].get<std::string>() + "</think>" + lines[2]["content"].get<std::string>());
    CHECK(lines[3]["id"] == 8);
    CHECK(lines[3]["error"].is_string());
    CHECK(lines[4]["error"].is_string());
    CHECK(lines[5]["id"] == 9);
    CHECK(lines[5]["error"].is_string());
    CHECK(lines[6]["id"] == 10);
    CHECK(lines[6]["answer"] == lines[0]["answer"]);  // nothing of the lines between is left
    const std::string key_order = "{\"id\":7,\"answer\":";
    CHECK(result.out.compare(0, key_order.size(), key_order) == 0);
  }

  TEST_CASE("jsonl without a bad line ends well and reads stdin too") {
    const ProgramOutput result =
        chat({"--greedy", "--jsonl", "-"}, "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 4 + 5?\"}]}\n");
    CHECK(result.exit_code == 0);
    CHECK(json_lines(result.out).size() == 1);
  }

  TEST_CASE("a talk goes on in its session, and undo, regenerate and reset give the answers they should") {
    const std::string sum = greedy_answer(kSum) + "\n", colour = greedy_answer(kColour) + "\n";
    PtyProgram program(chat_command({"--greedy"}));
    start(program);
    CHECK(say(program, kSum) == sum);
    const std::string second = say(program, kColour);  // with the sum before it, maybe another answer than alone
    CHECK(second.size() > 1);
    const std::string again = say(program, "/regenerate");
    CHECK(again.find("greedy") != std::string::npos);
    CHECK(again.substr(again.find('\n') + 1) == second);
    CHECK(begins(say(program, "/undo"), std::string("Taken back: ") + kColour + "\n"));
    CHECK(say(program, kColour) == second);
    CHECK(begins(say(program, "/undo"), std::string("Taken back: ") + kColour + "\n"));
    CHECK(begins(say(program, "/undo"), std::string("Taken back: ") + kSum + "\n"));
    CHECK(say(program, "/undo") == "There is nothing to take back.\n");
    CHECK(say(program, "/regenerate") == "There is no answer to make again.\n");
    CHECK(say(program, kColour) == colour);  // nothing is left of the sum
    CHECK(say(program, "/reset") == "A new conversation.\n");
    CHECK(say(program, kSum) == sum);
    CHECK(say(program, "/stats").find("in 1 turns") != std::string::npos);
    program.type_line("/quit");
    CHECK(program.exit_code() == 0);
  }

  TEST_CASE("a talk gives the answers that jsonl gives to the same conversation") {
    PtyProgram program(chat_command({"--greedy"}));
    start(program);
    const std::string first = say(program, kSum), second = say(program, kColour);
    json line = {{"messages",
                  {{{"role", "user"}, {"content", kSum}},
                   {{"role", "assistant"}, {"content", first.substr(0, first.size() - 1)}},
                   {{"role", "user"}, {"content", kColour}}}}};
    const ProgramOutput result = chat({"--greedy", "--jsonl", "-"}, line.dump() + "\n");
    REQUIRE(result.exit_code == 0);
    CHECK(json_lines(result.out)[0]["content"].get<std::string>() + "\n" == second);
    program.type_line("/quit");
    CHECK(program.exit_code() == 0);
  }

  TEST_CASE("regenerate draws another answer where the draw decides") {
    PtyProgram program(chat_command({"--temp", "3", "--seed", "5", "--max-tokens", "20"}));
    start(program);
    const std::string first = say(program, "Tell me a story.");
    CHECK(say(program, "/regenerate") != first);
    CHECK(begins(say(program, "/undo"), "Taken back: Tell me a story.\n"));
    CHECK(say(program, "Tell me a story.") == first);
    program.type_line("/quit");
    CHECK(program.exit_code() == 0);
  }

  TEST_CASE("a second turn reuses the tokens of the first") {
    PtyProgram program(chat_command({"--greedy"}));
    start(program);
    CHECK(!contains(say(program, "/stats"), "last turn"));
    say(program, kSum);
    const TurnFigures first = stats_of(program);
    CHECK(first.source == "nothing");
    CHECK(first.hits == "none");
    CHECK(begins(first.result, "bit-identical; the bytes of COLD"));
    say(program, kColour);
    const TurnFigures second = stats_of(program);
    CHECK(second.source == "live session");
    CHECK(second.reused == first.n_tokens + first.answer_tokens);
    CHECK(begins(second.result, "bit-identical; the bytes of LIVE"));
    quit(program);
  }

  TEST_CASE("regenerate computes one token each time, and replays nothing") {
    PtyProgram program(chat_command({"--greedy", "--system", kLongSystem}));
    start(program);
    say(program, kSum);
    const std::string answer = say(program, kHat);
    const int n_tokens = stats_of(program).n_tokens;
    for (int i = 0; i < 2; ++i) {
      const std::string again = say(program, "/regenerate");
      CHECK(again.substr(again.find('\n') + 1) == answer);
      const TurnFigures figures = stats_of(program);
      CHECK(figures.encoder_computed == 1);
      CHECK(figures.decoder_computed == 1);
      CHECK(figures.reused == n_tokens - 1);
      CHECK(figures.encoder_replayed == 0);
      CHECK(figures.decoder_replayed == 0);
    }
    // An undo behind it, and the same message again: the prompt of before.
    CHECK(contains(say(program, "/undo"), "replays 0 through the encoder and 0 through the decoder"));
    CHECK(say(program, kHat) == answer);
    const TurnFigures figures = stats_of(program);
    CHECK(figures.source == "window in memory");
    CHECK(figures.reused == n_tokens - 1);
    CHECK(figures.encoder_computed == 1);
    CHECK(figures.encoder_replayed == 0);
    quit(program);
  }

  TEST_CASE("rewind goes back by turns, and the next one replays nothing while the windows are in memory") {
    const std::vector<std::string> options = {"--greedy", "--system", kLongSystem};
    const std::vector<std::string> want = cold_talk(options, {kSum, kSpell});
    PtyProgram program(chat_command(options));
    start(program);
    CHECK(say(program, kSum) == want[0]);
    const TurnFigures first = stats_of(program);
    const int end = first.n_tokens + first.answer_tokens;
    say(program, kColour);
    say(program, kHat);
    const TurnFigures third = stats_of(program);
    CHECK(third.n_tokens + third.answer_tokens > end + 40);  // beyond the spare rows
    CHECK(say(program, "/rewind 4") == "Messages to take back: only 3.\n");
    for (const char* wrong : {"/rewind", "/rewind 0", "/rewind -1", "/rewind two", "/rewind 1x"})
      CHECK(say(program, wrong) == "/rewind N: how many messages to take back, from 1.\n");

    const std::string report = say(program, "/rewind 2");
    CHECK(begins(report, std::string("Taken back: ") + kHat + "\nTaken back: " + kColour + "\n"));
    CHECK(contains(report, "the next turn reuses " + std::to_string(end) + " (window in memory)"));
    CHECK(contains(report, "replays 0 through the encoder and 0 through the decoder"));
    CHECK(say(program, kSpell) == want[1]);
    const TurnFigures figures = stats_of(program);
    CHECK(figures.source == "window in memory");
    CHECK(figures.reused == end);
    CHECK(figures.encoder_replayed == 0);
    CHECK(figures.decoder_replayed == 0);
    CHECK(begins(figures.result, "bit-identical; the bytes of LIVE"));
    CHECK(contains(say(program, "/stats"), "in 2 turns"));
    quit(program);
  }

  TEST_CASE("a prompt that changes far from every window replays 128 tokens and says that the result is approximate") {
    PtyProgram program(chat_command({"--greedy", "--system", kLongSystem}));
    start(program);
    say(program, kSum);
    say(program, "/undo");
    program.type_line("/system " + kLongSystem + "Give short answers.");
    REQUIRE_MESSAGE(program.expect("System prompt: "), program.transcript());
    wait_for_prompt(program);
    const std::string answer = say(program, kSum);
    const TurnFigures figures = stats_of(program);
    CHECK(figures.source == "live session");
    CHECK(figures.hit > 256);
    CHECK(figures.encoder_replayed == 128);
    CHECK(figures.decoder_replayed == 128 - figures.decoder_computed);
    CHECK(begins(figures.result, "approximate; the bytes of REPLAY"));
    CHECK(figures.hits == std::to_string(figures.hit));

    const std::string again = say(program, "/regenerate");
    CHECK(again.substr(again.find('\n') + 1) == answer);
    const TurnFigures after = stats_of(program);
    CHECK(after.encoder_computed == 1);
    CHECK(after.encoder_replayed == 0);
    CHECK(after.hits == figures.hits);
    quit(program);
  }

  TEST_CASE("two branches go on side by side, with the answers of two talks of their own") {
    const std::vector<std::string> options = {"--greedy", "--system", kLongSystem};
    const std::vector<std::string> want_main = cold_talk(options, {kSum, kColour, kSpell});
    const std::vector<std::string> want_fork = cold_talk(options, {kSum, kHat, kSum});
    PtyProgram program(chat_command(options));
    start(program);
    CHECK(say(program, kSum) == want_main[0]);
    const TurnFigures before = stats_of(program);
    const int end = before.n_tokens + before.answer_tokens;
    CHECK(say(program, "/fork hats") ==
          "Now on 2 hats: " + std::to_string(end) + " tokens, 1 turn, \"" + kSum + "\"\n");
    CHECK(say(program, kHat) == want_fork[1]);
    TurnFigures figures = stats_of(program);
    CHECK(figures.source == "live session");
    CHECK(figures.reused == end);
    CHECK(figures.encoder_replayed == 0);

    CHECK(begins(say(program, "/switch main"), "Now on 1 main: " + std::to_string(end) + " tokens, 1 turn,"));
    CHECK(say(program, kColour) == want_main[1]);
    figures = stats_of(program);
    CHECK(figures.source == "live session");
    CHECK(figures.reused == end);
    CHECK(begins(say(program, "/switch 2"), "Now on 2 hats"));
    CHECK(say(program, kSum) == want_fork[2]);
    CHECK(stats_of(program).source == "live session");
    CHECK(begins(say(program, "/switch 1"), "Now on 1 main"));
    CHECK(say(program, kSpell) == want_main[2]);
    CHECK(stats_of(program).source == "live session");

    const std::string list = say(program, "/branches");
    CHECK(contains(list, "* 1 main: "));
    CHECK(contains(list, std::string("3 turns, \"") + kSpell + "\"\n"));
    CHECK(contains(list, "  2 hats: "));
    CHECK(contains(list, std::string("3 turns, \"") + kSum + "\"\n"));
    CHECK(say(program, "/switch") == list);
    const PoolFigures pool = pool_figures(program);
    CHECK(pool.n_private == 2);  // each branch's last page
    CHECK(pool.n_sealed >= 2);   // of the system prompt, once for both
    quit(program);
  }

  TEST_CASE("a branch needs a name of its own, and switching to one that is not there changes nothing") {
    PtyProgram program(chat_command({"--greedy"}));
    start(program);
    CHECK(begins(say(program, "/fork"), "Now on 2 2: 0 tokens, 0 turns\n"));
    CHECK(say(program, "/fork main") == "No branch was made: there is a branch main already.\n");
    CHECK(say(program, "/fork 7") == "No branch was made: a name of digits alone would be taken for a number.\n");
    CHECK(say(program, "/fork two words") == "No branch was made: a name is one word.\n");
    CHECK(say(program, "/switch nowhere") == "There is no branch nowhere. /branches lists them.\n");
    CHECK(say(program, "/branches") == "  1 main: 0 tokens, 0 turns\n* 2 2: 0 tokens, 0 turns\n");
    quit(program);
  }

  TEST_CASE("more branches than the pool has windows for: the oldest gives way and comes back without replay") {
    const std::vector<std::string> options = {"--greedy", "--max-tokens", "2", "--system", kLongSystem};
    const std::vector<std::string> want = cold_talk(options, {kSum, kColour});
    PtyProgram program(chat_command(options));
    start(program);
    CHECK(say(program, kSum) == want[0]);
    const TurnFigures first = stats_of(program);
    const std::string notice = "The KV pool is full: branch main gives up its memory.";
    for (int number = 2; number <= 17; ++number) {  // the pool's default is 16 windows
      CAPTURE(number);
      say(program, "/fork");
      const std::string answer = say(program, kSum);
      CHECK(contains(answer, notice) == (number == 17));
      CHECK(!contains(answer, "POOL_FULL"));
    }
    CHECK(begins(say(program, "/switch main"), "Now on 1 main: 0 tokens, 1 turn,"));
    CHECK(contains(say(program, kColour), want[1]));
    const TurnFigures figures = stats_of(program);
    CHECK(figures.source == "window in memory");
    CHECK(figures.reused == first.n_tokens + first.answer_tokens);
    CHECK(figures.encoder_replayed == 0);
    CHECK(figures.decoder_replayed == 0);
    quit(program);
  }

  TEST_CASE("a pool that fills up in the middle of an answer makes room and goes on with the answer") {
    // 17 pages: 16 for the first branch, one for the second, whose seventh turn begins in its first page.
    const std::string system = repeated("Bob has a red ball. ", 280);
    const std::vector<std::string> turns = {kColour, kColour, kColour, kSum, kSum, kSum, kSum};
    const std::vector<std::string> want = cold_talk({"--greedy"}, turns);
    PtyProgram program(chat_command({"--greedy", "--pool", "128", "--system", system}));
    start(program);
    say(program, kSum);
    const PoolFigures before = pool_figures(program);
    REQUIRE(before.n_pages == 17);
    REQUIRE(before.n_free == 1);
    say(program, "/fork b");
    say(program, "/reset");
    say(program, "/system off");
    for (size_t i = 0; i + 1 < turns.size(); ++i) CHECK(say(program, turns[i]) == want[i]);
    const std::string answer = say(program, turns.back());
    const size_t notice = answer.find("\nThe KV pool is full: branch main gives up its memory."),
                 end = answer.find("back.\n");
    REQUIRE_MESSAGE(notice != std::string::npos, answer);
    REQUIRE(end != std::string::npos);
    CHECK(notice > 0);  // some of the answer came before it
    CHECK(answer.substr(0, notice) + answer.substr(end + 6) == want.back());
    CHECK(pool_figures(program).n_cached >= 14);  // what the first branch held is still there
    quit(program);
  }

  TEST_CASE("a prompt for which the pool is too small is explained, and the talk goes on") {
    PtyProgram program(chat_command({"--greedy", "--pool", "128", "--system", repeated("Bob has a red ball. ", 320)}));
    start(program);
    const std::string refusal = say(program, kSum);
    CHECK(begins(refusal, "POOL_FULL: "));
    CHECK(contains(refusal, "--pool sets the pool's size"));
    CHECK(contains(refusal, "Your message was taken back."));
    CHECK(pool_figures(program).n_free == 17);
    say(program, "/system off");
    CHECK(say(program, kSum) == greedy_answer(kSum) + "\n");
    quit(program);
  }

  TEST_CASE("the system prompt can be set, shown and removed") {
    PtyProgram program(chat_command({"--greedy"}));
    start(program);
    CHECK(say(program, "/system Give short answers.") == "System prompt: Give short answers.\n");
    CHECK(say(program, "/system") == "System prompt: Give short answers.\n");
    CHECK(say(program, "/system off") == "No system prompt.\n");
    CHECK(say(program, "/nonsense") == "There is no command /nonsense. /help lists them.\n");
    CHECK(say(program, "/help").find("/regenerate") != std::string::npos);
    program.type("\x04");
    CHECK(program.exit_code() == 0);
  }

  TEST_CASE("Ctrl-C stops the answer, and the talk goes on") {
    // So hot that any token is as likely as any other: a reply of thousands of tokens.
    PtyProgram program(chat_command({"--temp", "100000", "--seed", "3"}));
    start(program);
    program.type_line("Tell me a story.");
    REQUIRE(program.expect("Tell me a story.\n"));
    REQUIRE(program.expect(" "));  // the first words
    program.press_ctrl_c();
    REQUIRE_MESSAGE(program.expect("Stopped.\n"), program.transcript());
    wait_for_prompt(program);
    CHECK(say(program, "/stats").find("seed        3") != std::string::npos);
    CHECK(begins(say(program, "/undo"), "Taken back: Tell me a story.\n"));
    program.type_line("/quit");
    CHECK(program.exit_code() == 0);
  }

  TEST_CASE("Ctrl-C at the prompt drops the line, and twice in a row leaves") {
    PtyProgram program(chat_command({"--greedy"}));
    start(program);
    program.type("half a line");
    REQUIRE_MESSAGE(program.expect("half a line"), program.transcript());
    program.press_ctrl_c();
    REQUIRE_MESSAGE(program.expect("Ctrl-C again leaves"), program.transcript());
    wait_for_prompt(program);
    // Not glued to the dropped line; and what comes in between starts the count anew.
    CHECK(say(program, "/system") == "No system prompt.\n");
    program.press_ctrl_c();
    REQUIRE_MESSAGE(program.expect("Ctrl-C again leaves"), program.transcript());
    wait_for_prompt(program);
    program.press_ctrl_c();
    CHECK(program.exit_code() == 130);
  }

  TEST_CASE("Ctrl-C ends a one-shot answer with its own exit code") {
    PtyProgram program(chat_command({"--temp", "100000", "--seed", "3", "-p", "Tell me a story."}));
    REQUIRE_MESSAGE(program.expect(" "), program.transcript());
    program.press_ctrl_c();
    CHECK(program.exit_code() == 130);
  }

  TEST_CASE("typed lines are kept in the history file and come back with the arrow key") {
    const Scratch scratch;
    const std::string file = (scratch.path / "history").string();
    const auto command = chat_command({"--greedy", "--history", file});
    {
      PtyProgram program(command);
      start(program);
      CHECK(say(program, "/system Be 小红.") == "System prompt: Be 小红.\n");
      program.type_line("/quit");
      REQUIRE(program.exit_code() == 0);
    }
    PtyProgram program(command);
    start(program);
    program.type("\x1b[A\x1b[A\r");  // past /quit
    CHECK_MESSAGE(program.expect("System prompt: Be 小红."), program.transcript());
    program.type_line("/quit");
    CHECK(program.exit_code() == 0);
  }

  TEST_CASE("a line that ends in a backslash goes on in the next one") {
    PtyProgram program(chat_command({"--greedy"}));
    start(program);
    program.type_line("What is\\");
    REQUIRE_MESSAGE(program.expect(". "), program.transcript());
    say(program, "4 + 5?");
    CHECK(begins(say(program, "/undo"), "Taken back: What is\n4 + 5?\n"));
    program.type_line("/quit");
    CHECK(program.exit_code() == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
