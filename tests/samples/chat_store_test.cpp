// --store of dsv41-chat as its users meet it, on the nano model: conversations that go on in another process, two
// programs on one folder, damage, and kills.
#include <doctest/doctest.h>

#include <chrono>
#include <regex>
#include <thread>

#include "samples/chat_store_folder.h"

namespace dsv41::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHat = "Bob has a red hat. Bob gives the hat to Anna. Who has the hat?";
constexpr const char* kSum = "What is 4 + 5?";

// What /stats says of the last turn and the store.
struct StoreFigures {
  std::string source;
  int n_tokens = -1, computed = -1, replayed = -1, from_store = -1;
  double kib_read = -1;
  std::string result;
};

StoreFigures store_figures(PtyProgram& program) {
  static const std::regex pattern(
      "last turn +source +(.*), hit at \\d+ of (\\d+) tokens\n.*\n +computed +(\\d+) encoder.*\n +replayed +(\\d+) "
      "encoder.*\n.*\n +result +(.*);[\\s\\S]*\nstore +read +last turn (\\d+) tokens, ([0-9.]+) KiB");
  const std::string stats = say(program, "/stats");
  std::smatch match;
  REQUIRE_MESSAGE(std::regex_search(stats, match, pattern), stats);
  const auto number = [&](size_t i) { return std::stoi(match[i].str()); };
  return {match[1], number(2), number(3), number(4), number(6), std::stod(match[7].str()), match[5]};
}

// The answers of a talk without a store.
std::vector<std::string> answers_without_store(const std::vector<std::string>& options,
                                               const std::vector<std::string>& messages) {
  std::vector<std::string> arguments = options;
  arguments.push_back("--greedy");
  PtyProgram program(chat_command(arguments));
  start(program);
  std::vector<std::string> answers;
  for (const std::string& message : messages) answers.push_back(say(program, message));
  quit(program);
  return answers;
}

