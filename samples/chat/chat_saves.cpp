#include "chat_saves.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "chat_messages.h"

namespace dsv41_chat {
namespace {

namespace fs = std::filesystem;
using dsv41_samples::call;
using dsv41_samples::error_of;
using dsv41_samples::explained;
using dsv41_samples::info_of;
using dsv41_samples::made_by;
using dsv41_samples::opened_snapshot;
using dsv41_samples::read_list;
using dsv41_samples::Snapshot;

constexpr const char* kExtension = ".dsv41";
constexpr const char* kMessagesExtension = ".json";
constexpr size_t kMostNameBytes = 64;
constexpr uint32_t kChatSection = 1;  // number of the host section that holds the conversation

Json chat_of(const Snapshot& snapshot) {
  const std::vector<char> text = read_list<char>([&](char* buffer, size_t capacity, size_t* n, dsv41_error* error) {
    return dsv41_snapshot_host_section(snapshot.get(), kChatSection, buffer, capacity, n, error);
  });
  Json chat = Json::parse(text.begin(), text.end(), nullptr, false);
  if (chat.is_discarded()) throw error_of(DSV41_CORRUPT, "the file holds no conversation of this program");
  return chat;
}

// What the chat's messages are made of, their token ids above all, means nothing to another model.
void check_model(const Snapshot& snapshot, dsv41_model* model) {
  auto report = made_by(dsv41_compat_report_init);
  call(dsv41_snapshot_compatible, snapshot.get(), model, &report);
  if (!report.same_model) throw error_of(DSV41_MODEL_MISMATCH, "it was saved with another model");
}

std::string line_of(const std::string& name, const dsv41_snapshot_info& info) {
  const std::time_t seconds = static_cast<std::time_t>(info.saved_unix_ns / 1'000'000'000);
  std::tm parts{};
  char when[64] = "?", rest[160];
  if (localtime_r(&seconds, &parts)) std::strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &parts);
  std::snprintf(rest, sizeof rest, "%llu tokens, %.1f KiB, %s, %s", static_cast<unsigned long long>(info.n_tokens),
                static_cast<double>(info.total_bytes) / 1024, when,
                info.kind == DSV41_SNAPSHOT_FULL ? "full" : "prefix");
  return name + ": " + rest + "\n";
}

}  // namespace

std::string Saves::problem_of(const std::string& name) {
  const auto is_bad = [](unsigned char c) { return c <= ' ' || c == '/' || c == '\\' || c == 127; };
  if (name.empty()) return "a save needs a name";
  if (name.size() > kMostNameBytes) return "a name has at most " + std::to_string(kMostNameBytes) + " bytes";
  if (name[0] == '.') return "a name does not begin with a dot";
  if (std::any_of(name.begin(), name.end(), is_bad)) return "a name is one word without slashes";
  return {};
}

std::string Saves::path_of(const std::string& name) const { return (fs::path(folder_) / (name + kExtension)).string(); }

std::string Saves::messages_path_of(const std::string& name) const {
  return (fs::path(folder_) / (name + kMessagesExtension)).string();
}

// Both kinds of file may bear one name: the one that was written last counts.
bool Saves::is_messages_alone(const std::string& name) const {
  std::error_code no_messages, no_snapshot;
  const fs::file_time_type messages = fs::last_write_time(messages_path_of(name), no_messages);
  const fs::file_time_type snapshot = fs::last_write_time(path_of(name), no_snapshot);
  return !no_messages && (no_snapshot || messages >= snapshot);
}

void Saves::make_folder() const {
  std::error_code failure;
  fs::create_directories(folder_, failure);
  if (failure) throw error_of(DSV41_IO, "cannot make the folder " + folder_ + ": " + failure.message());
}

void Saves::save_messages(const std::string& name, const Json& chat) const {
  make_folder();
  write_messages(messages_path_of(name), engine_.model_fingerprint(), chat);
}

LoadedChat Saves::load_messages(const std::string& name) const {
  LoadedChat loaded;
  loaded.chat = read_messages(messages_path_of(name), engine_.model_fingerprint());
  loaded.report.name = name;
  loaded.report.messages_alone = true;
  loaded.session = engine_.new_session();
  return loaded;
}

dsv41_snapshot_info Saves::save(const std::string& name, const Session& session, const Json& chat) const {
  make_folder();
  const std::string text = chat.dump(-1, ' ', false, Json::error_handler_t::replace);
  dsv41_host_section section{kChatSection, 0, text.data(), text.size()};
  auto options = made_by(dsv41_snapshot_options_init);
  options.kind = DSV41_SNAPSHOT_FULL;
  options.host_sections = &section;
  options.n_host_sections = 1;
  options.cancel = engine_.cancel();
  dsv41_cancel_reset(engine_.cancel());
  const std::string path = path_of(name);
  auto info = made_by(dsv41_snapshot_info_init);
  try {
    call(dsv41_snapshot_save_file, session.get(), path.data(), path.size(), &options, &info);
  } catch (const ApiError& error) {
    if (error.code() != DSV41_REPLAY_REQUIRED) throw;
    options.kind = DSV41_SNAPSHOT_PREFIX;
    call(dsv41_snapshot_save_file, session.get(), path.data(), path.size(), &options, &info);
  }
  return info;
}

LoadedChat Saves::load(const std::string& name, const std::function<bool()>& make_room) const {
  if (is_messages_alone(name)) return load_messages(name);
  const Snapshot snapshot = opened_snapshot(engine_.runtime(), path_of(name));
  check_model(snapshot, engine_.model());
  LoadedChat loaded;
  loaded.chat = chat_of(snapshot);
  const dsv41_snapshot_info info = info_of(snapshot);
  loaded.report.name = name;
  loaded.report.kind = info.kind;
  loaded.report.n_saved_tokens = info.n_tokens;
  try {
    loaded.session = restore(snapshot.get(), make_room, &loaded.report);
  } catch (const ApiError& error) {
    if (error.code() == DSV41_CANCELLED) throw;
    loaded.report.problem = explained(error);
    loaded.session = engine_.new_session();
  }
  return loaded;
}

Session Saves::restore(dsv41_snapshot* snapshot, const std::function<bool()>& make_room, LoadReport* report) const {
  const dsv41_session_options session_options = engine_.session_options();
  auto options = made_by(dsv41_restore_options_init);
  options.decoder = session_options.decoder;
  options.max_tokens = session_options.max_tokens;
  options.cancel = engine_.cancel();
  dsv41_cancel_reset(engine_.cancel());
  auto restored = made_by(dsv41_restore_info_init);
  auto replay = made_by(dsv41_replay_info_init);
  dsv41_error error = made_by(dsv41_error_init);
  dsv41_session* session = nullptr;
  while (dsv41_snapshot_restore(snapshot, engine_.pool(), &options, &session, &restored, &replay, &error) < 0)
    if (error.code != DSV41_POOL_FULL || !make_room || !make_room()) throw ApiError(error);
  report->restore = restored;
  report->replay = replay;
  return Session(session);
}

std::string Saves::list() const {
  std::error_code failure;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder_, failure), end; !failure && entry != end; entry.increment(failure))
    if (entry->path().extension() == kExtension || entry->path().extension() == kMessagesExtension)
      names.push_back(entry->path().stem().string());
  if (failure && failure != std::errc::no_such_file_or_directory)
    return "Cannot read " + folder_ + ": " + failure.message() + "\n";
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string text;
  for (const std::string& name : names) {
    if (is_messages_alone(name)) {
      text += name + ": messages alone; the tokens come from the store\n";
      continue;
    }
    try {
      text += line_of(name, info_of(opened_snapshot(engine_.runtime(), path_of(name))));
    } catch (const ApiError& error) {
      text += name + ": cannot be loaded. " + explained(error) + "\n";
    }
  }
  return text.empty() ? "Nothing is saved in " + folder_ + ".\n" : text;
}

}  // namespace dsv41_chat
