#include "support/failing_backend.h"

namespace dsv41::test {
namespace {

// Counts a call; true for the one that fails.
bool fails(std::atomic<int64_t>& until) { return until > 0 && until.fetch_sub(1) == 1; }

class FailingQueue final : public backend::Queue {
 public:
  FailingQueue(std::unique_ptr<Queue> inner, std::atomic<int64_t>& until) : inner_(std::move(inner)), until_(until) {}

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
#define DSV41_OP(name, Args) \
  Status name(const kernels::Args& args) override { return inner_->name(args); }
#include "kernels/op_list.inc"
#undef DSV41_OP

 private:
  Status count() { return fails(until_) ? Status(Code::kDEVICE_LOST, "the test fails this copy") : Status(); }
  const std::unique_ptr<Queue> inner_;
  std::atomic<int64_t>& until_;
};

}  // namespace

Result<backend::Buffer> FailingBackend::allocate(uint64_t bytes, backend::MemoryUse use) {
  if (fails(until_allocation_)) return Status(Code::kNO_MEMORY, "the test fails this allocation");
  return inner_->allocate(bytes, use);
}

Result<std::unique_ptr<backend::Queue>> FailingBackend::create_queue() {
  DSV41_TRY_ASSIGN(std::unique_ptr<backend::Queue> inner, inner_->create_queue());
  return std::unique_ptr<backend::Queue>(new FailingQueue(std::move(inner), until_copy_));
}

}  // namespace dsv41::test
