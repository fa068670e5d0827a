// The frame of every call, from inside: exceptions, poisoning, error texts.
#include <doctest/doctest.h>

#include <new>
#include <stdexcept>
#include <string>

#include "api/call.h"
#include "api/handle.h"

namespace dsv41::test {
namespace {

using namespace dsv41::api;

struct TestHandle : Handle {
  static constexpr HandleKind kKind = HandleKind::kSession;
  explicit TestHandle(bool* gone = nullptr) : Handle(kKind), gone_(gone) {}
  ~TestHandle() override {
    if (gone_) *gone_ = true;
  }

 private:
  bool* gone_;
};

dsv41_error new_error() {
  dsv41_error error;
  dsv41_error_init(&error, sizeof error);
  return error;
}

TEST_SUITE("api/call_frame") {
  TEST_CASE("an unexpected exception is INTERNAL and poisons the handle for all but release") {
    auto* handle = new TestHandle;
    dsv41_error error = new_error();
    const auto throws = [](TestHandle&) -> Status { throw std::logic_error("invariant broken"); };
    CHECK(run_call("place", &error, want(handle, Access::kExclusive), throws) == DSV41_INTERNAL);
    CHECK(std::string(error.message).find("invariant broken") != std::string::npos);
    int n_runs = 0;
    const auto counts = [&](TestHandle&) -> Status {
      ++n_runs;
      return {};
    };
    for (Access access :
         {Access::kShared, Access::kSharedSafe, Access::kExclusive, Access::kReadSafe, Access::kDurablePoint}) {
      CHECK(run_call("place", &error, want(handle, access), counts) == DSV41_POISONED);
    }
    CHECK(n_runs == 0);
    handle->release();
  }

  TEST_CASE("an INTERNAL status poisons both handles of a call") {
    auto *first = new TestHandle, *second = new TestHandle;
    CHECK(run_call("place", nullptr, want(first, Access::kExclusive), want(second, Access::kExclusive),
                   [](TestHandle&, TestHandle&) { return Status(Code::kINTERNAL, "broken"); }) == DSV41_INTERNAL);
    CHECK(first->poisoned());
    CHECK(second->poisoned());
    first->release();
    second->release();
  }

  TEST_CASE("a throw of any type is caught") {
    CHECK(run_call("place", nullptr, []() -> Status { throw 42; }) == DSV41_INTERNAL);
  }

  TEST_CASE("bad_alloc is NO_MEMORY and poisons nothing") {
    auto* handle = new TestHandle;
    CHECK(run_call("place", nullptr, want(handle, Access::kExclusive),
                   [](TestHandle&) -> Status { throw std::bad_alloc(); }) == DSV41_NO_MEMORY);
    CHECK_FALSE(handle->poisoned());
    CHECK(run_call("place", nullptr, want(handle, Access::kExclusive), [](TestHandle&) { return Status(); }) ==
          DSV41_OK);
    handle->release();
  }

  TEST_CASE("one handle for both parts of a call is BUSY, not a deadlock") {
    auto* handle = new TestHandle;
    CHECK(run_call("place", nullptr, want(handle, Access::kExclusive), want(handle, Access::kExclusive),
                   [](TestHandle&, TestHandle&) { return Status(); }) == DSV41_BUSY);
    CHECK(run_call("place", nullptr, want(handle, Access::kExclusive), [](TestHandle&) { return Status(); }) ==
          DSV41_OK);
    handle->release();
  }

  TEST_CASE("a handle that is released inside its own call goes when the call ends") {
    for (Access access : {Access::kShared, Access::kExclusive, Access::kReadSafe}) {
      CAPTURE(static_cast<int>(access));
      bool gone = false;
      auto* handle = new TestHandle(&gone);
      CHECK(run_call("place", nullptr, want(handle, access), [&](TestHandle& self) {
              self.release();
              CHECK_FALSE(gone);
              return Status();
            }) == DSV41_OK);
      CHECK(gone);
    }
  }

  TEST_CASE("a handle that is released inside its own call lives on with a child that the call has made") {
    bool gone = false;
    auto* handle = new TestHandle(&gone);
    Ref<TestHandle> child;
    CHECK(run_call("place", nullptr, want(handle, Access::kExclusive), [&](TestHandle& self) {
            self.release();
            child = Ref<TestHandle>(&self);
            return Status();
          }) == DSV41_OK);
    CHECK_FALSE(gone);
    child = Ref<TestHandle>();
    CHECK(gone);
  }

  TEST_CASE("a poll that finds nothing answers END and says so, and leaves a failure as it is") {
    dsv41_error error = new_error();
    CHECK(end_if_ok(DSV41_OK, "place", "no event now", &error) == DSV41_END);
    CHECK(error.code == DSV41_END);
    CHECK(std::string(error.message) == "no event now");
    CHECK(std::string(error.place) == "place");
    CHECK(end_if_ok(DSV41_OK, "place", "no event now", nullptr) == DSV41_END);
    report("other", Status(Code::kBUSY, "busy"), &error);
    CHECK(end_if_ok(DSV41_BUSY, "place", "no event now", &error) == DSV41_BUSY);
    CHECK(std::string(error.message) == "busy");
  }

  TEST_CASE("at a durable point of a handle, what is allowed there is let in, and nothing else") {
    auto *handle = new TestHandle, *other = new TestHandle;
    const auto works = [](TestHandle&) { return Status(); };
    const auto call = [&](TestHandle* on, Access access) {
      return run_call("place", nullptr, want(on, access), works);
    };
    CHECK(call(handle, Access::kDurablePoint) == DSV41_OK);
    REQUIRE(handle->try_lock(this_thread_number()));  // as the running call has it
    CHECK(call(handle, Access::kDurablePoint) == DSV41_BUSY);
    {
      CallbackScope scope(CallbackScope::Rule::kSafeCalls);
      CHECK(call(handle, Access::kDurablePoint) == DSV41_BUSY);
    }
    {
      CallbackScope scope(CallbackScope::Rule::kSafeCalls, handle);
      CHECK(call(handle, Access::kDurablePoint) == DSV41_OK);
      CHECK(call(handle, Access::kReadSafe) == DSV41_OK);
      CHECK(call(handle, Access::kExclusive) == DSV41_BUSY);
      CHECK(call(other, Access::kDurablePoint) == DSV41_BUSY);
      {
        CallbackScope inner(CallbackScope::Rule::kSafeCalls);
        CHECK(call(handle, Access::kDurablePoint) == DSV41_BUSY);
      }
      CHECK(call(handle, Access::kDurablePoint) == DSV41_OK);
      CallbackScope strict(CallbackScope::Rule::kStrict, handle);
      CHECK(call(handle, Access::kDurablePoint) == DSV41_BUSY);
    }
    CHECK(call(handle, Access::kDurablePoint) == DSV41_BUSY);
    handle->unlock(this_thread_number());
    handle->release();
    other->release();
  }

  TEST_CASE("errno and host values go to their own fields") {
    dsv41_error error = new_error();
    CHECK(report("place", Status(Code::kIO, "cannot read", 5), &error) == DSV41_IO);
    CHECK(error.os_error == 5);
    CHECK(error.host_code == 0);
    CHECK(report("place", Status(Code::kHOST_CALLBACK, "said no", -3), &error) == DSV41_HOST_CALLBACK);
    CHECK(error.os_error == 0);
    CHECK(error.host_code == -3);
  }

  TEST_CASE("a long message is cut between characters") {
    dsv41_error error = new_error();
    std::string text;
    while (text.size() < 3000) text += "é";
    report("place", Status(Code::kCHECKPOINT, text), &error);
    const std::string got = error.message;
    CHECK(got.size() == 1934);  // 1935 is odd, and é has two bytes
    CHECK(text.compare(0, got.size(), got) == 0);
  }

  TEST_CASE("a status without a message gets the text of its code") {
    dsv41_error error = new_error();
    report("place", Status(Code::kPOOL_FULL, ""), &error);
    CHECK(std::string(error.message) == dsv41_status_text(DSV41_POOL_FULL));
  }
}

}  // namespace
}  // namespace dsv41::test
