// /save, /load, /list and --resume of dsv41-chat as its users meet them, and dsv41-kv on the files, on the nano model.
#include <doctest/doctest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "samples/chat_talk.h"

namespace dsv41::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHat = "Bob has a red hat. Bob gives the hat to Anna. Who has the hat?";
constexpr const char* kSum = "What is 4 + 5?";

struct Folder {
  Scratch scratch;
  std::string saves = (scratch.path / "saves").string();

  std::vector<std::string> command(std::vector<std::string> arguments = {}) const {
    arguments.insert(arguments.end(), {"--greedy", "--saves", saves});
    return chat_command(arguments);
  }
  std::string file(const std::string& name) const { return saves + "/" + name + ".dsv41"; }
};

// A talk of one message, saved as "hat".
void save_hat(const Folder& folder) {
  PtyProgram program(folder.command());
  start(program);
  say(program, kHat);
  const std::string saved = say(program, "/save hat");
  REQUIRE_MESSAGE(contains(saved, "Saved as hat"), saved);
  quit(program);
}

TEST_SUITE("samples/chat_saves") {
  TEST_CASE("a saved conversation goes on in another process: the same answer, nothing computed but the new tokens") {
    const Folder folder;
    std::string want;
    {
      PtyProgram program(folder.command());
      start(program);
      say(program, kHat);
      CHECK(contains(say(program, "/save hat"), "full: goes on bit for bit"));
      want = say(program, kSum);
      quit(program);
    }
    PtyProgram program(folder.command());
    start(program);
    const std::string loaded = say(program, "/load hat");
    CHECK_MESSAGE(contains(loaded, "replays 0 through the encoder and 0 through the decoder"), loaded);
    CHECK(say(program, kSum) == want);
    const std::string stats = say(program, "/stats");
    CAPTURE(stats);
    CHECK(contains(stats, "live session, hit at 33 of 45 tokens"));
    CHECK(contains(stats, "replayed  0 encoder, 0 decoder"));
    CHECK(contains(stats, "loaded      33 of 33 tokens, full"));
    CHECK(contains(say(program, "/list"), "hat: 33 tokens"));
    quit(program);
  }

  TEST_CASE("a loaded conversation draws what it would have drawn") {
    const Folder folder;
    const std::vector<std::string> command =
        chat_command({"--temp", "1.5", "--max-tokens", "40", "--saves", folder.saves});
    std::string want;
    {
      PtyProgram program(command);
      start(program);
      say(program, kSum);
      say(program, "/save drawn");
      want = say(program, "Tell me a story.");
      quit(program);
    }
    PtyProgram program(command);
    start(program);
    say(program, "/load drawn");
    CHECK(say(program, "Tell me a story.") == want);
    quit(program);
  }

  TEST_CASE("leaving keeps the conversation, and --resume goes on with it") {
    const Folder folder;
    {
      PtyProgram program(folder.command());
      start(program);
      say(program, kHat);
      quit(program);
    }
    CHECK(fs::exists(folder.file("last")));
    PtyProgram program(folder.command({"--resume"}));
    const std::string greeting = start(program);
    CHECK_MESSAGE(contains(greeting, "33 tokens, 1 turn"), greeting);
    quit(program);
  }

  TEST_CASE("a loaded conversation does not take the place of the one that is going on") {
    const Folder folder;
    save_hat(folder);
    PtyProgram program(folder.command());
    start(program);
    say(program, kSum);
    CHECK(contains(say(program, "/load hat"), "Now on 2 hat"));
    const std::string branches = say(program, "/branches");
    CAPTURE(branches);
    CHECK(contains(branches, "  1 main: 20 tokens, 1 turn"));
    CHECK(contains(branches, "* 2 hat: 33 tokens, 1 turn"));
    quit(program);
  }

  TEST_CASE("names that are no names are refused, write nothing, and the talk goes on") {
    const Folder folder;
    PtyProgram program(folder.command());
    start(program);
    CHECK(contains(say(program, "/save early"), "There is nothing to save"));
    say(program, kSum);
    for (const std::string& name :
         {std::string(), std::string("../x"), std::string("a/b"), std::string("/tmp/x"), std::string("."),
          std::string(".hidden"), std::string("two words"), std::string("a\\b"), std::string(65, 'n')}) {
      CAPTURE(name);
      CHECK(contains(say(program, "/save " + name), "/save NAME: "));
      CHECK(contains(say(program, "/load " + name), "/load NAME: "));
    }
    CHECK(contains(say(program, "/load nobody"), "NOT_FOUND"));
    CHECK(contains(say(program, "/list"), "Nothing is saved"));
    CHECK_FALSE(fs::exists(folder.saves));
    CHECK(contains(say(program, kSum), "9"));
    quit(program);
  }

  TEST_CASE("damaged KV memory brings the messages back, and the next answer computes the rest again") {
    const Folder folder;
    save_hat(folder);
    std::string bytes = bytes_of(folder.file("hat"));
    REQUIRE(bytes.size() > 4000);
    bytes[3000] = static_cast<char>(bytes[3000] ^ 0x55);
    write_bytes(folder.file("hat"), bytes);
    PtyProgram program(folder.command());
    start(program);
    const std::string loaded = say(program, "/load hat");
    CHECK_MESSAGE(contains(loaded, "The messages are back, but not the tokens (CHECKSUM"), loaded);
    CHECK(contains(say(program, kSum), "9"));
    const std::string stats = say(program, "/stats");
    CAPTURE(stats);
    CHECK(contains(stats, "hit at 0 of 45 tokens"));
    CHECK(contains(stats, "loaded      0 of 33 tokens"));
    quit(program);
  }

  TEST_CASE("files that are cut off, foreign or empty are explained, and the talk goes on") {
    const Folder folder;
    save_hat(folder);
    const std::string bytes = bytes_of(folder.file("hat"));
    write_bytes(folder.file("half"), bytes.substr(0, bytes.size() / 2));
    write_bytes(folder.file("empty"), "");
    write_bytes(folder.file("foreign"), std::string(10000, 'x'));
    PtyProgram program(folder.command());
    start(program);
    for (const char* name : {"half", "empty", "foreign"}) {
      CAPTURE(name);
      CHECK(contains(say(program, std::string("/load ") + name), "Not loaded. "));
    }
    const std::string list = say(program, "/list");
    CAPTURE(list);
    CHECK(contains(list, "half: cannot be loaded"));
    CHECK(contains(list, "hat: 33 tokens"));
    CHECK(contains(say(program, kSum), "9"));
    quit(program);
  }

  TEST_CASE("a save that cannot be written says so and leaves the talk as it was") {
    const Folder folder;
    write_bytes(folder.saves, "a file where the folder should be");
    PtyProgram program(folder.command());
    start(program);
    say(program, kSum);
    CHECK(contains(say(program, "/save sum"), "Not saved. "));
    CHECK(contains(say(program, "/list"), "Cannot read"));
    CHECK(contains(say(program, kSum), "9"));
    program.type_line("/quit");
    CHECK(program.exit_code() == 0);
    CHECK(bytes_of(folder.saves) == "a file where the folder should be");
  }

  TEST_CASE("whenever the program is killed in a save, the file is the old one or the new one, whole") {
    const Folder folder;
    save_hat(folder);
    for (int wait_us = 0; wait_us <= 20000; wait_us += 4000) {
      CAPTURE(wait_us);
      {
        PtyProgram program(folder.command({"--resume=hat"}));  // its destructor kills
        start(program);
        program.type_line("/save hat");
        REQUIRE(program.expect("/save hat\n"));
        std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
      }
      const ProgramOutput verify = kv_tool({"verify", "--deep", folder.file("hat")});
      CHECK_MESSAGE(verify.exit_code == 0, verify.out, verify.err);
    }
  }

  TEST_CASE("dsv41-kv tells what a save holds and dumps the conversation") {
    const Folder folder;
    save_hat(folder);
    const ProgramOutput info = kv_tool({"info", "--json", folder.file("hat")});
    REQUIRE_MESSAGE(info.exit_code == 0, info.err);
    CHECK(nlohmann::json::parse(info.out)["n_tokens"] == 33);
    CHECK(nlohmann::json::parse(info.out)["kind"] == "full");
    const ProgramOutput dump = kv_tool({"dump", folder.file("hat")});
    REQUIRE_MESSAGE(dump.exit_code == 0, dump.err);
    const nlohmann::json all = nlohmann::json::parse(dump.out);
    CHECK(all["tokens"].size() == 33);
    CHECK(all["host"][0]["json"]["turns"][0]["content"] == kHat);
    CHECK(contains(kv_tool({"list", folder.saves}).out, "hat.dsv41: 33 tokens, full"));
    CHECK(contains(kv_tool({"verify", folder.file("hat")}).out, "intact"));
  }

  TEST_CASE("dsv41-kv has an exit code for each way in which a file can be wrong") {
    const Folder folder;
    save_hat(folder);
    std::string bytes = bytes_of(folder.file("hat"));
    write_bytes(folder.file("half"), bytes.substr(0, bytes.size() / 2));
    bytes[3000] = static_cast<char>(bytes[3000] ^ 0x55);
    write_bytes(folder.file("flipped"), bytes);
    CHECK(kv_tool({"verify", folder.file("flipped")}).exit_code == 4);
    CHECK(contains(kv_tool({"verify", folder.file("flipped")}).out, "damaged"));
    CHECK(kv_tool({"info", folder.file("half")}).exit_code == 4);
    CHECK(kv_tool({"info", folder.file("nobody")}).exit_code == 3);
    CHECK(kv_tool({"list", folder.saves + "/nowhere"}).exit_code == 3);
    CHECK(kv_tool({"list", folder.saves}).exit_code == 4);
    CHECK(kv_tool({"list"}).exit_code == 2);
    CHECK(kv_tool({}).exit_code == 2);
  }
}

}  // namespace
}  // namespace dsv41::test
