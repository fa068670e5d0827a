// Machines of any shape, made up of a /sys tree in a folder and of answers to system calls.
#include "backend/cpu/placement.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "backend/backend.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using backend::Affinity;
using backend::BackendOptions;
using backend::CpuList;
using backend::MemoryPlace;
using backend::NumaPolicy;
using backend::Placement;
using backend::Topology;
using Files = std::vector<std::pair<std::string, std::string>>;  // path below /sys, content

class MadeUpSystem final : public backend::HostSystem {
 public:
  MadeUpSystem(const Files& files, CpuList allowed) : allowed_(std::move(allowed)) {
    for (const auto& [path, text] : files) {
      const std::filesystem::path file = std::filesystem::path(folder_.path()) / path;
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file) << text;
    }
  }
  std::string sys_folder() const override { return folder_.path(); }
  CpuList allowed_cpus() const override { return allowed_; }
  int run_on(const CpuList& cpus) const override {
    std::lock_guard lock(mutex_);
    bound.push_back(cpus);
    return bind_error;
  }
  int place_own_pages(MemoryPlace, const std::vector<int>&) const override {
    ++n_threads_placed;
    return memory_error;
  }
  int place_pages(void*, uint64_t bytes, MemoryPlace place, const std::vector<int>& nodes) const override {
    bytes_placed += bytes;
    last_place = place;
    last_nodes = nodes;
    return memory_error;
  }
  Topology topology() const { return backend::read_topology(sys_folder(), allowed_); }

  int bind_error = 0, memory_error = 0;
  mutable std::vector<CpuList> bound;
  mutable std::atomic<int> n_threads_placed{0};
  mutable uint64_t bytes_placed = 0;
  mutable MemoryPlace last_place = MemoryPlace::kAnywhere;
  mutable std::vector<int> last_nodes;

 private:
  TempFolder folder_;
  CpuList allowed_;
  mutable std::mutex mutex_;
};

const Files kTwoNodes = {{"devices/system/cpu/online", "0-7\n"},
                         {"devices/system/node/online", "0-1\n"},
                         {"devices/system/node/node0/cpulist", "0-3\n"},
                         {"devices/system/node/node1/cpulist", "4-7\n"}};
// Processor 2 is off, node 1 is missing, node 2 has memory alone.
const Files kHoles = {{"devices/system/cpu/online", "0-1,3-6\n"},
                      {"devices/system/node/online", "0,2-3\n"},
                      {"devices/system/node/node0/cpulist", "0-2\n"},
                      {"devices/system/node/node2/cpulist", "\n"},
                      {"devices/system/node/node3/cpulist", "3-6\n"}};

CpuList up_to(int n) {
  CpuList cpus;
  for (int cpu = 0; cpu < n; ++cpu) cpus.push_back(cpu);
  return cpus;
}

std::string nodes_text(const Topology& topology) {
  std::string text;
  for (const backend::NumaNode& node : topology.nodes) {
    text += std::to_string(node.id) + ":" + backend::cpu_list_text(node.cpus) + " ";
  }
  return text;
}

std::string workers_text(const Placement& placement) {
  std::string text;
  for (const CpuList& cpus : placement.worker_cpus) text += backend::cpu_list_text(cpus) + " ";
  return text;
}

