// Files whose checksums hold and that break one rule of FORMAT.md each: what a reader must refuse by looking at the
// structure.
#pragma once

#include <string>

#include "base/status.h"
#include "snapshot/snapshot_bytes.h"

namespace dsv41::test {

struct HostileFile {
  std::string name;
  Bytes file;
  Code code = Code::kCORRUPT;
};
// Refused when they are opened.
std::vector<HostileFile> hostile_tables();
// A chunk that is no zstd frame as the format wants it: refused when it is decoded.
std::vector<HostileFile> hostile_frames();

}  // namespace dsv41::test
