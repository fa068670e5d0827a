#include "backend/cpu/topology.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace dsv41::backend {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

CpuList read_cpu_list(const std::string& path) {
  Result<CpuList> list = parse_cpu_list(read_text(path), path);
  return list.ok() ? std::move(list).value() : CpuList();
}

CpuList common(const CpuList& a, const CpuList& b) {
  CpuList both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

// Quota and period in microseconds, of both versions of control groups; the first is "max" or -1 without a limit. In a
// container this folder is the container's own group.
int read_quota(const std::string& folder) {
  std::istringstream words(read_text(folder + "/cpu.max") + " " + read_text(folder + "/cpu/cpu.cfs_quota_us") + " " +
                           read_text(folder + "/cpu/cpu.cfs_period_us"));
  int64_t quota_us = 0, period_us = 0;
  if (!(words >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return 0;
  return static_cast<int>(std::min<int64_t>(kMaxCpus, (quota_us - 1) / period_us + 1));
}

bool read_number(std::string_view* text, int* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc() || *number < 0) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

// "3" or "3-5".
bool read_range(std::string_view text, int* first, int* last) {
  if (!read_number(&text, first)) return false;
  *last = *first;
  if (text.empty()) return true;
  if (text.front() != '-') return false;
  text.remove_prefix(1);
  return read_number(&text, last) && text.empty() && *last >= *first;
}

}  // namespace

Result<CpuList> parse_cpu_list(std::string_view text, const std::string& name) {
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::vector<bool> named(kMaxCpus);
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    int first = 0, last = 0;
    if (!read_range(word, &first, &last)) {
      return Status(Code::kINVALID_ARG,
                    name + ": \"" + std::string(word.substr(0, 40)) + "\" is no number and no range like 0-3");
    }
    if (last >= kMaxCpus) {
      return Status(Code::kINVALID_ARG,
                    name + ": " + std::to_string(last) + " is above " + std::to_string(kMaxCpus - 1));
    }
    std::fill(named.begin() + first, named.begin() + last + 1, true);
    if (word.size() == text.size()) break;
    text.remove_prefix(word.size() + 1);
    if (text.empty()) return Status(Code::kINVALID_ARG, name + ": ends in a comma");
  }
  CpuList cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (named[static_cast<size_t>(cpu)]) cpus.push_back(cpu);
  }
  return cpus;
}

std::string cpu_list_text(const CpuList& cpus) {
  std::string text;
  for (size_t first = 0; first < cpus.size();) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += (first ? "," : "") + std::to_string(cpus[first]);
    if (last > first) text += "-" + std::to_string(cpus[last]);
    first = last + 1;
  }
  return text;
}

const NumaNode& Topology::node_of(int cpu) const {
  for (const NumaNode& node : nodes) {
    if (std::binary_search(node.cpus.begin(), node.cpus.end(), cpu)) return node;
  }
  return nodes.front();
}

Topology read_topology(const std::string& sys_folder, const CpuList& allowed) {
  const std::string folder = sys_folder + "/devices/system";
  Topology topology;
  topology.cpus = common(allowed, read_cpu_list(folder + "/cpu/online"));
  if (topology.cpus.empty()) topology.cpus = allowed;
  if (topology.cpus.empty()) topology.cpus = {0};
  CpuList without_node = topology.cpus;
  for (int id : read_cpu_list(folder + "/node/online")) {
    const std::string path = folder + "/node/node" + std::to_string(id) + "/cpulist";
    NumaNode node{id, common(without_node, read_cpu_list(path))};
    if (node.cpus.empty()) continue;  // memory alone, or nothing of it is for us
    std::erase_if(without_node, [&](int cpu) { return std::binary_search(node.cpus.begin(), node.cpus.end(), cpu); });
    topology.nodes.push_back(std::move(node));
  }
  if (topology.nodes.empty()) topology.nodes.push_back({0, {}});
  CpuList& first = topology.nodes.front().cpus;
  first.insert(first.end(), without_node.begin(), without_node.end());
  std::sort(first.begin(), first.end());
  topology.quota = read_quota(sys_folder + "/fs/cgroup");
  return topology;
}

}  // namespace dsv41::backend