TEST_SUITE("backend/placement") {
  TEST_CASE("lists of processors are read in the kernel's notation and written back") {
    struct Row {
      const char *text, *same;
    };
    for (const Row& row : {Row{"", ""}, Row{"\n", ""}, Row{"0", "0"}, Row{"0-3\n", "0-3"}, Row{"8,0-1,3", "0-1,3,8"},
                           Row{"2-4,3-5,2", "2-5"}, Row{"8191", "8191"}}) {
      CAPTURE(row.text);
      const Result<CpuList> list = backend::parse_cpu_list(row.text, "x");
      REQUIRE(list.ok());
      CHECK(backend::cpu_list_text(list.value()) == row.same);
    }
  }

  TEST_CASE("what is no list of processors is refused, with the word that is wrong") {
    struct Row {
      const char *text, *message;
    };
    for (const Row& row :
         {Row{"a", "\"a\""}, Row{"1,", "comma"}, Row{",1", "\"\""}, Row{"3-1", "\"3-1\""}, Row{"-1", "\"-1\""},
          Row{"1-", "\"1-\""}, Row{"0-3:2", "\"0-3:2\""}, Row{"1 2", "\"1 2\""}, Row{"8192", "8192 is above 8191"},
          Row{"99999999999", "\"99999999999\""}, Row{"0-999999999", "999999999 is above"}}) {
      CAPTURE(row.text);
      const Status status = backend::parse_cpu_list(row.text, "cpus").status();
      CHECK(status.code() == Code::kINVALID_ARG);
      CHECK(std::string(status.message()).starts_with("cpus: "));
      CHECK(std::string(status.message()).find(row.message) != std::string::npos);
    }
  }

  TEST_CASE("the topology is what is online, allowed and listed") {
    struct Row {
      const char* name;
      Files files;
      CpuList allowed;
      const char *cpus, *nodes;
    };
    for (const Row& row : {Row{"nothing in /sys", {}, {0, 1}, "0-1", "0:0-1 "},
                           Row{"two nodes", kTwoNodes, up_to(8), "0-7", "0:0-3 1:4-7 "},
                           Row{"a mask on both nodes", kTwoNodes, {3, 4, 5}, "3-5", "0:3 1:4-5 "},
                           Row{"a mask on the second", kTwoNodes, {6, 7}, "6-7", "1:6-7 "},
                           Row{"a mask beyond what is online", kTwoNodes, {6, 7, 8, 9}, "6-7", "1:6-7 "},
                           Row{"offline processors and holes", kHoles, up_to(8), "0-1,3-6", "0:0-1 3:3-6 "},
                           Row{"a processor on no node",
                               {{"devices/system/cpu/online", "0-2"},
                                {"devices/system/node/online", "0"},
                                {"devices/system/node/node0/cpulist", "0-1"}},
                               up_to(3),
                               "0-2",
                               "0:0-2 "},
                           Row{"unreadable lists", {{"devices/system/cpu/online", "none"}}, {4}, "4", "0:4 "}}) {
      CAPTURE(row.name);
      const MadeUpSystem system(row.files, row.allowed);
      CHECK(backend::cpu_list_text(system.topology().cpus) == row.cpus);
      CHECK(nodes_text(system.topology()) == row.nodes);
    }
  }

  TEST_CASE("a control group's quota limits the number of threads, not an explicit number") {
    struct Row {
      const char *path, *text;
      int n_threads;
    };
    const Files period = {{"fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}};
    for (const Row& row :
         {Row{"fs/cgroup/cpu.max", "max 100000\n", 8}, Row{"fs/cgroup/cpu.max", "300000 100000\n", 3},
          Row{"fs/cgroup/cpu.max", "50000 100000\n", 1}, Row{"fs/cgroup/cpu.max", "250000 100000\n", 3},
          Row{"fs/cgroup/cpu.max", "9900000 100000\n", 8}, Row{"fs/cgroup/cpu.max", "", 8},
          Row{"fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n", 8}, Row{"fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n", 2}}) {
      CAPTURE(row.path);
      CAPTURE(row.text);
      Files files = kTwoNodes;
      if (std::string(row.path).find("cfs") != std::string::npos) files.push_back(period[0]);
      files.emplace_back(row.path, row.text);
      const MadeUpSystem system(files, up_to(8));
      BackendOptions options;
      CHECK(backend::plan_placement(options, system.topology()).value().n_threads == row.n_threads);
      options.n_threads = 5;
      CHECK(backend::plan_placement(options, system.topology()).value().n_threads == 5);
    }
  }

  TEST_CASE("workers and memory are placed as the options say") {
    struct Row {
      const char* name;
      Files files;
      int n_threads;
      Affinity affinity;
      const char* list;
      NumaPolicy numa;
      const char* workers;
      MemoryPlace memory;
      std::vector<int> nodes;
    };
    const MemoryPlace anywhere = MemoryPlace::kAnywhere, interleaved = MemoryPlace::kInterleaved;
    for (const Row& row :
         {Row{"by itself on one node", {}, 3, Affinity::kAuto, "", NumaPolicy::kAuto, "  ", anywhere, {0}},
          Row{"by itself on two",
              kTwoNodes,
              0,
              Affinity::kAuto,
              "",
              NumaPolicy::kAuto,
              "0-3 0-3 0-3 4-7 4-7 4-7 4-7 ",
              interleaved,
              {0, 1}},
          Row{"few threads", kTwoNodes, 2, Affinity::kAuto, "", NumaPolicy::kAuto, "4-7 ", interleaved, {0, 1}},
          Row{"one thread", kTwoNodes, 1, Affinity::kAuto, "", NumaPolicy::kAuto, "", anywhere, {0}},
          Row{"uneven nodes", kHoles, 3, Affinity::kAuto, "", NumaPolicy::kAuto, "3-6 3-6 ", interleaved, {0, 3}},
          Row{"nowhere", kTwoNodes, 3, Affinity::kNone, "", NumaPolicy::kNone, "  ", anywhere, {0, 1}},
          Row{"memory alone", kTwoNodes, 2, Affinity::kNone, "", NumaPolicy::kInterleave, " ", interleaved, {0, 1}},
          Row{"a list on one node",
              kTwoNodes,
              0,
              Affinity::kList,
              "4-6",
              NumaPolicy::kBind,
              "5 6 ",
              MemoryPlace::kBound,
              {1}},
          Row{"a list that begins anew",
              kTwoNodes,
              4,
              Affinity::kList,
              "3,4",
              NumaPolicy::kAuto,
              "4 3 4 ",
              interleaved,
              {0, 1}}}) {
      CAPTURE(row.name);
      const MadeUpSystem system(row.files, up_to(8));
      BackendOptions options;
      options.n_threads = row.n_threads;
      options.affinity = row.affinity;
      options.worker_cpus = row.list;
      options.numa = row.numa;
      const Result<Placement> plan = backend::plan_placement(options, system.topology());
      REQUIRE(plan.ok());
      CHECK(workers_text(plan.value()) == row.workers);
      CHECK(plan.value().n_threads == static_cast<int>(plan.value().worker_cpus.size()) + 1);
      CHECK(plan.value().memory == row.memory);
      CHECK(plan.value().nodes == row.nodes);
    }
  }

  TEST_CASE("a placement that the machine does not have is refused") {
    struct Row {
      Affinity affinity;
      const char *list, *message;
    };
    const MadeUpSystem system(kHoles, up_to(6));
    for (const Row& row :
         {Row{Affinity::kList, "", "needs worker_cpus"}, Row{Affinity::kAuto, "0", "goes with"},
          Row{Affinity::kNone, "0", "goes with"}, Row{Affinity::kList, "0,x", "\"x\""},
          Row{Affinity::kList, "0-2", "processor 2 is none of those that this process may use (0-1,3-5)"},
          Row{Affinity::kList, "6", "processor 6"}}) {
      CAPTURE(row.list);
      BackendOptions options;
      options.affinity = row.affinity;
      options.worker_cpus = row.list;
      options.system = &system;
      const Status status = backend::check_placement(options);
      CHECK(status.code() == Code::kINVALID_ARG);
      CHECK(std::string(status.message()).find(row.message) != std::string::npos);
      CHECK(backend::create_backend("cpu", options).status().code() == Code::kINVALID_ARG);
    }
  }

  TEST_CASE("a backend binds its workers and places its arenas") {
    const MadeUpSystem system(kTwoNodes, up_to(8));
    BackendOptions options;
    options.n_threads = 3;
    options.affinity = Affinity::kList;
    options.worker_cpus = "1,5";
    options.numa = NumaPolicy::kBind;
    options.system = &system;
    std::string said;
    options.report = [&](const std::string& text) { said += text; };
    auto made = backend::create_backend("cpu", options).value();
    CHECK(system.bound.size() == 2);
    for (const CpuList& cpus : {CpuList{1}, CpuList{5}}) {
      CHECK(std::count(system.bound.begin(), system.bound.end(), cpus) == 1);
    }
    CHECK(system.n_threads_placed == 2);
    const uint64_t before = system.bytes_placed;
    REQUIRE(made->allocate(5 << 20, backend::MemoryUse::kArena).ok());
    CHECK(system.bytes_placed == before + (5 << 20));
    CHECK(system.last_place == MemoryPlace::kBound);
    CHECK(system.last_nodes == std::vector<int>{0, 1});
    REQUIRE(made->allocate(5 << 20, backend::MemoryUse::kWorkspace).ok());
    CHECK(system.bytes_placed == before + (5 << 20));
    CHECK(said.empty());
  }

  TEST_CASE("a kernel that refuses is reported once and the backend works") {
    MadeUpSystem system(kTwoNodes, up_to(8));
    system.bind_error = EPERM;
    system.memory_error = EPERM;
    BackendOptions options;
    options.n_threads = 4;
    options.system = &system;
    std::vector<std::string> said;
    options.report = [&](const std::string& text) { said.push_back(text); };
    auto made = backend::create_backend("cpu", options).value();
    REQUIRE(said.size() == 1);
    CHECK(said[0].find("workers stay unbound") != std::string::npos);
    CHECK(said[0].find("NUMA policy") != std::string::npos);
    CHECK(said[0].find("not permitted") != std::string::npos);
    CHECK(system.n_threads_placed == 0);  // one refusal is enough
    const uint64_t before = system.bytes_placed;
    REQUIRE(made->allocate(5 << 20, backend::MemoryUse::kArena).ok());
    CHECK(system.bytes_placed == before);
    CHECK(made->n_threads() == 4);
  }

  TEST_CASE("this machine's own calls do what they say, or answer why not") {
    const backend::HostSystem system;
    const CpuList allowed = system.allowed_cpus();
    REQUIRE_FALSE(allowed.empty());
    const Topology topology = backend::read_topology(system.sys_folder(), allowed);
    CHECK(topology.cpus == allowed);
    CHECK(system.run_on({allowed.back()}) == 0);
    CHECK(sched_getcpu() == allowed.back());
    CHECK(system.allowed_cpus() == CpuList{allowed.back()});
    CHECK(system.run_on(allowed) == 0);
    CHECK(system.allowed_cpus() == allowed);
    CHECK(system.run_on({}) == EINVAL);
    alignas(4096) static std::array<char, 8192> pages;
    const int placed =
        system.place_pages(pages.data(), pages.size(), MemoryPlace::kInterleaved, {topology.nodes[0].id});
    CAPTURE(placed);
    CHECK((placed == 0 || placed == EPERM || placed == ENOSYS));
    const int own = system.place_own_pages(MemoryPlace::kBound, {topology.nodes[0].id});
    CAPTURE(own);
    CHECK((own == 0 || own == EPERM || own == ENOSYS));
    CHECK(system.place_own_pages(MemoryPlace::kAnywhere, {}) == own);
  }
}

}  // namespace
}  // namespace dsv41::test
