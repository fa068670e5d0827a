#include "samples/redis_server.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

namespace dsv41::test {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A port that was free a moment ago.
int free_port() {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  REQUIRE(bind(file, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(getsockname(file, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(file);
  return ntohs(address.sin_port);
}

bool takes_connections(int port) {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  const bool connected = connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(file);
  return connected;
}

}  // namespace

std::optional<std::string> RedisServer::program_or_skip(const char* test_case) {
  std::istringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string program = folder + "/redis-server";
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  MESSAGE("SKIPPED: " << test_case << ": there is no redis-server; `make deps` installs it");
  return std::nullopt;
}

RedisServer::RedisServer(const std::string& program) : program_(program), port_(free_port()) { start(); }

void RedisServer::start() {
  const std::string port = std::to_string(port_), folder = folder_.path.string(), log = folder + "/log";
  process_ = fork();
  REQUIRE(process_ >= 0);
  if (process_ == 0) {
    execl(program_.c_str(), program_.c_str(), "--port", port.c_str(), "--bind", "127.0.0.1", "--save", "",
          "--appendonly", "no", "--dir", folder.c_str(), "--logfile", log.c_str(), "--daemonize", "no", nullptr);
    _exit(127);
  }
  const auto end = std::chrono::steady_clock::now() + PtyProgram::kPatience;
  while (!takes_connections(port_)) {
    REQUIRE_MESSAGE(std::chrono::steady_clock::now() < end, bytes_of(log));
    REQUIRE_MESSAGE(waitpid(process_, nullptr, WNOHANG) == 0, bytes_of(log));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void RedisServer::kill_it() {
  if (process_ <= 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  process_ = -1;
}

void RedisServer::start_again() {
  kill_it();
  start();
}

void RedisServer::hang() { kill(process_, SIGSTOP); }

}  // namespace dsv41::test
