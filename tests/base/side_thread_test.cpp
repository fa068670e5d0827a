#include "base/side_thread.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

namespace dsv41::test {
namespace {

TEST_SUITE("base/side_thread") {
  TEST_CASE("work is done in order, each once, and wait says what came of it") {
    SideThread side;
    CHECK(side.wait().ok());
    std::vector<int> done;
    for (int i = 0; i < 100; ++i) {
      CAPTURE(i);
      side.begin([&done, i] {
        done.push_back(i);
        return i % 2 ? Status(Code::kIO, "odd") : Status();
      });
      CHECK(side.wait().code() == (i % 2 ? Code::kIO : Code::kOK));
      CHECK(side.wait().ok());  // told already
    }
    REQUIRE(done.size() == 100);
    for (int i = 0; i < 100; ++i) CHECK(done[static_cast<size_t>(i)] == i);
  }

  TEST_CASE("behind work that failed nothing is done, until that was told") {
    SideThread side;
    std::atomic<bool> go = false;
    int n_done = 0;
    side.begin([&] {
      while (!go) std::this_thread::yield();
      ++n_done;
      return Status(Code::kIO, "first");
    });
    for (int i = 0; i < 5; ++i) {
      side.begin([&] {
        ++n_done;
        return Status(Code::kNO_SPACE, "later");
      });
    }
    go = true;
    CHECK(side.wait().code() == Code::kIO);
    CHECK(n_done == 1);
    side.begin([&] {
      ++n_done;
      return Status();
    });
    CHECK(side.wait().ok());
    CHECK(n_done == 2);
  }

  TEST_CASE("a wait for room leaves so much work, and no more") {
    SideThread side;
    std::atomic<int> n_allowed = 0, n_done = 0;
    for (int i = 0; i < 4; ++i) {
      side.begin([&, i] {
        while (n_allowed <= i) std::this_thread::yield();
        ++n_done;
        return Status();
      });
    }
    CHECK(side.wait(4).ok());
    CHECK(n_done == 0);
    n_allowed = 2;
    CHECK(side.wait(2).ok());
    CHECK(n_done == 2);
    n_allowed = 4;
    CHECK(side.wait().ok());
    CHECK(n_done == 4);
  }

  TEST_CASE("work runs beside its owner") {
    SideThread side;
    std::atomic<bool> go = false;
    side.begin([&] {
      while (!go) std::this_thread::yield();
      return Status();
    });
    go = true;  // were it not beside, begin() would not have come back
    CHECK(side.wait().ok());
  }

  TEST_CASE("memory that ends in the work ends in its owner") {
    SideThread side;
    side.begin([]() -> Status { throw std::bad_alloc(); });
    CHECK_THROWS_AS(static_cast<void>(side.wait()), std::bad_alloc);
    CHECK(side.wait().ok());
    side.begin([]() -> Status { throw std::bad_alloc(); });
    side.finish();
    CHECK(side.wait().ok());
    side.begin([] { return Status(); });
    CHECK(side.wait().ok());
  }

  TEST_CASE("who goes away waits for the work") {
    std::atomic<bool> done = false;
    {
      SideThread side;
      side.begin([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        done = true;
        return Status(Code::kIO, "lost");
      });
    }
    CHECK(done);
  }
}

}  // namespace
}  // namespace dsv41::test
