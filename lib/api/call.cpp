#include "api/call.h"

#include <cstring>

namespace dsv41::api {
namespace {

struct CallbackDepth {
  int any = 0;
  int strict = 0;
  const Handle* at_rest = nullptr;  // of the innermost callback
};
// Per thread, so that two runtimes in one process cannot meet here.
thread_local CallbackDepth callback_depth;

bool callback_safe(Access access) {
  return access == Access::kSharedSafe || access == Access::kExclusiveSafe || access == Access::kReadSafe;
}
bool exclusive(Access access) { return access != Access::kShared && access != Access::kSharedSafe; }

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

uint64_t this_thread_number() {
  static std::atomic<uint64_t> next{1};
  thread_local const uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

CallbackScope::CallbackScope(Rule rule, const Handle* at_rest) : rule_(rule), at_rest_outside_(callback_depth.at_rest) {
  ++callback_depth.any;
  if (rule_ == Rule::kStrict) ++callback_depth.strict;
  callback_depth.at_rest = at_rest;
}

CallbackScope::~CallbackScope() {
  --callback_depth.any;
  if (rule_ == Rule::kStrict) --callback_depth.strict;
  callback_depth.at_rest = at_rest_outside_;
}

bool CallbackScope::active() { return callback_depth.any > 0; }
bool CallbackScope::strict() { return callback_depth.strict > 0; }
bool CallbackScope::durable_point_of(const Handle* handle) { return active() && callback_depth.at_rest == handle; }

// Messages are put together only where one is wanted: most calls take less time than a string.
Use::Use(Handle* handle, HandleKind kind, Access access) {
  const auto name = [kind] { return std::string(handle_name(kind)); };
  const bool at_rest = access == Access::kDurablePoint && CallbackScope::durable_point_of(handle);
  if (!handle) {
    status_ = Status(Code::kINVALID_ARG, name() + " is NULL");
  } else if (handle->kind() != kind) {
    status_ = Status(Code::kINVALID_ARG, "the handle is not a " + name());
  } else if (handle->released()) {
    status_ = Status(Code::kINVALID_ARG, "the " + name() + " was released");
  } else if (CallbackScope::strict()) {
    status_ = Status(Code::kBUSY, "no handle may be used inside a memory, clock or log callback");
  } else if (CallbackScope::active() && !callback_safe(access) && !at_rest) {
    status_ = Status(Code::kBUSY, "not allowed inside a callback");
  } else if (handle->poisoned()) {
    status_ =
        Status(Code::kPOISONED, "an earlier call on this " + name() + " failed with INTERNAL; only release is allowed");
  } else if (exclusive(access)) {
    const bool reads_inside = access == Access::kReadSafe && CallbackScope::active();
    const bool inside = (reads_inside || at_rest) && handle->locked_by_this_thread();
    locked_ = !inside && handle->try_lock();
    if (!inside && !locked_) status_ = Status(Code::kBUSY, "another call on this " + name() + " is running");
  }
  if (status_.ok()) {
    handle_ = handle;
    handle_->add_reference();
  }
}

Use::~Use() {
  if (!handle_) return;
  if (locked_) handle_->unlock();
  handle_->drop_reference();
}

int32_t report(const char* place, const Status& status, dsv41_error* error) {
  const int32_t code = static_cast<int32_t>(status.code());
  if (!error || error->struct_size < 8) return code;
  const bool from_host = status.code() == Code::kHOST_CALLBACK;
  const int32_t detail = static_cast<int32_t>(status.os_error());
  fill_number(error, offsetof(dsv41_error, code), code);
  fill_number(error, offsetof(dsv41_error, os_error), from_host ? 0 : detail);
  fill_number(error, offsetof(dsv41_error, host_code), from_host ? detail : 0);
  fill_text(error, offsetof(dsv41_error, place), sizeof error->place, status.ok() ? "" : place);
  const std::string_view message = status.message();
  fill_text(error, offsetof(dsv41_error, message), sizeof error->message,
            status.ok() || !message.empty() ? message : std::string_view(code_text(status.code())));
  return code;
}

}  // namespace dsv41::api
