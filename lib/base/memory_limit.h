// How much memory this process may use: the smaller of physical memory and the limits of its control group and of the
// groups above it (a container is one).
//
//   /proc/meminfo        "MemTotal:  24576 kB"
//   /proc/self/cgroup    a line for each hierarchy: "0::/group" (v2), "9:cpu,memory:/group" (v1, the one with memory)
//   /sys/fs/cgroup/group/memory.max                     v2: a number, or "max"
//   /sys/fs/cgroup/memory/group/memory.limit_in_bytes   v1: a number, near 2^63 for none
//
// Inside a container the group's path may be the host's while only the container's own part is mounted, at the top; so
// the files of every group from the path up to the top are read, and those that are missing set no limit.
#pragma once

#include <cstdint>
#include <string>

namespace dsv41 {

// Bytes; 0 when nothing can be found out. `root` stands in front of the paths above (tests: a folder).
uint64_t usable_memory_bytes(const std::string& root = "");

}  // namespace dsv41
