// Saves: conversations in files. A save is a snapshot of the library, NAME.dsv41 in one folder: the KV memory of a
// session, and the conversation as JSON in a section of the host's, so that one file brings both back.
#pragma once

#include <functional>
#include <string>

#include "chat_engine.h"

namespace dsv41_chat {

// What came back with a loaded conversation.
struct LoadReport {
  std::string name;
  uint32_t kind = 0;             // DSV41_SNAPSHOT_*
  uint64_t n_saved_tokens = 0;   // in the file
  dsv41_restore_info restore{};  // zeros when the KV memory could not be used
  dsv41_replay_info replay{};    // the same
  std::string problem;           // why it could not; empty: it was
  bool messages_alone = false;   // no KV memory in the file: the next answer takes it from the store, or computes it
};

struct LoadedChat {
  Json chat;  // as it was given to save
  Session session;
  LoadReport report;
};

class Saves {
 public:
  Saves(const Engine& engine, std::string folder) : engine_(engine), folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }
  // What is wrong with a name; empty if nothing. A name never leaves the folder.
  static std::string problem_of(const std::string& name);

  // Writes a save, or replaces it whole; makes the folder. Where window rows are missing, as after a cut, without them:
  // info.kind tells. Throws ApiError; the older save is then as it was.
  dsv41_snapshot_info save(const std::string& name, const Session& session, const Json& chat) const;

  // Keeps the messages alone, in a small file: for a conversation whose KV memory is in a store. Throws ApiError; what was
  // kept before is then as it was.
  void save_messages(const std::string& name, const Json& chat) const;

  // Brings a conversation back, with or without KV memory, as it was saved last. KV memory that is damaged or does not fit costs only time: the session is empty then,
  // and the next answer computes it again. Throws ApiError when there is no conversation to be had: no such file, a
  // damaged one, one of another model. make_room as in ReplyOptions.
  LoadedChat load(const std::string& name, const std::function<bool()>& make_room) const;

  // A line for each save: name, tokens, size, time, kind, or what is wrong with it.
  std::string list() const;

 private:
  std::string path_of(const std::string& name) const;
  std::string messages_path_of(const std::string& name) const;
  bool is_messages_alone(const std::string& name) const;
  void make_folder() const;
  LoadedChat load_messages(const std::string& name) const;
  Session restore(dsv41_snapshot* snapshot, const std::function<bool()>& make_room, LoadReport* report) const;

  const Engine& engine_;
  std::string folder_;
};

}  // namespace dsv41_chat
