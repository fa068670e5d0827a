// A host that keeps snapshots in memory, behind dsv41_writer and dsv41_reader: counts what is called, fails where it is
// told to.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "dsv41/dsv41.hpp"

namespace dsv41::test {

class MemoryWriter {
 public:
  static constexpr int kFailure = 4711;

  // fail_at: the call (of write, sync and commit together, from 1 on) that fails; 0: none.
  explicit MemoryWriter(int fail_at = 0) : fail_at_(fail_at) {}

  dsv41_writer functions() {
    auto writer = make<dsv41_writer>();
    writer.write_fn = [](void* user, const void* bytes, size_t size) {
      auto& self = *static_cast<MemoryWriter*>(user);
      self.calls += 'w';
      self.largest_write = std::max(self.largest_write, size);
      if (self.fails()) return kFailure;
      const auto* begin = static_cast<const uint8_t*>(bytes);
      self.bytes.insert(self.bytes.end(), begin, begin + size);
      return 0;
    };
    writer.sync_fn = [](void* user) { return static_cast<MemoryWriter*>(user)->step('s'); };
    writer.commit_fn = [](void* user) { return static_cast<MemoryWriter*>(user)->step('c'); };
    writer.abort_fn = [](void* user) { static_cast<MemoryWriter*>(user)->calls += 'a'; };
    writer.user = this;
    return writer;
  }

  std::string calls;  // w, s, c, a: write, sync, commit, abort
  Bytes bytes;
  size_t largest_write = 0;

 private:
  bool fails() { return ++n_calls_ == fail_at_; }
  int32_t step(char name) {
    calls += name;
    return fails() ? kFailure : 0;
  }

  int fail_at_;
  int n_calls_ = 0;
};

class MemoryReader {
 public:
  static constexpr int kFailure = -815;

  explicit MemoryReader(Bytes content, int fails_at = 0) : bytes(std::move(content)), fail_at(fails_at) {}

  dsv41_reader functions() {
    auto reader = make<dsv41_reader>();
    reader.read_at_fn = [](void* user, uint64_t offset, void* buffer, size_t size) {
      auto& self = *static_cast<MemoryReader*>(user);
      if (self.fails()) return kFailure;
      if (offset > self.bytes.size() || size > self.bytes.size() - offset) {
        self.asked_beyond = true;
        return 1;
      }
      std::memcpy(buffer, self.bytes.data() + offset, size);
      return 0;
    };
    reader.size_fn = [](void* user, uint64_t* size) {
      auto& self = *static_cast<MemoryReader*>(user);
      *size = self.bytes.size();
      return self.fails() ? kFailure : 0;
    };
    reader.close_fn = [](void* user) { ++static_cast<MemoryReader*>(user)->n_closed; };
    reader.user = this;
    return reader;
  }

  Bytes bytes;
  int fail_at;  // the call (of size and read_at together, from 1 on) that fails; 0: none
  int n_calls = 0;
  int n_closed = 0;
  bool asked_beyond = false;

 private:
  bool fails() { return ++n_calls == fail_at; }
};

}  // namespace dsv41::test
