#include "base/wire.h"

#include <doctest/doctest.h>

#include <array>
#include <limits>

namespace dsv41::test {
namespace {

enum class Colour : uint16_t { kRed = 0x1234 };

TEST_SUITE("base/wire") {
  TEST_CASE("numbers lie in the bytes lowest part first") {
    WireWriter writer;
    writer.put(uint32_t{0x01020304});
    writer.put(Colour::kRed);
    writer.put(int8_t{-2});
    const std::array expected = {4, 3, 2, 1, 0x34, 0x12, 0xfe};
    REQUIRE(writer.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(std::to_integer<int>(writer.bytes()[i]) == expected[i]);
    }
  }

  TEST_CASE("what is written is read back") {
    WireWriter writer;
    writer.put(std::numeric_limits<uint64_t>::max());
    writer.put(std::numeric_limits<int64_t>::min());
    writer.put(uint8_t{7});
    writer.put_zeros(3);
    writer.put_bytes(std::array{std::byte{1}, std::byte{2}});
    writer.put(Colour::kRed);
    const std::vector<std::byte> bytes = writer.take();
    WireReader reader(bytes);
    CHECK(reader.get<uint64_t>() == std::numeric_limits<uint64_t>::max());
    CHECK(reader.get<int64_t>() == std::numeric_limits<int64_t>::min());
    CHECK(reader.get<uint8_t>() == 7);
    CHECK(reader.get_zeros(3));
    std::array<std::byte, 2> two;
    CHECK(reader.get_into(two));
    CHECK(two == std::array{std::byte{1}, std::byte{2}});
    CHECK(reader.n_left() == 2);
    CHECK(reader.get<Colour>() == Colour::kRed);
    CHECK(reader.ok());
    CHECK(reader.n_left() == 0);
  }

  TEST_CASE("a read past the end gives zero and is remembered") {
    const std::array<std::byte, 3> bytes = {std::byte{1}, std::byte{2}, std::byte{3}};
    WireReader reader(bytes);
    CHECK(reader.get<uint32_t>() == 0);
    CHECK_FALSE(reader.ok());
    CHECK(reader.get<uint8_t>() == 0);  // there are bytes, but the struct is lost
    CHECK(reader.get_bytes(1).empty());
    CHECK_FALSE(reader.get_zeros(0));
    std::array<std::byte, 1> untouched = {std::byte{9}};
    CHECK_FALSE(reader.get_into(untouched));
    CHECK(untouched[0] == std::byte{9});
  }

  TEST_CASE("lengths near the end of the number range do not wrap around") {
    const std::array<std::byte, 3> bytes = {};
    for (const size_t n : {size_t{4}, SIZE_MAX, SIZE_MAX - 2}) {
      CAPTURE(n);
      WireReader reader(bytes);
      CHECK(reader.get_bytes(n).empty());
      CHECK_FALSE(reader.ok());
    }
  }

  TEST_CASE("padding that is not zero is a fault") {
    const std::array<std::byte, 3> bytes = {std::byte{0}, std::byte{1}, std::byte{0}};
    WireReader reader(bytes);
    CHECK(reader.get_zeros(1));
    CHECK_FALSE(reader.get_zeros(2));
    CHECK_FALSE(reader.ok());
  }

  TEST_CASE("nothing can be read from nothing") {
    WireReader reader({});
    CHECK(reader.get_bytes(0).empty());
    CHECK(reader.get_zeros(0));
    CHECK(reader.get_into({}));
    CHECK(reader.ok());
    CHECK(reader.get<uint8_t>() == 0);
    CHECK_FALSE(reader.ok());
  }
}

}  // namespace
}  // namespace dsv41::test
