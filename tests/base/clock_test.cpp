#include "base/clock.h"

#include <doctest/doctest.h>

#include <ctime>

namespace dsv41::test {
namespace {

uint64_t read_number(void* user) { return *static_cast<uint64_t*>(user); }

TEST_SUITE("base/clock") {
  TEST_CASE("the host's clocks are asked where it gives them") {
    uint64_t number = 42;
    CHECK(Clock{read_number, &number}.now_ns() == 42);
    CHECK(WallClock{read_number, &number}.now_unix_ns() == 42);
  }

  TEST_CASE("the system's wall clock counts nanoseconds since 1970") {
    const uint64_t before = static_cast<uint64_t>(std::time(nullptr));
    const uint64_t now = WallClock().now_unix_ns() / 1000000000;
    // time() may read a coarser clock, which is up to a tick behind.
    CHECK(now >= before);
    CHECK(now <= static_cast<uint64_t>(std::time(nullptr)) + 1);
  }

  TEST_CASE("the system's monotonic clock does not go back") {
    const uint64_t first = Clock().now_ns();
    CHECK(Clock().now_ns() >= first);
  }
}

}  // namespace
}  // namespace dsv41::test
