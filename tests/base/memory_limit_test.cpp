#include "base/memory_limit.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

constexpr uint64_t kMemTotal = uint64_t{1000000} * 1024;
constexpr const char* kMeminfo = "MemTotal:        1000000 kB\nMemFree:          500000 kB\n";

struct Case {
  const char* name;
  const char* cgroup;                                       // /proc/self/cgroup
  std::vector<std::pair<const char*, const char*>> limits;  // below /sys/fs/cgroup
  uint64_t expected;
};

const Case kCases[] = {
    {"no group", "", {}, kMemTotal},
    {"v2 without a limit", "0::/\n", {{"memory.max", "max\n"}}, kMemTotal},
    {"v2 with a limit", "0::/\n", {{"memory.max", "300000000\n"}}, 300000000},
    {"v2 with a limit above physical memory", "0::/\n", {{"memory.max", "3000000000\n"}}, kMemTotal},
    {"v2, limit of the own group", "0::/a/b\n", {{"a/b/memory.max", "5000"}, {"a/memory.max", "max"}}, 5000},
    {"v2, a lower limit of the group above", "0::/a/b\n", {{"a/b/memory.max", "5000"}, {"a/memory.max", "4000"}}, 4000},
    {"v2, only the top is mounted", "0::/docker/123\n", {{"memory.max", "6000"}}, 6000},
    {"v2, the group lies outside of the mount", "0::/../x\n", {{"memory.max", "6000"}, {"../x/memory.max", "1"}}, 6000},
    {"v2, another group's limit", "0::/a\n", {{"ab/memory.max", "1"}, {"a/c/memory.max", "2"}}, kMemTotal},
    {"v1 without a limit", "4:memory:/\n", {{"memory/memory.limit_in_bytes", "9223372036854771712\n"}}, kMemTotal},
    {"v1 with a limit", "9:cpu,memory:/a\n2:pids:/\n", {{"memory/a/memory.limit_in_bytes", "7000\n"}}, 7000},
    {"v1, only the top is mounted", "9:memory:/docker/1\n", {{"memory/memory.limit_in_bytes", "8000"}}, 8000},
    {"v1, a controller with a longer name", "9:memory2:/a\n", {{"memory/a/memory.limit_in_bytes", "1"}}, kMemTotal},
    {"both, the lower counts",
     "3:memory:/\n0::/\n",
     {{"memory/memory.limit_in_bytes", "9000"}, {"memory.max", "max"}},
     9000},
    {"a group of v2 has no file of v1", "0::/\n", {{"memory/memory.limit_in_bytes", "1"}}, kMemTotal},
    {"texts that are no limits", "0::/\nx\n::\n0:\n:memory:", {{"memory.max", "-5\n"}}, kMemTotal},
    {"a number beyond 64 bits", "0::/", {{"memory.max", "99999999999999999999999"}}, kMemTotal},
};

TEST_SUITE("base/memory_limit") {
  TEST_CASE("the limit is the lowest of physical memory and the control groups") {
    for (const Case& row : kCases) {
      CAPTURE(row.name);
      const TempFolder folder;
      const auto write = [&](const std::string& name, const char* text) {
        std::filesystem::create_directories(std::filesystem::path(folder.file(name)).parent_path());
        folder.write(name, text);
      };
      write("proc/meminfo", kMeminfo);
      write("proc/self/cgroup", row.cgroup);
      for (const auto& [name, text] : row.limits) write(std::string("sys/fs/cgroup/") + name, text);
      CHECK(usable_memory_bytes(folder.path()) == row.expected);
    }
  }

  TEST_CASE("without the system's files the machine is asked") {
    const TempFolder folder;
    CHECK(usable_memory_bytes(folder.path()) > 0);
  }

  TEST_CASE("this machine has a limit") {
    CHECK(usable_memory_bytes() > uint64_t{1} << 20);
    const TempFolder none;
    CHECK(usable_memory_bytes() <= usable_memory_bytes(none.path()));
  }
}

}  // namespace
}  // namespace dsv41::test
