#include "base/host_mapping.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace dsv41::test {
namespace {

// Whether the address belongs to the process.
bool is_mapped(const std::byte* address) {
  unsigned char resident = 0;
  return ::mincore(const_cast<std::byte*>(address), 1, &resident) == 0;
}

// The first number of /proc/self/statm, in pages.
uint64_t address_space_bytes() {
  return std::stoull(read_system_file("/proc/self/statm", 4096).value()) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST_SUITE("base/host_mapping") {
  TEST_CASE("a mapping is all zeros, at the start of a page, and can be written to its last byte") {
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, uint64_t{4097}, uint64_t{3} << 20}) {
      CAPTURE(bytes);
      const HostMapping mapping = HostMapping::create(bytes).value();
      REQUIRE(mapping.size() == bytes);
      CHECK(reinterpret_cast<uintptr_t>(mapping.data()) % static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)) == 0);
      CHECK(std::all_of(mapping.data(), mapping.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
      mapping.data()[bytes - 1] = std::byte{1};
    }
  }

  TEST_CASE("a large mapping starts at a large page, and nothing more is kept than was asked for") {
    const uint64_t bytes = (uint64_t{5} << 20) + 1;
    std::vector<HostMapping> mappings(16);
    const uint64_t before = address_space_bytes();
    for (HostMapping& mapping : mappings) {
      mapping = HostMapping::create(bytes).value();
      CHECK(reinterpret_cast<uintptr_t>(mapping.data()) % (2 << 20) == 0);
      mapping.data()[bytes - 1] = std::byte{1};
    }
    const uint64_t grown = address_space_bytes() - before;
    CHECK(grown >= 16 * bytes);
    CHECK(grown < 16 * (bytes + 131072));  // not by the 2 MiB that each was given to choose from
    mappings.clear();
    CHECK(address_space_bytes() < before + (2 << 20));  // a sanitizer maps some for itself
  }

  TEST_CASE("no bytes are no mapping") {
    const HostMapping mapping = HostMapping::create(0).value();
    CHECK(mapping.data() == nullptr);
    CHECK(mapping.size() == 0);
  }

  TEST_CASE("memory goes back to the system when its mapping ends") {
    const std::byte* data = nullptr;
    {
      const HostMapping mapping = HostMapping::create(1 << 20).value();
      data = mapping.data();
      CHECK(is_mapped(data));
    }
    CHECK_FALSE(is_mapped(data));
  }

  TEST_CASE("a moved mapping keeps its memory and leaves nothing behind") {
    HostMapping first = HostMapping::create(5000).value();
    first.data()[4999] = std::byte{7};
    const std::byte* data = first.data();
    HostMapping second = std::move(first);
    CHECK(second.data() == data);
    CHECK(second.data()[4999] == std::byte{7});
    CHECK(first.data() == nullptr);
    CHECK(first.size() == 0);
    HostMapping third = HostMapping::create(1).value();
    const std::byte* freed = third.data();
    third = std::move(second);
    second = HostMapping();
    CHECK(third.data() == data);
    CHECK(third.size() == 5000);
    CHECK_FALSE(is_mapped(freed));
  }

  TEST_CASE("more than the system has is NO_MEMORY") {
    for (const uint64_t bytes : {UINT64_MAX, uint64_t{1} << 62, uint64_t{1} << 48}) {
      CAPTURE(bytes);
      const Result<HostMapping> mapping = HostMapping::create(bytes);
      CHECK(mapping.status().code() == Code::kNO_MEMORY);
      CHECK(mapping.status().message().find(std::to_string(bytes)) != std::string_view::npos);
    }
  }

  TEST_CASE("a refusal that a test asks for is NO_MEMORY too, and ends") {
    HostMapping::refuse_for_tests([] { return true; });
    const Result<HostMapping> refused = HostMapping::create(1);
    HostMapping::refuse_for_tests(nullptr);
    CHECK(refused.status().code() == Code::kNO_MEMORY);
    CHECK(HostMapping::create(1).ok());
  }
}

}  // namespace
}  // namespace dsv41::test
