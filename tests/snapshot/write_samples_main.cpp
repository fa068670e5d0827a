// write_snapshot_samples FOLDER: the sample files of the tests, to look at with tests/tools/snapshot_reader.py. Four of
// them are the fuzzer's corpus (tests/fuzz/corpus/snapshot), which is not to be written again.
#include <cstdio>
#include <exception>
#include <fstream>

#include "snapshot/snapshot_samples.h"

namespace {

using namespace dsv41::test;

bool write(const std::string& path, std::span<const SectionContent> sections) {
  const Bytes file = write_file(sections);
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
  return static_cast<bool>(out.flush());
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  const std::string folder = argv[1];
  bool written = write(folder + "/none.snapshot", {}) && write(folder + "/small.snapshot", small_sections());
  for (const Sample& sample : samples()) {
    written = written && write(folder + "/" + sample.name + ".snapshot", sections_of(sample));
  }
  if (!written) std::fprintf(stderr, "%s: cannot write there\n", folder.c_str());
  return written ? 0 : 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 1;
}
