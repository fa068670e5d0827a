// LinkedFolder: a copy of a checkpoint folder made of links, of which a test replaces some files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/file.h"
#include "support/temp_folder.h"

namespace dsv41::test {

struct LinkedFolder {
  explicit LinkedFolder(const std::string& source) {
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(source)) {
      std::filesystem::create_symlink(entry.path(), folder.file(entry.path().filename().string()));
    }
  }
  std::string read(const std::string& name) const { return read_file(folder.file(name), uint64_t{100} << 20).value(); }
  void replace(const std::string& name, std::string_view content) const {
    std::filesystem::remove(folder.file(name));
    folder.write(name, content);
  }
  TempFolder folder;
};

}  // namespace dsv41::test
