#include "base/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/file.h"

namespace dsv41 {
namespace {

constexpr uint64_t kMaxTextBytes = 65536;
constexpr uint64_t kNoLimit = UINT64_MAX;

// Empty when there is no such file.
std::string text_of(const std::string& path) {
  Result<std::string> text = read_system_file(path, kMaxTextBytes);
  return text.ok() ? std::move(text).value() : std::string();
}

// The number that `text` begins with after spaces; kNoLimit: none ("max").
uint64_t leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t number = kNoLimit;
  const std::errc error = std::from_chars(text.data(), text.data() + text.size(), number).ec;
  return error == std::errc() ? number : kNoLimit;
}

// Cuts the next line off `text`.
std::string_view next_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

uint64_t physical_bytes(const std::string& root) {
  const std::string text = text_of(root + "/proc/meminfo");
  constexpr std::string_view kName = "MemTotal:";
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = next_line(rest);
    if (!line.starts_with(kName)) continue;
    const uint64_t kilobytes = leading_number(line.substr(kName.size()));
    if (kilobytes <= kNoLimit / 1024) return kilobytes * 1024;
  }
  const long pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) : kNoLimit;
}

// The lowest limit that the files `name` give, from folder/group up to `folder`.
uint64_t limit_of_groups(const std::string& folder, std::string_view group, const char* name) {
  if (!group.starts_with('/') || group.find("..") != std::string_view::npos) group = "";  // outside of what is mounted
  uint64_t limit = kNoLimit;
  for (;;) {
    while (group.ends_with('/')) group.remove_suffix(1);
    limit = std::min(limit, leading_number(text_of(folder + std::string(group) + "/" + name)));
    if (group.empty()) return limit;
    group = group.substr(0, group.rfind('/'));
  }
}

bool names_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const size_t end = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, end) == "memory") return true;
    controllers.remove_prefix(std::min(end + 1, controllers.size()));
  }
  return false;
}

uint64_t group_limit(const std::string& root) {
  const std::string text = text_of(root + "/proc/self/cgroup");
  uint64_t limit = kNoLimit;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = next_line(rest);  // hierarchy:controllers:/group
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      limit = std::min(limit, limit_of_groups(root + "/sys/fs/cgroup", group, "memory.max"));
    } else if (names_memory(controllers)) {
      limit = std::min(limit, limit_of_groups(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return limit;
}

}  // namespace

uint64_t usable_memory_bytes(const std::string& root) {
  const uint64_t bytes = std::min(physical_bytes(root), group_limit(root));
  return bytes == kNoLimit ? 0 : bytes;
}

}  // namespace dsv41
