// A host that keeps a store's objects in memory, behind dsv41_object_store: counts what is called, fails where it is told
// to, and notices calls that overlap or come too late.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "dsv41/dsv41.hpp"

namespace dsv41::test {

class MemoryObjects {
 public:
  static constexpr int32_t kFailure = 2024;

  dsv41_object_store functions() {
    auto out = make<dsv41_object_store>();
    out.user = this;
    out.get_fn = [](void* user, const char* name, uint64_t offset, void* buffer, size_t capacity, size_t* n_copied,
                    uint64_t* size) {
      auto& self = *static_cast<MemoryObjects*>(user);
      Call call(self);
      if (call.fails()) return kFailure;
      const auto found = self.objects.find(name);
      if (found == self.objects.end()) return int32_t{DSV41_OBJECT_MISSING};
      const Bytes& bytes = found->second;
      const uint64_t from = std::min<uint64_t>(offset, bytes.size());
      *n_copied = static_cast<size_t>(std::min<uint64_t>(capacity, bytes.size() - from));
      if (*n_copied) std::memcpy(buffer, bytes.data() + from, *n_copied);
      *size = bytes.size();
      return 0;
    };
    out.put_fn = [](void* user, const char* name, const void* bytes, size_t size) {
      auto& self = *static_cast<MemoryObjects*>(user);
      Call call(self);
      if (call.fails()) return kFailure;
      const auto* begin = static_cast<const uint8_t*>(bytes);
      self.objects[name].assign(begin, begin + size);
      if (self.probe) self.probe_status = dsv41_store_stats_get(self.probe, nullptr, nullptr);
      return 0;
    };
    out.delete_fn = [](void* user, const char* name) {
      auto& self = *static_cast<MemoryObjects*>(user);
      Call call(self);
      if (call.fails()) return kFailure;
      return self.objects.erase(name) ? 0 : int32_t{DSV41_OBJECT_MISSING};
    };
    out.list_fn = [](void* user, const char* prefix, dsv41_object_visit_fn visit, void* visit_state) {
      auto& self = *static_cast<MemoryObjects*>(user);
      Call call(self);
      if (call.fails()) return kFailure;
      for (const auto& [name, bytes] : self.objects) {
        if (name.rfind(prefix, 0) == 0) visit(visit_state, name.c_str(), bytes.size());
      }
      return 0;
    };
    return out;
  }

  std::map<std::string, Bytes> objects;
  std::atomic<int> n_calls{0};
  std::atomic<int> fail_at{0};      // the call, from 1 on, that fails; 0: none
  std::atomic<bool> closed{false};  // no call may come any more
  std::atomic<bool> overlapped{false}, late{false};
  dsv41_store* probe = nullptr;  // asked from inside put
  dsv41_status probe_status = 0;

 private:
  class Call {
   public:
    explicit Call(MemoryObjects& host) : host_(host) {
      if (host_.running_.exchange(true)) host_.overlapped = true;
      if (host_.closed) host_.late = true;
      fails_ = ++host_.n_calls == host_.fail_at;
    }
    ~Call() { host_.running_ = false; }
    bool fails() const { return fails_; }

   private:
    MemoryObjects& host_;
    bool fails_ = false;
  };
  std::atomic<bool> running_{false};
};

}  // namespace dsv41::test
