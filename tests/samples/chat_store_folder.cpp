#include "samples/chat_store_folder.h"

#include <doctest/doctest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

namespace dsv41::test {
namespace {

std::string repeated(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

// The only file of a folder that ends in `extension`.
std::string only_file(const std::string& folder, const std::string& extension) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == extension) files.push_back(entry.path().string());
  REQUIRE(files.size() == 1);
  return files[0];
}

}  // namespace

const std::string kLongSystem = repeated("Anna has a blue ball. ", 50);

std::vector<std::string> StoreFolder::command(std::vector<std::string> arguments) const {
  arguments.insert(arguments.end(), {"--greedy", "--store", store, "--saves", saves});
  return chat_command(arguments);
}

void StoreFolder::fill() const {
  const ProgramOutput result = run_program(command({"--system", kLongSystem, "-p", "What is 4 + 5?"}));
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
}

void StoreFolder::wait_for_states(size_t n) const {
  const auto end = std::chrono::steady_clock::now() + PtyProgram::kPatience;
  ProgramOutput info;
  while (std::chrono::steady_clock::now() < end) {
    info = kv_tool({"info", "--json", store});
    if (info.exit_code == 0 && nlohmann::json::parse(info.out)["n_states"] >= n) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL(info.out << info.err);
}

std::string StoreFolder::segment() const { return only_file(store + "/segments", ".seg"); }

std::string StoreFolder::state() const { return only_file(store + "/states", ".rec"); }

void flip_bit(const std::string& path, size_t offset) {
  std::string bytes = bytes_of(path);
  REQUIRE(offset < bytes.size());
  bytes[offset] = static_cast<char>(bytes[offset] ^ 0x10);
  write_bytes(path, bytes);
}

}  // namespace dsv41::test
