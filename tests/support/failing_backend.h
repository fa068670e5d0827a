// FailingBackend: a backend that hands everything on to another one and fails the allocations, copies and ops that a test
// names. Any thread.
#pragma once

#include <atomic>

#include "backend/backend.h"
#include "base/cancel.h"

namespace dsv41::test {

class FailingBackend final : public backend::Backend {
 public:
  explicit FailingBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

  // The n-th allocation (copy, op of any queue) from now on fails, n from 1; 0: none does.
  void fail_allocation(int64_t n) { until_allocation_ = n; }
  void fail_copy(int64_t n) { until_copy_ = n; }
  void fail_op(int64_t n) { until_op_ = n; }
  // The n-th op (copy) from now on triggers `flag` and runs.
  void cancel_at_op(int64_t n, CancelFlag* flag) {
    flag_ = flag;
    until_cancel_ = n;
  }
  void cancel_at_copy(int64_t n, CancelFlag* flag) {
    flag_ = flag;
    until_cancel_copy_ = n;
  }

  // Whether what was named last has come.
  bool struck() const {
    return until_allocation_ == 0 && until_copy_ == 0 && until_op_ == 0 && until_cancel_ == 0 &&
           until_cancel_copy_ == 0;
  }

  const char* name() const override { return inner_->name(); }
  const std::string& numeric_class() const override { return inner_->numeric_class(); }
  int n_threads() const override { return inner_->n_threads(); }
  bool can_stream_weights() const override { return inner_->can_stream_weights(); }
  Result<backend::Buffer> allocate(uint64_t bytes, backend::MemoryUse use) override;
  Result<backend::DeviceWeight> upload(const backend::HostWeight& weight) override { return inner_->upload(weight); }
  uint64_t packed_bytes(const backend::HostWeight& weight) const override { return inner_->packed_bytes(weight); }
  tensor::WeightView upload_packed(const backend::HostWeight& weight, std::byte* to) override {
    return inner_->upload_packed(weight, to);
  }
  Result<std::unique_ptr<backend::Queue>> create_queue() override;
  void discard(void* data, uint64_t bytes) override { inner_->discard(data, bytes); }

 protected:
  void free(void*, uint64_t, backend::MemoryUse) override {}  // buffers are the inner backend's

 private:
  friend class FailingQueue;
  static bool is_due(std::atomic<int64_t>& until) {
    int64_t n = until;
    while (n > 0 && !until.compare_exchange_weak(n, n - 1)) {
    }
    return n == 1;
  }
  const std::shared_ptr<Backend> inner_;
  std::atomic<int64_t> until_allocation_{0}, until_copy_{0}, until_op_{0}, until_cancel_{0}, until_cancel_copy_{0};
  std::atomic<CancelFlag*> flag_{nullptr};
};

}  // namespace dsv41::test
