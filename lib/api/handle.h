// Handle: what every opaque type of the C API begins with: a mark that tells its type, a reference count, and the flags
// of the thread rules.
//
// The host owns one reference from creation to release; children own further ones, so that parents live as long as
// children, and a running call owns a reference or the lock, so that a release inside a callback does not pull the object
// from under it. References and lock are one word: a call on a handle of one thread takes two locked instructions, and
// whoever brings the word to zero deletes. `released_` makes a second release harmless while children keep the memory.
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
uint32_t this_thread_number();

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

  void add_reference() { state_.fetch_add(kReference, std::memory_order_relaxed); }
  void drop_reference() { take_off(kReference); }
  // The host's reference; the second and later calls do nothing.
  void release() {
    if (!released_.exchange(true, std::memory_order_acq_rel)) drop_reference();
  }

  // One-thread-at-a-time objects, by number of the thread: false when a call is running on it. The lock keeps the object
  // as a reference does.
  bool try_lock(uint32_t thread) {
    uint64_t state = state_.load(std::memory_order_relaxed);
    do {
      if (user_of(state) != 0) return false;
    } while (!state_.compare_exchange_weak(state, state + thread * kUser, std::memory_order_acquire,
                                           std::memory_order_relaxed));
    return true;
  }
  void unlock(uint32_t thread) { take_off(thread * kUser); }
  bool locked_by(uint32_t thread) const { return user_of(state_.load(std::memory_order_relaxed)) == thread; }

 private:
  static constexpr uint64_t kReference = 1, kUser = uint64_t{1} << 32;
  static uint32_t user_of(uint64_t state) { return static_cast<uint32_t>(state >> 32); }
  void take_off(uint64_t part) {
    if (state_.fetch_sub(part, std::memory_order_acq_rel) == part) delete this;
  }

  HandleKind kind_;
  std::atomic<bool> released_{false};
  std::atomic<bool> poisoned_{false};
  // Low half: references. High half: number of the thread whose call has the lock, 0 for none.
  std::atomic<uint64_t> state_{kReference};
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
