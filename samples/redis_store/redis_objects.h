// RedisObjects: dsv41_object_store on a Redis server. An object is a string value with the key PREFIX:NAME; its parts are
// read with GETRANGE, so that the head of a record costs a few hundred bytes whatever its size.
//
// Connects when it is first asked. A command that fails for the connection is sent once more on a new one: all of them may
// come twice. hiredis writes to its socket with write(2): a program that uses this ignores SIGPIPE.
#pragma once

#include <dsv41/dsv41.h>
#include <hiredis.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace dsv41_redis {

struct RedisAddress {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string prefix = "dsv41";             // of all keys
  std::chrono::milliseconds timeout{5000};  // of connecting, and of each answer
};

// What the functions answer to the library, which passes it on in dsv41_error.host_code.
enum RedisFailure : int32_t {
  kRedisUnreachable = 2,  // no connection, or it broke and did not come back, or no answer in time
  kRedisRefused = 3,      // an error of the server: no memory, read only, not a string
  kRedisNoMemory = 4,     // of this process
};

class RedisObjects {
 public:
  explicit RedisObjects(RedisAddress address) : address_(std::move(address)) {}
  RedisObjects(const RedisObjects&) = delete;
  RedisObjects& operator=(const RedisObjects&) = delete;

  // Refers to this object, which must live until the store is closed.
  dsv41_object_store functions();

  // As the functions of dsv41_object_store: 0, DSV41_OBJECT_MISSING or a RedisFailure. Any thread; one at a time runs.
  int32_t get(const char* name, uint64_t offset, void* buffer, size_t capacity, size_t* n_copied, uint64_t* size);
  int32_t put(const char* name, const void* bytes, size_t size);
  int32_t remove(const char* name);
  int32_t list(const char* prefix, dsv41_object_visit_fn visit, void* visit_state);

  // What went wrong with the last command, for people; empty: nothing. Any thread.
  std::string problem() const;

 private:
  struct FreeReply {
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
  };
  struct FreeContext {
    void operator()(redisContext* context) const { redisFree(context); }
  };
  using Reply = std::unique_ptr<redisReply, FreeReply>;
  using Command = std::vector<std::string>;

  // Sends the commands together and takes their replies; on a new connection once more if it breaks.
  int32_t ask(const std::vector<Command>& commands, std::vector<Reply>* replies);
  bool ask_once(const std::vector<Command>& commands, std::vector<Reply>* replies);
  bool connect();
  int32_t fail(RedisFailure failure, const std::string& text);
  // Takes no exception out of a function that the library calls.
  int32_t guarded(const std::function<int32_t()>& body);
  std::string key_of(const std::string& name) const { return address_.prefix + ":" + name; }

  const RedisAddress address_;
  mutable std::mutex mutex_;
  std::unique_ptr<redisContext, FreeContext> context_;
  std::string problem_;
};

}  // namespace dsv41_redis