TEST_SUITE("samples/chat_store") {
  TEST_CASE("a conversation that is resumed takes its tokens from the store and goes on bit for bit") {
    const StoreFolder folder;
    const std::vector<std::string> system = {"--system", kLongSystem};
    const std::vector<std::string> want = answers_without_store(system, {kHat, kSum});
    {
      PtyProgram program(folder.command(system));
      CHECK(contains(start(program), "0 pages, 0 states"));
      CHECK(say(program, kHat) == want[0]);
      CHECK(store_figures(program).from_store == 0);
      quit(program);
    }
    for (const bool by_command : {false, true}) {
      CAPTURE(by_command);
      PtyProgram program(
          folder.command(by_command ? std::vector<std::string>{} : std::vector<std::string>{"--resume"}));
      std::string greeting = start(program);
      if (by_command) greeting = say(program, "/load last");
      CHECK_MESSAGE(contains(greeting, "The messages are back"), greeting);
      CHECK(say(program, kSum) == want[1]);
      const StoreFigures figures = store_figures(program);
      CHECK(figures.source == "store");
      CHECK(figures.from_store > 300);
      CHECK(figures.from_store + figures.computed == figures.n_tokens);
      CHECK(figures.computed < 30);
      CHECK(figures.replayed == 0);
      CHECK(figures.kib_read > 0);
      CHECK(figures.result == "bit-identical");
      say(program, "/undo");  // what it leaves is what the other one finds
      quit(program);
    }
  }

  TEST_CASE("a conversation that begins with the same text takes its full pages from the store") {
    const StoreFolder folder;
    folder.fill();
    PtyProgram program(folder.command({"--system", kLongSystem}));
    CHECK(contains(start(program), "2 pages, 1 state"));
    say(program, kHat);
    const StoreFigures figures = store_figures(program);
    CHECK(figures.source == "store");
    CHECK(figures.from_store == 256);
    CHECK(figures.computed == figures.n_tokens - 256);
    CHECK(figures.replayed == 128);
    CHECK(figures.result == "approximate");
    quit(program);
  }

  TEST_CASE("what is asked again in another process gets the same answer, and says nothing on stderr") {
    const StoreFolder folder;
    const ProgramOutput first = run_program(folder.command({"-p", kHat}));
    const ProgramOutput second = run_program(folder.command({"-p", kHat}));
    CHECK(first.exit_code == 0);
    CHECK(second.exit_code == 0);
    CHECK(first.out == second.out);
    CHECK(second.err == "");
  }

  TEST_CASE("a program that is killed has lost nothing that was answered") {
    const StoreFolder folder;
    const std::vector<std::string> want = answers_without_store({}, {kHat, kSum});
    {
      PtyProgram program(folder.command());  // its destructor kills
      start(program);
      say(program, kHat);
      folder.wait_for_states(1);
    }
    PtyProgram program(folder.command({"--resume"}));
    CHECK(contains(start(program), "1 turn"));
    CHECK(say(program, kSum) == want[1]);
    CHECK(store_figures(program).from_store == 33);
    quit(program);
  }

  TEST_CASE("whenever the program is killed in an answer, the next one opens the store and answers the same") {
    const StoreFolder folder;
    const std::vector<std::string> system = {"--system", kLongSystem};
    const std::string want = answers_without_store(system, {kSum})[0];
    for (int wait_ms = 0; wait_ms <= 400; wait_ms += 40) {
      CAPTURE(wait_ms);
      fs::remove_all(folder.store);
      {
        PtyProgram program(folder.command(system));
        start(program);
        program.type_line(kSum);
        std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
      }
      PtyProgram program(folder.command(system));
      const std::string greeting = start(program);
      CHECK_MESSAGE(!contains(greeting, "LOCKED"), greeting);
      const std::string answer = say(program, kSum);
      // With pages of the store, but without the state, it replays: approximate, and for this question the same.
      CHECK(answer == want);
      quit(program);
      const ProgramOutput verify = kv_tool({"verify", "--deep", folder.store});
      CHECK_MESSAGE(verify.exit_code == 0, verify.out, verify.err);
    }
  }

  TEST_CASE("a second program on the same folder reads what the first one writes, and says so") {
    const StoreFolder folder;
    const std::vector<std::string> system = {"--system", kLongSystem};
    PtyProgram writer(folder.command(system));
    start(writer);
    PtyProgram reader(folder.command(system));
    REQUIRE(reader.expect("Another program writes the store " + folder.store + " (LOCKED)"));
    start(reader);
    const std::string want = say(writer, kSum);
    folder.wait_for_states(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // a reader looks for news once in a second
    say(reader, kHat);
    CHECK(store_figures(reader).from_store == 256);
    CHECK(contains(say(reader, "/stats"), "read only"));
    quit(writer);
    quit(reader);
    CHECK(contains(kv_tool({"info", folder.store}).out, "2 pages, 1 state"));  // nothing of the reader's
  }

  TEST_CASE("a damaged page or state is computed again, and the talk goes on") {
    for (const bool page : {true, false}) {
      CAPTURE(page);
      const StoreFolder folder;
      const std::vector<std::string> system = {"--system", kLongSystem};
      const std::vector<std::string> want = answers_without_store(system, {kHat, kSum});
      {
        PtyProgram program(folder.command(system));
        start(program);
        say(program, kHat);
        quit(program);
      }
      const std::string file = page ? folder.segment() : folder.state();
      flip_bit(file, fs::file_size(file) / 4);
      PtyProgram program(folder.command({"--resume"}));
      start(program);
      const std::string answer = say(program, kSum);
      const StoreFigures figures = store_figures(program);
      CHECK(figures.from_store == (page ? 0 : 256));
      CHECK(figures.from_store + figures.computed == figures.n_tokens);
      if (page) CHECK(answer == want[1]);  // without its state a hit is approximate
      CHECK(contains(say(program, "/stats"), "damaged   "));
      CHECK(!say(program, kHat).empty());
      quit(program);
      // The state is set aside; the place in the file of pages stays as it is, and verify goes on to tell of it.
      const ProgramOutput verify = kv_tool({"verify", "--deep", folder.store});
      CHECK_MESSAGE(verify.exit_code == (page ? 4 : 0), verify.out, verify.err);
      CHECK_MESSAGE(contains(verify.out, page ? "no damage in what can be found: " : "intact: "), verify.out);
    }
  }

  TEST_CASE("messages that are damaged or of another program are refused, and the talk goes on") {
    const StoreFolder folder;
    {
      PtyProgram program(folder.command());
      start(program);
      say(program, kHat);
      quit(program);
    }
    const std::string messages = bytes_of(folder.saves + "/last.json");
    write_bytes(folder.saves + "/half.json", messages.substr(0, messages.size() / 2));
    write_bytes(folder.saves + "/foreign.json", "{\"chat\": 1}");
    write_bytes(folder.saves + "/hollow.json", std::regex_replace(messages, std::regex("\"turns\":"), "\"other\":"));
    write_bytes(folder.saves + "/other.json",
                std::regex_replace(messages, std::regex("\"model\":\"."), "\"model\":\"x"));
    PtyProgram program(folder.command());
    start(program);
    for (const char* name : {"half", "foreign", "hollow", "other"}) {
      CAPTURE(name);
      CHECK(contains(say(program, std::string("/load ") + name), "Not loaded"));
    }
    CHECK(contains(say(program, "/list"), "last: messages alone"));
    CHECK(contains(say(program, kSum), "9"));
    quit(program);
  }

  TEST_CASE("of a snapshot and messages with one name the one that was written last is loaded") {
    const StoreFolder folder;
    PtyProgram program(folder.command());
    start(program);
    say(program, kHat);
    CHECK(contains(say(program, "/save last"), "full: goes on bit for bit"));
    CHECK(contains(say(program, "/list"), "last: 33 tokens"));
    CHECK(contains(say(program, "/load last"), "33 tokens are back"));
    say(program, kSum);  // keeps the messages
    CHECK(contains(say(program, "/load last"), "The messages are back"));
    quit(program);
  }

  TEST_CASE("a store that cannot be opened ends the program with a code of its own") {
    const StoreFolder folder;
    write_bytes(folder.store, "a file where the folder should be");
    const ProgramOutput file = run_program(folder.command({"-p", kSum}));
    CHECK(file.exit_code == 6);
    CHECK_MESSAGE(contains(file.err, "cannot open the store in '" + folder.store + "'"), file.err);
    fs::remove(folder.store);
    folder.fill();
    write_bytes(folder.store + "/store", std::string(8192, 'x'));
    CHECK(run_program(folder.command({"-p", kSum})).exit_code == 6);
    CHECK(run_program(folder.command({"--jsonl", "x"})).exit_code == 2);
  }
}

}  // namespace
}  // namespace dsv41::test
