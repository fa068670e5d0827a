// The frame around every function of the C API: checks of handles and thread rules before, Status to code after, no
// exception through. A function reads
//
//   return run_call("dsv41_session_reset", error, want(session, Access::kExclusive),
//                   [&](dsv41_session& session) -> Status { ... });
//
// std::bad_alloc becomes NO_MEMORY. Any other exception is a bug: INTERNAL. An INTERNAL of either origin poisons the
// handles of the call before their locks are given up.
#pragma once

#include <cfenv>
#include <new>
#include <string>

#include "api/handle.h"
#include "base/status.h"
#include "dsv41/dsv41.h"

namespace dsv41::api {

// What a function does with a handle.
enum class Access : uint8_t {
  kShared,         // any thread; not from callbacks
  kSharedSafe,     // any thread; callback-safe
  kExclusive,      // one thread at a time; not from callbacks
  kExclusiveSafe,  // one thread at a time; callback-safe
  kReadSafe,       // as kExclusiveSafe, and allowed inside a callback of the call that has the handle locked
  kDurablePoint,   // as kExclusive, and allowed inside a callback that is a durable point of the handle
};

// Marks the time in which a host callback runs on this thread. A strict one (memory, clock, log) allows no call on
// handles. at_rest: the handle of the running call, where that may be saved meanwhile; null: none.
class CallbackScope {
 public:
  enum class Rule : uint8_t { kSafeCalls, kStrict };
  explicit CallbackScope(Rule rule, const Handle* at_rest = nullptr);
  ~CallbackScope();
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  static bool active();
  static bool strict();
  // Whether the innermost callback is a durable point of this handle.
  static bool durable_point_of(const Handle* handle);

 private:
  Rule rule_;
  const Handle* at_rest_outside_;
};

// The default floating-point state for the time of a call; the host's comes back at the end and under under_host_state.
class FloatScope {
 public:
  FloatScope() {
    std::fegetenv(&host_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatScope() { std::fesetenv(&host_); }
  FloatScope(const FloatScope&) = delete;
  FloatScope& operator=(const FloatScope&) = delete;
  // Runs `body` (a host callback) under the host's state.
  template <class F>
  auto under_host_state(F&& body) {
    std::fesetenv(&host_);
    auto value = body();
    std::fesetenv(FE_DFL_ENV);
    return value;
  }

 private:
  std::fenv_t host_;
};

template <class H>
struct Want {
  H* handle;
  Access access;
};
template <class H>
Want<H> want(H* handle, Access access) {
  return {handle, access};
}

// A checked use of a handle for the time of a call: owns a reference or, where exclusive, the lock. status() says why
// not.
class Use {
 public:
  template <class H>
  explicit Use(const Want<H>& want) : Use(want.handle, H::kKind, want.access) {}
  Use(Handle* handle, HandleKind kind, Access access);
  ~Use() {
    if (holds_ == Holds::kLock) handle_->unlock(thread_);
    if (holds_ == Holds::kReference) handle_->drop_reference();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  const Status& status() const { return status_; }
  void poison() { handle_->poison(); }

 private:
  enum class Holds : uint8_t { kNothing, kReference, kLock };

  Handle* handle_ = nullptr;
  uint32_t thread_ = 0;  // that has the lock
  Holds holds_ = Holds::kNothing;
  Status status_;
};

// Fills *error (not null, caller-owned).
void fill_error(const char* place, Code code, std::string_view message, int64_t os_error, dsv41_error* error);

// Fills *error (nullable; cleared on success) and returns the code.
inline int32_t report(const char* place, const Status& status, dsv41_error* error) {
  if (error) fill_error(place, status.code(), status.message(), status.os_error(), error);
  return static_cast<int32_t>(status.code());
}

// `code`, what run_call() has answered; where that is OK, END instead. For polls that find nothing: a Status takes memory.
inline int32_t end_if_ok(int32_t code, const char* place, std::string_view message, dsv41_error* error) {
  if (code != DSV41_OK) return code;
  if (error) fill_error(place, Code::kEND, message, 0, error);
  return DSV41_END;
}

// `body()` as a Status, whatever it throws.
template <class F>
Status catch_all(F&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status(Code::kNO_MEMORY, "the system has no memory");
  } catch (const std::exception& exception) {
    return Status(Code::kINTERNAL, std::string("unexpected exception: ") + exception.what());
  } catch (...) {
    return Status(Code::kINTERNAL, "unexpected exception of an unknown type");
  }
}

// The session room lets no exception through that leaves a session half changed; should one come, nothing is known
// about its object any more.
template <class H, class F>
Status poison_on_exception(H& owner, F&& body) {
  try {
    return body();
  } catch (...) {
    owner.poison();
    throw;
  }
}

// A function without handle.
template <class F>
int32_t run_call(const char* place, dsv41_error* error, F&& body) noexcept {
  try {
    return report(place, catch_all(body), error);
  } catch (...) {  // not even memory for the message
    return DSV41_NO_MEMORY;
  }
}

template <class A, class F>
int32_t run_call(const char* place, dsv41_error* error, Want<A> a, F&& body) noexcept {
  try {
    Use use(a);
    if (!use.status().ok()) return report(place, use.status(), error);
    Status status = catch_all([&] { return body(*a.handle); });
    if (status.code() == Code::kINTERNAL) use.poison();
    return report(place, status, error);
  } catch (...) {
    return DSV41_NO_MEMORY;
  }
}

template <class A, class B, class F>
int32_t run_call(const char* place, dsv41_error* error, Want<A> a, Want<B> b, F&& body) noexcept {
  try {
    Use first(a), second(b);
    if (!first.status().ok()) return report(place, first.status(), error);
    if (!second.status().ok()) return report(place, second.status(), error);
    Status status = catch_all([&] { return body(*a.handle, *b.handle); });
    if (status.code() == Code::kINTERNAL) {
      first.poison();
      second.poison();
    }
    return report(place, status, error);
  } catch (...) {
    return DSV41_NO_MEMORY;
  }
}

template <class A, class B, class C, class F>
int32_t run_call(const char* place, dsv41_error* error, Want<A> a, Want<B> b, Want<C> c, F&& body) noexcept {
  try {
    Use first(a), second(b), third(c);
    for (const Use* use : {&first, &second, &third}) {
      if (!use->status().ok()) return report(place, use->status(), error);
    }
    Status status = catch_all([&] { return body(*a.handle, *b.handle, *c.handle); });
    if (status.code() == Code::kINTERNAL) {
      for (Use* use : {&first, &second, &third}) use->poison();
    }
    return report(place, status, error);
  } catch (...) {
    return DSV41_NO_MEMORY;
  }
}

}  // namespace dsv41::api
