// KvTrace: random operations on a small pool with its sequences, and on the naive model beside it.
#pragma once

#include <random>
#include <string>

#include "support/kv_model.h"
#include "support/kv_pool_fixture.h"

namespace dsv41::test {

class KvTrace {
 public:
  explicit KvTrace(uint64_t seed);

  // One operation and what pool and model then say of each other; empty: they agree. One thread at a time.
  std::string operate(backend::Queue& queue);
  // The rows, windows and ids of every sequence.
  std::string compare_sequences() const;
  // Lets go of everything; afterwards all pages are free.
  std::string finish();
  KvPool& pool() { return kv_; }
  uint64_t random(uint64_t n) { return random_() % n; }

  static std::vector<std::vector<int32_t>> books();  // token texts with common beginnings

 private:
  struct Pin {
    kv::PageId page;
    ModelPageRef model;
  };
  bool chance(int percent) { return random(100) < static_cast<uint64_t>(percent); }
  int any_sequence();
  std::string append(backend::Queue& queue);
  std::string look_up();
  void create();
  void fork();
  void truncate();
  void release(int name);
  void pin_or_unpin();
  void unpin();
  void begin_or_end_step();
  void end_steps();
  int64_t n_to_append(int64_t position);
  std::string compare_counts() const;
  std::string compare_sequence(int name) const;

  std::mt19937_64 random_;
  const std::vector<std::vector<int32_t>> books_ = books();
  KvPool kv_;
  KvModel model_;
  std::map<int, kv::KvRef> refs_;
  std::map<int, size_t> book_;  // which text a sequence follows
  std::vector<Pin> pins_;
  std::vector<uint64_t> steps_;
  int next_name_ = 0;
  int touched_ = -1;
  std::string last_;  // the operation, for messages
};

}  // namespace dsv41::test
