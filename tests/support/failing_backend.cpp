#include "support/failing_backend.h"

namespace dsv41::test {

class FailingQueue final : public backend::Queue {
 public:
  FailingQueue(std::unique_ptr<Queue> inner, FailingBackend& owner) : inner_(std::move(inner)), owner_(owner) {}

  Status copy_to_device(void* device, const void* host, uint64_t bytes) override {
    DSV41_TRY(count());
    return inner_->copy_to_device(device, host, bytes);
  }
  Status copy_to_host(void* host, const void* device, uint64_t bytes) override {
    DSV41_TRY(count());
    return inner_->copy_to_host(host, device, bytes);
  }
  Status copy(void* to, const void* from, uint64_t bytes) override {
    DSV41_TRY(count());
    return inner_->copy(to, from, bytes);
  }
  Status wait() override { return inner_->wait(); }
#define DSV41_OP(name, Args)                        \
  Status name(const kernels::Args& args) override { \
    DSV41_TRY(count_op());                          \
    return inner_->name(args);                      \
  }
#include "kernels/op_list.inc"
#undef DSV41_OP

 private:
  Status count() {
    if (FailingBackend::is_due(owner_.until_cancel_copy_)) owner_.flag_.load()->trigger();
    const bool fails = FailingBackend::is_due(owner_.until_copy_);
    return fails ? Status(Code::kDEVICE_LOST, "the test fails this copy") : Status();
  }
  Status count_op() {
    if (FailingBackend::is_due(owner_.until_cancel_)) owner_.flag_.load()->trigger();
    const bool fails = FailingBackend::is_due(owner_.until_op_);
    return fails ? Status(Code::kDEVICE_LOST, "the test fails this op") : Status();
  }
  const std::unique_ptr<Queue> inner_;
  FailingBackend& owner_;
};

Result<backend::Buffer> FailingBackend::allocate(uint64_t bytes, backend::MemoryUse use) {
  if (is_due(until_allocation_)) return Status(Code::kNO_MEMORY, "the test fails this allocation");
  return inner_->allocate(bytes, use);
}

Result<std::unique_ptr<backend::Queue>> FailingBackend::create_queue() {
  DSV41_TRY_ASSIGN(std::unique_ptr<backend::Queue> inner, inner_->create_queue());
  return std::unique_ptr<backend::Queue>(new FailingQueue(std::move(inner), *this));
}

}  // namespace dsv41::test
