// Handle: what every opaque type of the C API begins with: a mark that tells its type, a reference count, and the flags
// of the thread rules.
//
// The host owns one reference from creation to release; children and running calls own further ones, so that parents
// live as long as children and a release inside a callback does not pull the object from under the running call.
// `released_` makes a second release harmless while children keep the memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace dsv41::api {

enum class HandleKind : uint32_t {
  kRuntime = 0x64340001,
  kCancel,
  kModel,
  kPool,
  kSession,
  kSampler,
  kTextStream,
  kChatParse,
  kSnapshot,
  kStore,
  kMatch,
  kStoreIter,
};

// Lower-case word for messages: "session".
const char* handle_name(HandleKind kind);

// A number that differs between threads that live at the same time; never 0.
uint64_t this_thread_number();

class Handle {
 public:
  explicit Handle(HandleKind kind) : kind_(kind) {}
  virtual ~Handle() { kind_ = HandleKind{}; }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  HandleKind kind() const { return kind_; }
  bool released() const { return released_.load(std::memory_order_acquire); }
  bool poisoned() const { return poisoned_.load(std::memory_order_relaxed); }
  void poison() { poisoned_.store(true, std::memory_order_relaxed); }

  void add_reference() { n_references_.fetch_add(1, std::memory_order_relaxed); }
  void drop_reference() {
    if (n_references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // The host's reference; the second and later calls do nothing.
  void release() {
    if (!released_.exchange(true, std::memory_order_acq_rel)) drop_reference();
  }

  // One-thread-at-a-time objects: false when a call is running on it.
  bool try_lock() {
    uint64_t free = 0;
    return user_.compare_exchange_strong(free, this_thread_number(), std::memory_order_acquire);
  }
  void unlock() { user_.store(0, std::memory_order_release); }
  bool locked_by_this_thread() const { return user_.load(std::memory_order_relaxed) == this_thread_number(); }

 private:
  HandleKind kind_;
  std::atomic<bool> released_{false};
  std::atomic<bool> poisoned_{false};
  std::atomic<uint32_t> n_references_{1};
  std::atomic<uint64_t> user_{0};  // number of the thread whose call is running, 0 for none
};

// Owner of one reference; may be empty.
template <class H>
class Ref {
 public:
  Ref() = default;
  explicit Ref(H* handle) : handle_(handle) {
    if (handle_) handle_->add_reference();
  }
  Ref(Ref&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Ref() {
    if (handle_) handle_->drop_reference();
  }
  H* get() const { return handle_; }
  H* operator->() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  H* handle_ = nullptr;
};

}  // namespace dsv41::api
