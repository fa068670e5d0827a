// Parallel: the interface through which kernels spread work over threads that they do not own.
//
// A kernel states how many items it has; the implementation (the thread pool of backend/cpu, or SerialParallel) calls
// the body with disjoint ranges [begin, end) that cover [0, n_items). Results must not depend on how the range is cut:
// split rows and columns, never a sum.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace dsv41 {

// Non-owning reference to a callable `void(int64_t begin, int64_t end)`; valid while the callable lives.
class RangeBody {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, RangeBody>>>
  RangeBody(const F& f)  // NOLINT: implicit on purpose
      : object_(std::addressof(f)),
        call_([](const void* object, int64_t begin, int64_t end) { (*static_cast<const F*>(object))(begin, end); }) {}
  void operator()(int64_t begin, int64_t end) const { call_(object_, begin, end); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t, int64_t);
};

class Parallel {
 public:
  virtual ~Parallel() = default;
  // Runs body over [0, n_items) and returns when all of it is done. `grain`: fewest items worth a thread of their own.
  // Not reentrant: a body must not call run() again.
  virtual void run(int64_t n_items, int64_t grain, RangeBody body) = 0;
  virtual int n_threads() const = 0;
};

class SerialParallel final : public Parallel {
 public:
  void run(int64_t n_items, int64_t, RangeBody body) override {
    if (n_items > 0) body(0, n_items);
  }
  int n_threads() const override { return 1; }
};

}  // namespace dsv41
