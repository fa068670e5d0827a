// Host callbacks as the session room wants them, cancel tokens, and handles that must fit.
#pragma once

#include <string>

#include "api/call.h"
#include "api/handles.h"

namespace dsv41::api {

// The host's progress callback for one call; remembers the value that stopped it.
class ProgressCall {
 public:
  // `floats` (may be null): the scope of the running call, left while the callback runs. `at_rest` (may be null): the
  // handle that may be saved meanwhile.
  ProgressCall(dsv41_progress_fn fn, void* user, uint32_t phase, FloatScope* floats, const Handle* at_rest = nullptr)
      : fn_(fn), user_(user), phase_(phase), floats_(floats), at_rest_(at_rest) {}

  bool wanted() const { return fn_ != nullptr; }

  // False when the host wants to stop.
  bool operator()(uint64_t done, uint64_t total) {
    const uint32_t flags = at_rest_ ? DSV41_PROGRESS_DURABLE_POINT : 0;
    const dsv41_progress progress = {sizeof progress, phase_, done, total, flags, 0};
    CallbackScope scope(CallbackScope::Rule::kSafeCalls, at_rest_);
    const auto call = [&] { return fn_(user_, &progress); };
    host_code_ = floats_ ? floats_->under_host_state(call) : call();
    return host_code_ == 0;
  }

  // The status of the call: a cancel that the host's value caused is a HOST_CALLBACK.
  Status name_cause(Status status) const {
    if (host_code_ == 0 || status.code() != Code::kCANCELLED) return status;
    return Status(Code::kHOST_CALLBACK, "the progress callback returned " + std::to_string(host_code_), host_code_);
  }

 private:
  dsv41_progress_fn fn_;
  void* user_;
  uint32_t phase_;
  FloatScope* floats_;
  const Handle* at_rest_;
  int32_t host_code_ = 0;
};

// The cancel token of a call; null means none. Holds a reference, so that a release in a callback does no harm.
class CancelUse {
 public:
  explicit CancelUse(dsv41_cancel* cancel) {
    if (!cancel) return;
    if (cancel->kind() != HandleKind::kCancel) {
      status_ = Status(Code::kINVALID_ARG, "options.cancel is not a cancel token");
    } else {
      cancel_ = Ref<dsv41_cancel>(cancel);
    }
  }
  const Status& status() const { return status_; }
  const CancelFlag* flag() const { return cancel_ ? &cancel_->flag : nullptr; }

 private:
  Ref<dsv41_cancel> cancel_;
  Status status_;
};

// INVALID_ARG when the sampler was made for another number of tokens than the session's model has.
Status check_same_vocabulary(const dsv41_session& session, const dsv41_sampler& sampler);

}  // namespace dsv41::api
