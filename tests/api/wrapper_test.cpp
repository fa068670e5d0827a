// dsv41.hpp: what it adds to the C API.
#include <doctest/doctest.h>

#include <stdexcept>
#include <type_traits>

#include "api/nano_api.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

TEST_SUITE("api/wrapper") {
  TEST_CASE("handles are moved and never copied") {
    CHECK_FALSE(std::is_copy_constructible_v<Session>);
    CHECK(std::is_nothrow_move_constructible_v<Session>);
    CHECK(std::is_nothrow_move_assignable_v<Model>);
    Pool pool(nano_model());
    Session first(pool);
    first.prefill({5, 6, 7});
    Session second(std::move(first));
    CHECK(second.info().position == 3);
    first = Session(pool);
    CHECK(first.info().position == 0);
    CHECK(pool.stats().n_sessions == 2);
  }

  TEST_CASE("a failed call throws Error with code, place and message") {
    try {
      Model model(nano_runtime(), "/no/such/folder");
      FAIL("no exception");
    } catch (const Error& error) {
      CHECK(error.status() == DSV41_NOT_FOUND);
      CHECK(std::string(error.name()) == "NOT_FOUND");
      CHECK(error.place() == "dsv41_model_open");
      CHECK(std::string(error.what()).find("dsv41_model_open: ") == 0);
      CHECK(std::string(error.what()).find("/no/such/folder") != std::string::npos);
    }
  }

  TEST_CASE("an exception of a token callback comes out unchanged and the session stays usable") {
    Pool pool(nano_model());
    Session session(pool);
    Sampler sampler(nano_model());
    session.prefill(chat_prompt(nano_model(), "What is 4 + 5?"));
    const uint64_t before = session.info().position;
    CHECK_THROWS_WITH_AS(
        session.generate(sampler, [](const dsv41_token_event&) -> bool { throw std::runtime_error("mine"); }), "mine",
        std::runtime_error);
    CHECK(session.info().position == before + 1);
    session.generate(sampler);
  }

  TEST_CASE("an exception of a progress callback comes out unchanged") {
    Pool pool(nano_model());
    Session session(pool);
    CHECK_THROWS_WITH_AS(session.prefill(filler_tokens(nano_model(), 5),
                                         [](const dsv41_progress&) -> bool { throw std::runtime_error("mine"); }),
                         "mine", std::runtime_error);
    CHECK(session.info().position == 0);
    try {
      session.prefill(filler_tokens(nano_model(), 5), [](const dsv41_progress&) { return false; });
      FAIL("no exception");
    } catch (const Error& error) {
      CHECK(error.status() == DSV41_HOST_CALLBACK);
    }
  }

  TEST_CASE("a conversation is saved and goes on, as the head of dsv41.hpp shows") {
    TempFolder folder;
    Pool pool(nano_model());
    Session session(pool);
    session.prefill(chat_prompt(nano_model(), "What is 4 + 5?"));
    session.save(folder.file("chat.dsv41"));
    Session again = Snapshot::open_file(nano_runtime(), folder.file("chat.dsv41")).restore(pool);
    CHECK(again.digest() == session.digest());
    const Bytes bytes = session.save();
    const Snapshot snapshot = Snapshot::open_buffer(nano_runtime(), bytes);
    CHECK(snapshot.tokens() == session.tokens());
    CHECK(snapshot.verify().is_intact == 1);
    try {
      Snapshot::open_file(nano_runtime(), folder.file("none"));
      FAIL("no exception");
    } catch (const Error& error) {
      CHECK(error.status() == DSV41_NOT_FOUND);
      CHECK(std::string(error.what()).find("none") != std::string::npos);
    }
  }

  TEST_CASE("build info names the backends and this machine's targets") {
    const dsv41_build_info info = build_info();
    CHECK(std::string(info.version) == dsv41_version_string());
    CHECK(std::string(info.backends) == "cpu,ref");
    CHECK(std::string(info.cpu_targets).find("scalar") == 0);
    CHECK(info.abi_version == dsv41_abi_version());
    CHECK(std::string(info.codecs) == "none,zstd");
    CHECK(info.snapshot_major >= info.snapshot_oldest_major);
    CHECK(info.snapshot_oldest_major == 1);
  }
}

}  // namespace
}  // namespace dsv41::test
