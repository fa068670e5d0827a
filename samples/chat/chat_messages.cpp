#include "chat_messages.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "samples/common/api_calls.h"

namespace dsv41_chat {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using dsv41_samples::error_of;

constexpr const char* kProgram = "dsv41-chat";
constexpr uint64_t kMostBytes = uint64_t{256} << 20;

// A descriptor that closes itself.
struct Descriptor {
  explicit Descriptor(int opened) : number(opened) {}
  ~Descriptor() {
    if (number >= 0) close(number);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number;
};

bool write_all(int file, const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t n = write(file, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    written += static_cast<size_t>(n);
  }
  return true;
}

bool sync_folder(const fs::path& folder) {
  const Descriptor opened(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return opened.number >= 0 && fsync(opened.number) == 0;
}

bool replace_file(const std::string& path, const std::string& text) {
  const std::string beside = path + ".tmp-" + std::to_string(getpid());
  {
    const Descriptor file(open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (file.number < 0) return false;
    if (write_all(file.number, text) && fsync(file.number) == 0 && std::rename(beside.c_str(), path.c_str()) == 0)
      return sync_folder(fs::path(path).parent_path());
  }
  const int why = errno;
  unlink(beside.c_str());
  errno = why;
  return false;
}

std::string text_of(const std::string& path) {
  std::error_code failure;
  const uint64_t size = fs::file_size(path, failure);
  if (failure == std::errc::no_such_file_or_directory) throw error_of(DSV41_NOT_FOUND, "there is no file " + path);
  if (!failure && size > kMostBytes) throw error_of(DSV41_LIMIT, path + " is too large for a file of messages");
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (failure || file.bad() || !file.is_open()) throw error_of(DSV41_IO, "cannot read " + path);
  return text;
}

}  // namespace

void write_messages(const std::string& path, const std::string& model, const Json& chat) {
  const Json all = {{"program", kProgram}, {"model", model}, {"chat", chat}};
  if (!replace_file(path, all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"))
    throw error_of(DSV41_IO, "cannot write " + path + ": " + std::strerror(errno));
}

Json read_messages(const std::string& path, const std::string& model) {
  const Json all = Json::parse(text_of(path), nullptr, false);
  if (!all.is_object() || all.value("program", Json()) != kProgram || !all.contains("chat"))
    throw error_of(DSV41_CORRUPT, path + " holds no conversation of this program");
  if (all.value("model", Json()) != model) throw error_of(DSV41_MODEL_MISMATCH, "it was kept with another model");
  return all["chat"];
}

}  // namespace dsv41_chat
