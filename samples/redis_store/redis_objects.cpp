#include "redis_objects.h"

#include <sys/time.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <set>

namespace dsv41_redis {
namespace {

constexpr const char* kScanCount = "1000";  // keys that a step of SCAN looks at

timeval timeval_of(std::chrono::milliseconds time) {
  return {static_cast<time_t>(time.count() / 1000), static_cast<suseconds_t>(time.count() % 1000 * 1000)};
}

// A text as a pattern of SCAN that stands for itself.
std::string literal_pattern(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    if (std::strchr("*?[]\\^-", c)) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

bool is_array_of(const redisReply& reply, size_t n) { return reply.type == REDIS_REPLY_ARRAY && reply.elements == n; }

}  // namespace

dsv41_object_store RedisObjects::functions() {
  dsv41_object_store out;
  dsv41_object_store_init(&out, sizeof out);
  out.user = this;
  out.get_fn = [](void* user, const char* name, uint64_t offset, void* buffer, size_t capacity, size_t* n_copied,
                  uint64_t* size) {
    return static_cast<RedisObjects*>(user)->get(name, offset, buffer, capacity, n_copied, size);
  };
  out.put_fn = [](void* user, const char* name, const void* bytes, size_t size) {
    return static_cast<RedisObjects*>(user)->put(name, bytes, size);
  };
  out.delete_fn = [](void* user, const char* name) { return static_cast<RedisObjects*>(user)->remove(name); };
  out.list_fn = [](void* user, const char* prefix, dsv41_object_visit_fn visit, void* visit_state) {
    return static_cast<RedisObjects*>(user)->list(prefix, visit, visit_state);
  };
  return out;
}

int32_t RedisObjects::get(const char* name, uint64_t offset, void* buffer, size_t capacity, size_t* n_copied,
                          uint64_t* size) {
  return guarded([&]() -> int32_t {
    const std::string key = key_of(name);
    std::vector<Command> commands = {{"STRLEN", key}};
    // GETRANGE takes an end of -1 for the whole value.
    if (capacity > 0)
      commands.push_back({"GETRANGE", key, std::to_string(offset), std::to_string(offset + capacity - 1)});
    std::vector<Reply> replies;
    if (const int32_t failure = ask(commands, &replies)) return failure;
    if (replies[0]->type != REDIS_REPLY_INTEGER) return fail(kRedisRefused, "STRLEN gave no number");
    *size = static_cast<uint64_t>(replies[0]->integer);
    if (*size == 0) return DSV41_OBJECT_MISSING;  // no object is empty
    *n_copied = 0;
    if (capacity == 0) return 0;
    const redisReply& part = *replies[1];
    if (part.type != REDIS_REPLY_STRING || part.len > capacity) return fail(kRedisRefused, "GETRANGE gave no string");
    if (part.len == 0 && offset < *size) return DSV41_OBJECT_MISSING;  // deleted between the two commands
    std::memcpy(buffer, part.str, part.len);
    *n_copied = part.len;
    return 0;
  });
}

int32_t RedisObjects::put(const char* name, const void* bytes, size_t size) {
  return guarded([&]() -> int32_t {
    std::vector<Reply> replies;
    return ask({{"SET", key_of(name), std::string(static_cast<const char*>(bytes), size)}}, &replies);
  });
}

int32_t RedisObjects::remove(const char* name) {
  return guarded([&]() -> int32_t {
    std::vector<Reply> replies;
    if (const int32_t failure = ask({{"DEL", key_of(name)}}, &replies)) return failure;
    return replies[0]->type == REDIS_REPLY_INTEGER && replies[0]->integer == 0 ? DSV41_OBJECT_MISSING : 0;
  });
}

// SCAN may show a key twice, and keys that are gone when their length is asked for.
int32_t RedisObjects::list(const char* prefix, dsv41_object_visit_fn visit, void* visit_state) {
  return guarded([&]() -> int32_t {
    const size_t n_front = key_of("").size();
    const std::string pattern = literal_pattern(key_of(prefix)) + "*";
    std::set<std::string> shown;
    std::string cursor = "0";
    do {
      std::vector<Reply> scan;
      if (const int32_t failure = ask({{"SCAN", cursor, "MATCH", pattern, "COUNT", kScanCount}}, &scan)) return failure;
      if (!is_array_of(*scan[0], 2) || scan[0]->element[0]->type != REDIS_REPLY_STRING ||
          scan[0]->element[1]->type != REDIS_REPLY_ARRAY)
        return fail(kRedisRefused, "SCAN gave no list");
      cursor.assign(scan[0]->element[0]->str, scan[0]->element[0]->len);
      std::vector<std::string> names;
      std::vector<Command> lengths;
      for (size_t i = 0; i < scan[0]->element[1]->elements; ++i) {
        const redisReply& key = *scan[0]->element[1]->element[i];
        if (key.type != REDIS_REPLY_STRING || key.len < n_front) continue;
        std::string name(key.str + n_front, key.len - n_front);
        if (!shown.insert(name).second) continue;
        lengths.push_back({"STRLEN", key_of(name)});
        names.push_back(std::move(name));
      }
      std::vector<Reply> sizes;
      if (lengths.empty()) continue;
      if (const int32_t failure = ask(lengths, &sizes)) return failure;
      for (size_t i = 0; i < names.size(); ++i)
        if (sizes[i]->type == REDIS_REPLY_INTEGER && sizes[i]->integer > 0)
          visit(visit_state, names[i].c_str(), static_cast<uint64_t>(sizes[i]->integer));
    } while (cursor != "0");
    return 0;
  });
}

std::string RedisObjects::problem() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return problem_;
}

int32_t RedisObjects::guarded(const std::function<int32_t()>& body) {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return kRedisNoMemory;
  }
}

