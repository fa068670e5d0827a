// The store on Redis: objects as the library asks for them, and dsv41-redis, which hands a prompt from one process to
// another, on the nano model. Each test case has a server of its own.
#include <doctest/doctest.h>

#include <csignal>
#include <cstring>
#include <map>

#include "samples/redis_server.h"
#include "samples/redis_store/redis_objects.h"

namespace dsv41::test {
namespace {

using dsv41_redis::RedisAddress;
using dsv41_redis::RedisObjects;

constexpr const char* kHat = "Bob has a red hat. Bob gives the hat to Anna. Who has the hat?";
constexpr const char* kSum = "What is 4 + 5?";

// Two full pages and something behind them.
std::string long_prompt() {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "Anna has a blue ball. ";
  return text + kHat;
}

RedisAddress address_of(const RedisServer& server, const std::string& prefix = "test") {
  RedisAddress address;
  address.port = server.port();
  address.prefix = prefix;
  address.timeout = std::chrono::milliseconds(2000);
  std::signal(SIGPIPE, SIG_IGN);
  return address;
}

std::vector<std::string> command(const RedisServer& server, const std::string& verb,
                                 const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {DSV41_REDIS, verb, "--model", kNano, "--port", std::to_string(server.port())};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

// The answer of one process that does both, without Redis.
std::string answer_of_one_process(const std::string& prompt) {
  const ProgramOutput result = run_program(chat_command({"--greedy", "-p", prompt}));
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  return result.out;
}

struct Read {
  int32_t code = -1;
  std::string bytes;
  uint64_t size = 0;
};

Read read_object(RedisObjects& objects, const char* name, uint64_t offset, size_t capacity) {
  Read read;
  read.bytes.resize(capacity);
  size_t n_copied = 0;
  read.code = objects.get(name, offset, read.bytes.data(), capacity, &n_copied, &read.size);
  read.bytes.resize(read.code == 0 ? n_copied : 0);
  return read;
}

struct Listed {
  int32_t code = -1;
  std::multimap<std::string, uint64_t> sizes;
};

Listed list_objects(RedisObjects& objects, const char* prefix) {
  Listed listed;
  const auto visit = [](void* state, const char* name, uint64_t size) {
    static_cast<Listed*>(state)->sizes.emplace(name, size);
  };
  listed.code = objects.list(prefix, visit, &listed);
  return listed;
}

int32_t put_object(RedisObjects& objects, const char* name, const std::string& bytes) {
  return objects.put(name, bytes.data(), bytes.size());
}

// A value that is no string.
void make_list(const RedisServer& server, const char* key) {
  redisContext* const context = redisConnect("127.0.0.1", server.port());
  REQUIRE(context != nullptr);
  freeReplyObject(redisCommand(context, "LPUSH %s element", key));
  redisFree(context);
}

TEST_SUITE("samples/redis_store") {
  TEST_CASE("an object comes back byte for byte, whole and in parts, and is gone when it is removed") {
    const auto program = RedisServer::program_or_skip("an object comes back");
    if (!program) return;
    const RedisServer server(*program);
    RedisObjects objects(address_of(server));
    const std::string bytes("\0\r\n$5\xff*abc", 11);
    CHECK(read_object(objects, "page/1", 0, 10).code == 1);
    CHECK(put_object(objects, "page/1", bytes) == 0);
    const Read whole = read_object(objects, "page/1", 0, 100);
    CHECK(whole.code == 0);
    CHECK(whole.bytes == bytes);
    CHECK(whole.size == bytes.size());
    CHECK(read_object(objects, "page/1", 3, 4).bytes == bytes.substr(3, 4));
    CHECK(read_object(objects, "page/1", 9, 100).bytes == bytes.substr(9));
    const Read beyond = read_object(objects, "page/1", 11, 100);
    CHECK(beyond.code == 0);
    CHECK(beyond.bytes.empty());
    CHECK(beyond.size == bytes.size());
    const Read nothing = read_object(objects, "page/1", 0, 0);
    CHECK(nothing.code == 0);
    CHECK(nothing.size == bytes.size());
    CHECK(objects.remove("page/1") == 0);
    CHECK(objects.remove("page/1") == 1);
    CHECK(read_object(objects, "page/1", 0, 10).code == 1);
    CHECK(objects.problem() == "");
  }

  TEST_CASE("a list has each object once, and only those of its prefix") {
    const auto program = RedisServer::program_or_skip("a list has each object once");
    if (!program) return;
    const RedisServer server(*program);
    RedisObjects objects(address_of(server, "a*"));
    RedisObjects others(address_of(server, "ab"));
    for (int i = 0; i < 2500; ++i) {
      const std::string name = "page/" + std::to_string(i);
      REQUIRE(put_object(objects, name.c_str(), std::string(static_cast<size_t>(i % 7 + 1), 'x')) == 0);
    }
    REQUIRE(put_object(objects, "state/1", "s") == 0);
    REQUIRE(put_object(others, "page/other", "o") == 0);
    const Listed pages = list_objects(objects, "page/");
    CHECK(pages.code == 0);
    CHECK(pages.sizes.size() == 2500);
    CHECK(pages.sizes.count("page/2499") == 1);
    CHECK(pages.sizes.find("page/6")->second == 7);
    CHECK(list_objects(objects, "state/").sizes.size() == 1);
    CHECK(list_objects(others, "page/").sizes.size() == 1);
  }

  TEST_CASE("a connection that broke is made anew, and a server that is gone is told") {
    const auto program = RedisServer::program_or_skip("a connection that broke");
    if (!program) return;
    RedisServer server(*program);
    RedisObjects objects(address_of(server));
    CHECK(put_object(objects, "page/1", "one") == 0);
    server.start_again();
    CHECK(put_object(objects, "page/2", "two") == 0);
    CHECK(list_objects(objects, "page/").sizes.size() == 1);
    server.kill_it();
    CHECK(put_object(objects, "page/3", "three") == dsv41_redis::kRedisUnreachable);
    CHECK(read_object(objects, "page/2", 0, 10).code == dsv41_redis::kRedisUnreachable);
    CHECK(objects.remove("page/2") == dsv41_redis::kRedisUnreachable);
    CHECK(list_objects(objects, "page/").code == dsv41_redis::kRedisUnreachable);
    CHECK_MESSAGE(contains(objects.problem(), "refused"), objects.problem());
    server.start_again();
    CHECK(put_object(objects, "page/3", "three") == 0);
  }

  TEST_CASE("a server that does not answer is given up after the timeout, one that refuses is quoted") {
    const auto program = RedisServer::program_or_skip("a server that does not answer");
    if (!program) return;
    RedisServer server(*program);
    RedisAddress address = address_of(server);
    address.timeout = std::chrono::milliseconds(300);
    RedisObjects objects(address);
    CHECK(put_object(objects, "page/1", "one") == 0);
    make_list(server, "test:page/2");
    CHECK(read_object(objects, "page/2", 0, 10).code == dsv41_redis::kRedisRefused);
    CHECK_MESSAGE(contains(objects.problem(), "WRONGTYPE"), objects.problem());
    CHECK(read_object(objects, "page/1", 0, 10).bytes == "one");
    server.hang();
    CHECK(put_object(objects, "page/2", "two") == dsv41_redis::kRedisUnreachable);
    CHECK(objects.problem() != "");
  }

  TEST_CASE("what one process has read, another one answers: the same text, bit for bit, without running the prompt") {
    const auto program = RedisServer::program_or_skip("what one process has read");
    if (!program) return;
    const RedisServer server(*program);
    for (const std::string& prompt : {std::string(kHat), long_prompt()}) {
      CAPTURE(prompt);
      const ProgramOutput prefill = run_program(command(server, "prefill", {"-p", prompt}));
      REQUIRE_MESSAGE(prefill.exit_code == 0, prefill.err);
      const ProgramOutput decode = run_program(command(server, "decode", {"-p", prompt}));
      REQUIRE_MESSAGE(decode.exit_code == 0, decode.err);
      CHECK(decode.out == answer_of_one_process(prompt));
      CHECK_MESSAGE(contains(decode.err, "tokens from Redis"), decode.err);
      CHECK_MESSAGE(!contains(decode.err, "decode: 0 of"), decode.err);
      CHECK_MESSAGE(contains(decode.err, "; 0 computed, 0 replayed; bit-identical"), decode.err);
    }
    CHECK(contains(run_program(command(server, "prefill", {"-p", kHat})).err, "there before"));
  }

  TEST_CASE("without windows the other process replays, and says that the result is approximate") {
    const auto program = RedisServer::program_or_skip("without windows");
    if (!program) return;
    const RedisServer server(*program);
    REQUIRE(run_program(command(server, "prefill", {"-p", long_prompt(), "--kind", "prefix"})).exit_code == 0);
    const ProgramOutput decode = run_program(command(server, "decode", {"-p", long_prompt()}));
    CHECK(decode.exit_code == 0);
    CHECK(decode.out.size() > 1);
    CHECK_MESSAGE(contains(decode.err, "128 replayed; approximate"), decode.err);
  }

  TEST_CASE("a prompt that nobody has read is told, and so is a server without a store") {
    const auto program = RedisServer::program_or_skip("a prompt that nobody has read");
    if (!program) return;
    const RedisServer server(*program);
    CHECK(run_program(command(server, "decode", {"-p", kHat})).exit_code == 4);
    REQUIRE(run_program(command(server, "prefill", {"-p", kHat})).exit_code == 0);
    const ProgramOutput other = run_program(command(server, "decode", {"-p", kSum}));
    CHECK(other.exit_code == 4);
    CHECK_MESSAGE(contains(other.err, "nothing of this prompt"), other.err);
    CHECK(run_program(command(server, "decode", {"-p", kHat, "--prefix", "else"})).exit_code == 4);
  }

  TEST_CASE("a server that is killed while a program works ends it with an error and a code") {
    const auto program = RedisServer::program_or_skip("a server that is killed");
    if (!program) return;
    RedisServer server(*program);
    REQUIRE(run_program(command(server, "prefill", {"-p", kHat})).exit_code == 0);
    for (const char* verb : {"prefill", "decode"}) {
      CAPTURE(verb);
      PtyProgram running(command(server, verb, {"-p", "-"}));
      REQUIRE_MESSAGE(running.expect("states in Redis"), running.transcript());
      server.kill_it();
      running.type_line(std::string("decode") == verb ? kHat : kSum);
      running.type("\x04");
      CHECK_MESSAGE(running.expect("dsv41-redis: Redis at 127.0.0.1"), running.transcript());
      CHECK(running.exit_code() == 3);
      const ProgramOutput late = run_program(command(server, verb, {"-p", kHat}));
      CHECK(late.exit_code == 3);
      CHECK_MESSAGE(contains(late.err, "refused"), late.err);
      server.start_again();
      REQUIRE(run_program(command(server, "prefill", {"-p", kHat})).exit_code == 0);
    }
  }

  TEST_CASE("wrong options have a code of their own") {
    CHECK(run_program({DSV41_REDIS}).exit_code == 2);
    CHECK(run_program({DSV41_REDIS, "prefill"}).exit_code == 2);
    CHECK(run_program({DSV41_REDIS, "decode", "-p", "x", "--port", "0"}).exit_code == 2);
  }
}

}  // namespace
}  // namespace dsv41::test
