// MapObjects: a host's object store in memory, for stores of tests: a test looks into it, damages it, makes it fail or
// hang.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "store/store.h"

namespace dsv41::test {

// Any thread. Outlives the stores over it; nobody else may touch `objects` while one of them works.
class MapObjects {
 public:
  std::map<std::string, std::vector<std::byte>> objects;

  // What get and put of records answer while it is not 0.
  void fail_gets(int32_t code) {
    set([&] { get_code_ = code; });
  }
  void fail_puts(int32_t code) {
    set([&] { put_code_ = code; });
  }
  // The next gets, or puts, of records wait until they may go on.
  void hold_gets(bool hold) {
    set([&] { hold_gets_ = hold; });
  }
  void hold_puts(bool hold) {
    set([&] { hold_puts_ = hold; });
  }
  // Waits until so many calls are held.
  void wait_until_held(int n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_held_ >= n; });
  }
  int n_running() { return read(&MapObjects::n_running_); }
  uint64_t n_gets() { return read(&MapObjects::n_gets_); }
  uint64_t n_puts() { return read(&MapObjects::n_puts_); }

  // A store over the objects that writes when put is called.
  store::StoreOptions options() {
    store::StoreOptions made;
    made.objects = {get, put, remove, list, this};
    made.background = false;
    return made;
  }

 private:
  template <class Change>
  void set(Change change) {
    {
      std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }
  template <class T>
  T read(T MapObjects::*field) {
    std::lock_guard lock(mutex_);
    return this->*field;
  }
  static bool is_record(const char* name) { return std::strcmp(name, "seed") != 0; }
  // Counts a call that runs, and holds it where it is asked to.
  class Running {
   public:
    Running(MapObjects& self, bool MapObjects::*hold) : self_(self), lock_(self.mutex_) {
      ++self_.n_running_;
      if (!hold || !(self_.*hold)) return;
      ++self_.n_held_;
      self_.changed_.notify_all();
      self_.changed_.wait(lock_, [&] { return !(self_.*hold); });
      --self_.n_held_;
    }
    ~Running() { --self_.n_running_; }

   private:
    MapObjects& self_;
    std::unique_lock<std::mutex> lock_;
  };

  static int32_t get(void* user, const char* name, uint64_t offset, void* buffer, size_t capacity, size_t* n_copied,
                     uint64_t* size) {
    MapObjects& self = *static_cast<MapObjects*>(user);
    const Running running(self, is_record(name) ? &MapObjects::hold_gets_ : nullptr);
    ++self.n_gets_;
    if (is_record(name) && self.get_code_) return self.get_code_;
    const auto found = self.objects.find(name);
    if (found == self.objects.end()) return store::ObjectCallbacks::kMissing;
    *size = found->second.size();
    *n_copied = offset >= *size ? 0 : std::min<size_t>(capacity, *size - offset);
    if (*n_copied) std::memcpy(buffer, found->second.data() + offset, *n_copied);
    return store::ObjectCallbacks::kDone;
  }
  static int32_t put(void* user, const char* name, const void* bytes, size_t size) {
    MapObjects& self = *static_cast<MapObjects*>(user);
    const Running running(self, is_record(name) ? &MapObjects::hold_puts_ : nullptr);
    ++self.n_puts_;
    if (is_record(name) && self.put_code_) return self.put_code_;
    const auto* from = static_cast<const std::byte*>(bytes);
    self.objects[name].assign(from, from + size);
    return store::ObjectCallbacks::kDone;
  }
  static int32_t remove(void* user, const char* name) {
    MapObjects& self = *static_cast<MapObjects*>(user);
    const Running running(self, nullptr);
    return self.objects.erase(name) ? store::ObjectCallbacks::kDone : store::ObjectCallbacks::kMissing;
  }
  static int32_t list(void* user, const char* prefix, void (*visit)(void*, const char*, uint64_t), void* state) {
    MapObjects& self = *static_cast<MapObjects*>(user);
    std::map<std::string, uint64_t> sizes;
    {
      const Running running(self, nullptr);
      for (const auto& [name, bytes] : self.objects) sizes[name] = bytes.size();
    }
    for (const auto& [name, bytes] : sizes) {
      if (name.starts_with(prefix)) visit(state, name.c_str(), bytes);
    }
    return store::ObjectCallbacks::kDone;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t get_code_ = 0, put_code_ = 0;
  bool hold_gets_ = false, hold_puts_ = false;
  int n_held_ = 0, n_running_ = 0;
  uint64_t n_gets_ = 0, n_puts_ = 0;
};

}  // namespace dsv41::test
