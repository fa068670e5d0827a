// A Redis server of a test's own: on a free port of the loopback, without persistence, in a folder that goes with it.
#pragma once

#include <optional>
#include <string>

#include "samples/chat_talk.h"

namespace dsv41::test {

class RedisServer {
 public:
  // Nothing, with a message that names the test case, where redis-server is not installed.
  static std::optional<std::string> program_or_skip(const char* test_case);

  // Starts the server and waits until it takes connections.
  explicit RedisServer(const std::string& program);
  ~RedisServer() { kill_it(); }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  int port() const { return port_; }
  void kill_it();
  // On the same port, empty.
  void start_again();
  // It keeps its connections and answers nothing.
  void hang();

 private:
  void start();

  const std::string program_;
  Scratch folder_;
  int port_ = 0;
  int process_ = -1;
};

}  // namespace dsv41::test
