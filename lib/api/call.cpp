#include "api/call.h"

#include <unistd.h>

#include <cstring>

namespace dsv41::api {
namespace {

// Per thread, so that two runtimes in one process cannot meet here. One piece, initialised by constants: a shared library
// finds it by a call.
struct ThreadState {
  uint32_t number = 0;  // 0: not asked for yet
  int n_callbacks = 0;  // that run, one inside the other
  int n_strict = 0;
  const Handle* at_rest = nullptr;  // of the innermost callback
};
constinit thread_local ThreadState thread_state;

// The system's: the threads that live have different ones.
uint32_t number_of(ThreadState& thread) {
  if (thread.number == 0) thread.number = static_cast<uint32_t>(::gettid());
  return thread.number;
}

bool callback_safe(Access access) {
  return access == Access::kSharedSafe || access == Access::kExclusiveSafe || access == Access::kReadSafe;
}
bool exclusive(Access access) { return access != Access::kShared && access != Access::kSharedSafe; }
bool at_rest(const Handle* handle, Access access) {
  return access == Access::kDurablePoint && CallbackScope::durable_point_of(handle);
}

// Why the handle may not be used now, but for another call that has it; ok: it may.
[[gnu::cold]] Status refusal(const Handle* handle, HandleKind kind, Access access) {
  const std::string name = handle_name(kind);
  if (!handle) return Status(Code::kINVALID_ARG, name + " is NULL");
  if (handle->kind() != kind) return Status(Code::kINVALID_ARG, "the handle is not a " + name);
  if (handle->released()) return Status(Code::kINVALID_ARG, "the " + name + " was released");
  if (CallbackScope::strict()) {
    return Status(Code::kBUSY, "no handle may be used inside a memory, clock or log callback");
  }
  if (CallbackScope::active() && !callback_safe(access) && !at_rest(handle, access)) {
    return Status(Code::kBUSY, "not allowed inside a callback");
  }
  if (handle->poisoned()) {
    return Status(Code::kPOISONED,
                  "an earlier call on this " + name + " failed with INTERNAL; only release is allowed");
  }
  return Status();
}

// Copies text into a field of *error as far as the caller's struct reaches, NUL-terminated and cut between characters.
void fill_text(dsv41_error* error, size_t offset, size_t field_bytes, std::string_view text) {
  if (error->struct_size <= offset) return;
  const size_t room = std::min<size_t>(field_bytes, error->struct_size - offset);
  size_t n = std::min(text.size(), room - 1);
  if (n < text.size()) {
    while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80) --n;
  }
  char* field = reinterpret_cast<char*>(error) + offset;
  if (n) std::memcpy(field, text.data(), n);
  field[n] = '\0';
}

void fill_number(dsv41_error* error, size_t offset, int32_t value) {
  if (error->struct_size < offset + sizeof value) return;
  std::memcpy(reinterpret_cast<char*>(error) + offset, &value, sizeof value);
}

}  // namespace

const char* handle_name(HandleKind kind) {
  switch (kind) {
    case HandleKind::kRuntime: return "runtime";
    case HandleKind::kCancel: return "cancel token";
    case HandleKind::kModel: return "model";
    case HandleKind::kPool: return "pool";
    case HandleKind::kSession: return "session";
    case HandleKind::kSampler: return "sampler";
    case HandleKind::kTextStream: return "textstream";
    case HandleKind::kChatParse: return "chatparse";
    case HandleKind::kSnapshot: return "snapshot";
    case HandleKind::kStore: return "store";
    case HandleKind::kMatch: return "match";
    case HandleKind::kStoreIter: return "store_iter";
  }
  return "handle";
}

uint32_t this_thread_number() { return number_of(thread_state); }

CallbackScope::CallbackScope(Rule rule, const Handle* at_rest) : rule_(rule), at_rest_outside_(thread_state.at_rest) {
  ++thread_state.n_callbacks;
  if (rule_ == Rule::kStrict) ++thread_state.n_strict;
  thread_state.at_rest = at_rest;
}

CallbackScope::~CallbackScope() {
  --thread_state.n_callbacks;
  if (rule_ == Rule::kStrict) --thread_state.n_strict;
  thread_state.at_rest = at_rest_outside_;
}

bool CallbackScope::active() { return thread_state.n_callbacks > 0; }
bool CallbackScope::strict() { return thread_state.n_strict > 0; }
bool CallbackScope::durable_point_of(const Handle* handle) { return active() && thread_state.at_rest == handle; }

// Most calls come outside callbacks on handles that are in order, and take less time than a string.
Use::Use(Handle* handle, HandleKind kind, Access access) {
  ThreadState& thread = thread_state;
  const bool in_callback = thread.n_callbacks > 0;
  if (in_callback || !handle || handle->kind() != kind || handle->released() || handle->poisoned()) {
    status_ = refusal(handle, kind, access);
    if (!status_.ok()) return;
  }
  if (!exclusive(access)) {
    handle->add_reference();
    holds_ = Holds::kReference;
  } else {
    thread_ = number_of(thread);
    const bool may_be_inside = in_callback && (access == Access::kReadSafe || at_rest(handle, access));
    const bool inside = may_be_inside && handle->locked_by(thread_);  // the call outside holds it
    if (!inside && !handle->try_lock(thread_)) {
      status_ = Status(Code::kBUSY, std::string("another call on this ") + handle_name(kind) + " is running");
      return;
    }
    if (!inside) holds_ = Holds::kLock;
  }
  handle_ = handle;
}

void fill_error(const char* place, Code code, std::string_view message, int64_t os_error, dsv41_error* error) {
  if (error->struct_size < 8) return;
  const bool from_host = code == Code::kHOST_CALLBACK, is_ok = code == Code::kOK;
  const int32_t detail = static_cast<int32_t>(os_error);
  fill_number(error, offsetof(dsv41_error, code), static_cast<int32_t>(code));
  fill_number(error, offsetof(dsv41_error, os_error), from_host ? 0 : detail);
  fill_number(error, offsetof(dsv41_error, host_code), from_host ? detail : 0);
  fill_text(error, offsetof(dsv41_error, place), sizeof error->place, is_ok ? "" : place);
  fill_text(error, offsetof(dsv41_error, message), sizeof error->message,
            is_ok || !message.empty() ? message : std::string_view(code_text(code)));
}

}  // namespace dsv41::api
