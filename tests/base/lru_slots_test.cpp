#include "base/lru_slots.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>

namespace dsv41::test {
namespace {

TEST_SUITE("base/lru_slots") {
  TEST_CASE("the least recently used slot is taken, empty ones before it") {
    LruSlots slots(3);
    const int32_t a = slots.claim(10), b = slots.claim(20);
    CHECK(slots.find(10) == a);
    slots.touch(a);
    const int32_t c = slots.claim(30);
    CHECK(c != a);
    CHECK(c != b);
    CHECK(slots.claim(40) == b);
    CHECK(slots.find(20) == -1);
    slots.forget(a);
    CHECK(slots.claim(50) == a);
  }

  TEST_CASE("a pinned slot keeps its key, and a forgotten one is taken only when its last pin is gone") {
    LruSlots slots(2);
    const int32_t a = slots.claim(1);
    slots.pin(a);
    slots.pin(a);
    const int32_t b = slots.claim(2);
    CHECK(slots.claim(3) == b);
    slots.pin(b);
    CHECK(slots.n_pinned() == 2);
    CHECK(slots.claim(4) == -1);
    slots.forget(a);
    CHECK(slots.find(1) == -1);
    slots.unpin(a);
    CHECK(slots.claim(4) == -1);
    slots.unpin(a);
    CHECK(slots.claim(4) == a);
    CHECK(slots.find(3) == b);
  }

  TEST_CASE("no slots answer with none") {
    LruSlots slots(0);
    CHECK(slots.find(1) == -1);
    CHECK(slots.claim(1) == -1);
  }

  TEST_CASE("random work gives what a plain list gives") {
    constexpr int32_t kSlots = 13;
    LruSlots slots(kSlots);
    std::list<uint64_t> used;  // the least recently used key first
    std::mt19937_64 random(5);
    for (int step = 0; step < 20000; ++step) {
      const uint64_t key = random() % 30;
      const auto at = std::find(used.begin(), used.end(), key);
      const int32_t slot = slots.find(key);
      REQUIRE((slot >= 0) == (at != used.end()));
      if (slot >= 0) {
        REQUIRE(slots.key_of(slot) == key);
        used.erase(at);
        if (random() % 4 == 0) {
          slots.forget(slot);
          continue;
        }
        random() % 2 ? slots.touch(slot) : (slots.pin(slot), slots.unpin(slot));
      } else {
        REQUIRE(slots.claim(key) >= 0);
        if (used.size() == kSlots) used.pop_front();
      }
      used.push_back(key);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
