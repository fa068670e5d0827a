// What the system says this process holds: resident memory and open files.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace dsv41::test {

inline uint64_t resident_bytes() {
  uint64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

inline int64_t n_open_files() {
  using Entries = std::filesystem::directory_iterator;
  return std::distance(Entries("/proc/self/fd"), Entries());
}

}  // namespace dsv41::test
