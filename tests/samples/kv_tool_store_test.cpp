// dsv41-kv on stores, as those meet it who look after one. The stores are made by dsv41-chat on the nano model.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "samples/chat_store_folder.h"

namespace dsv41::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json json_of(const std::vector<std::string>& arguments) {
  const ProgramOutput result = kv_tool(arguments);
  REQUIRE_MESSAGE(result.exit_code == 0, result.out, result.err);
  return json::parse(result.out);
}

// Key of the first record of a kind, in the order of `list`.
std::string key_of(const StoreFolder& folder, const std::string& kind) {
  for (const json& record : json_of({"list", "--json", folder.store}))
    if (record["kind"] == kind) return record["key"];
  FAIL("no " << kind);
  return {};
}

TEST_SUITE("samples/kv_tool_store") {
  TEST_CASE("list and info tell what a store holds") {
    const StoreFolder folder;
    folder.fill();
    const json records = json_of({"list", "--json", folder.store});
    REQUIRE(records.size() == 3);
    CHECK(records[0]["kind"] == "page");
    CHECK(records[0]["parent"].is_null());
    CHECK(records[1]["parent"] == records[0]["key"]);
    CHECK(records[1]["end_token"] == 256);
    CHECK(records[2]["kind"] == "state");
    CHECK(records[2]["first_token"] == 256);
    const ProgramOutput list = kv_tool({"list", folder.store});
    CHECK_MESSAGE(contains(list.out, records[0]["key"].get<std::string>() + " page, tokens 0 to 128"), list.out);
    const json info = json_of({"info", "--json", folder.store});
    CHECK(info["n_pages"] == 2);
    CHECK(info["n_states"] == 1);
    CHECK(info["records_by_model"].size() == 1);
    CHECK(contains(kv_tool({"info", folder.store}).out, "2 pages, 1 state"));
  }

  TEST_CASE("dump shows a record with what lies below and above it, by the first digits of its key") {
    const StoreFolder folder;
    folder.fill();
    const json records = json_of({"list", "--json", folder.store});
    const json page = json_of({"dump", folder.store, records[1]["key"].get<std::string>().substr(0, 12)});
    CHECK(page["below"] == json::array({records[0]["key"]}));
    CHECK(page["above"] == json::array({records[2]["key"]}));
    const json state = json_of({"dump", folder.store, records[2]["key"]});
    CHECK(state["below"] == json::array({records[0]["key"], records[1]["key"]}));
    CHECK(state["parts"].size() > 0);
    CHECK(kv_tool({"dump", folder.store}).exit_code == 2);
    CHECK(kv_tool({"dump", folder.store, "0000000000000000"}).exit_code == 3);
  }

  TEST_CASE("verify finds a flipped bit of a state, and says which it is") {
    const StoreFolder folder;
    folder.fill();
    CHECK(contains(kv_tool({"verify", folder.store}).out, "intact: 3 records"));
    CHECK(kv_tool({"verify", "--deep", folder.store}).exit_code == 0);
    const std::string state = key_of(folder, "state");
    flip_bit(folder.state(), fs::file_size(folder.state()) / 2);
    const ProgramOutput deep = kv_tool({"verify", "--deep", folder.store});
    CHECK(deep.exit_code == 4);
    CHECK_MESSAGE(contains(deep.out, "damaged: 1 of 3 records, the first is " + state), deep.out);
    const ProgramOutput as_json = kv_tool({"verify", "--deep", "--json", folder.store});
    CHECK(as_json.exit_code == 4);
    CHECK(json::parse(as_json.out)["first_bad"] == state);
    CHECK(json::parse(as_json.out)["intact"] == false);
    CHECK(kv_tool({"list", folder.store}).exit_code == 0);  // reading sets nothing aside
    CHECK(json_of({"list", "--json", folder.store}).size() == 3);
  }

  TEST_CASE("verify tells of a page that is no record any more, whether its head or its body is damaged") {
    const StoreFolder folder;
    folder.fill();
    const std::string whole = bytes_of(folder.segment());
    for (const size_t offset : {size_t{64 + 40}, whole.size() / 4}) {
      CAPTURE(offset);
      write_bytes(folder.segment(), whole);
      flip_bit(folder.segment(), offset);
      const ProgramOutput verify = kv_tool({"verify", folder.store});
      CHECK(verify.exit_code == 4);
      CHECK_MESSAGE(contains(verify.out, "damaged: 1 place"), verify.out);
      CHECK(contains(kv_tool({"info", folder.store}).out, "damaged    1 place"));
    }
    write_bytes(folder.segment(), whole);
    CHECK(kv_tool({"verify", "--deep", folder.store}).exit_code == 0);
  }

  TEST_CASE("what is pinned outlives gc until it is unpinned") {
    const StoreFolder folder;
    folder.fill();
    const std::string page = key_of(folder, "page");
    CHECK(kv_tool({"pin", folder.store, page, "--reason", "system prompt"}).exit_code == 0);
    CHECK(contains(kv_tool({"list", folder.store}).out, "pinned: system prompt"));
    CHECK(kv_tool({"remove", folder.store, page}).exit_code == 1);
    const json gc = json_of({"gc", folder.store, "--to", "0", "--json"});
    CHECK(gc["n_evicted"] == 2);
    CHECK(json_of({"list", "--json", folder.store}).size() == 1);
    CHECK(kv_tool({"unpin", folder.store, page}).exit_code == 0);
    CHECK(kv_tool({"unpin", folder.store, page}).exit_code == 1);
    CHECK(contains(kv_tool({"gc", folder.store, "--to", "0"}).out, "for room: 1"));
    CHECK(contains(kv_tool({"list", folder.store}).out, "is empty"));
  }

  TEST_CASE("gc leaves a store alone that is small enough, and reads sizes with units") {
    const StoreFolder folder;
    folder.fill();
    const json gc = json_of({"gc", folder.store, "--to", "1G", "--json"});
    CHECK(gc["n_evicted"] == 0);
    CHECK(json_of({"list", "--json", folder.store}).size() == 3);
    CHECK(kv_tool({"gc", folder.store}).exit_code == 2);
    CHECK(kv_tool({"gc", folder.store, "--to", "much"}).exit_code == 2);
  }

  TEST_CASE("remove takes a record and what stands on it out of the store for good") {
    const StoreFolder folder;
    folder.fill();
    const std::string state = key_of(folder, "state");
    CHECK(kv_tool({"remove", folder.store, state}).exit_code == 0);
    CHECK(json_of({"list", "--json", folder.store}).size() == 2);
    CHECK(kv_tool({"remove", folder.store, state}).exit_code == 3);
    CHECK(contains(kv_tool({"remove", folder.store, key_of(folder, "page")}).out, "what stood on it: 1 record"));
    CHECK(json_of({"list", "--json", folder.store}).empty());
  }

  TEST_CASE("while a program writes the store, looking works and changing is refused") {
    const StoreFolder folder;
    folder.fill();
    const std::string page = key_of(folder, "page");
    PtyProgram program(folder.command());
    start(program);
    for (const char* command : {"list", "info", "verify"}) {
      CAPTURE(command);
      CHECK(kv_tool({command, folder.store}).exit_code == 0);
    }
    CHECK(kv_tool({"dump", folder.store, page}).exit_code == 0);
    const std::vector<std::vector<std::string>> changes = {{"gc", folder.store, "--to", "0"},
                                                           {"pin", folder.store, page},
                                                           {"unpin", folder.store, page},
                                                           {"remove", folder.store, page}};
    for (const std::vector<std::string>& change : changes) {
      CAPTURE(change[0]);
      const ProgramOutput result = kv_tool(change);
      CHECK(result.exit_code == 6);
      CHECK_MESSAGE(contains(result.err, "another program writes this store"), result.err);
    }
    quit(program);
    CHECK(json_of({"list", "--json", folder.store}).size() == 3);
  }

  TEST_CASE("a path without a store is told, and never becomes one") {
    const StoreFolder folder;
    CHECK(kv_tool({"info", folder.store}).exit_code == 3);
    CHECK(kv_tool({"gc", folder.store, "--to", "0"}).exit_code == 3);
    CHECK(kv_tool({"pin", folder.store, "00"}).exit_code == 3);
    CHECK(!fs::exists(folder.store));
    fs::create_directories(folder.store);
    CHECK(kv_tool({"verify", folder.store}).exit_code == 3);
    CHECK(kv_tool({"remove", folder.store, "00"}).exit_code == 3);
    CHECK(fs::is_empty(folder.store));
  }
}

}  // namespace
}  // namespace dsv41::test