int32_t RedisObjects::ask(const std::vector<Command>& commands, std::vector<Reply>* replies) {
  if (!ask_once(commands, replies) && !ask_once(commands, replies)) return kRedisUnreachable;
  for (const Reply& reply : *replies)
    if (reply->type == REDIS_REPLY_ERROR) return fail(kRedisRefused, std::string(reply->str, reply->len));
  problem_.clear();
  return 0;
}

// False when the connection is of no use any more; it is closed then.
bool RedisObjects::ask_once(const std::vector<Command>& commands, std::vector<Reply>* replies) {
  replies->clear();
  if (!context_ && !connect()) return false;
  for (const Command& command : commands) {
    std::vector<const char*> words;
    std::vector<size_t> sizes;
    for (const std::string& word : command) {
      words.push_back(word.data());
      sizes.push_back(word.size());
    }
    if (redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), words.data(), sizes.data()) != REDIS_OK)
      break;
  }
  while (!context_->err && replies->size() < commands.size()) {
    void* reply = nullptr;
    if (redisGetReply(context_.get(), &reply) != REDIS_OK || !reply) break;
    replies->emplace_back(static_cast<redisReply*>(reply));
  }
  if (replies->size() == commands.size()) return true;
  fail(kRedisUnreachable, context_->err ? context_->errstr : "no answer");
  context_.reset();
  return false;
}

bool RedisObjects::connect() {
  context_.reset(redisConnectWithTimeout(address_.host.c_str(), address_.port, timeval_of(address_.timeout)));
  if (!context_) throw std::bad_alloc();
  if (!context_->err && redisSetTimeout(context_.get(), timeval_of(address_.timeout)) == REDIS_OK) return true;
  fail(kRedisUnreachable, context_->errstr);
  context_.reset();
  return false;
}

int32_t RedisObjects::fail(RedisFailure failure, const std::string& text) {
  problem_ = address_.host + ":" + std::to_string(address_.port) + ": " + text;
  return failure;
}

}  // namespace dsv41_redis
