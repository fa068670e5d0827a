#include "base/stream_copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace dsv41::test {

TEST_SUITE("base/stream_copy") {
  TEST_CASE("a streamed copy writes what it is given and nothing around it, wherever both lie") {
    constexpr size_t kMost = 300;
    std::vector<std::byte> from(kMost + 64);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
    for (size_t to_offset = 0; to_offset < 64; to_offset += 3) {
      for (const size_t from_offset : {size_t{0}, size_t{1}, size_t{16}, size_t{63}}) {
        for (const size_t n : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{128}, kMost}) {
          CAPTURE(to_offset);
          CAPTURE(from_offset);
          CAPTURE(n);
          std::vector<std::byte> to(to_offset + n + 64, std::byte{0xee});
          std::vector<std::byte> expected = to;
          std::copy_n(from.data() + from_offset, n, expected.data() + to_offset);
          stream_copy(to.data() + to_offset, from.data() + from_offset, n);
          REQUIRE(to == expected);
        }
      }
    }
  }
}

}  // namespace dsv41::test
