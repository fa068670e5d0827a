// dsv41-kv: looks at saved sessions and stores without a model: what is there, what a file holds, whether it is whole.
// Snapshot files are only read; of a store records can be pinned and removed.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <system_error>

#include "kv_tool_snapshots.h"
#include "kv_tool_stores.h"

namespace dsv41_kv {
namespace {

using dsv41_samples::ApiError;
using dsv41_samples::Runtime;

constexpr const char* kFooter = R"(
A snapshot is a file that a host has saved with dsv41_snapshot_save_file; dsv41-chat calls them NAME.dsv41. A store is a folder
of pages and states, the one that dsv41-chat was given with --store. KEY: what list shows, or the first digits of it.
One program writes a store; while it runs, gc, pin, unpin and remove are refused and all else works.

Exit codes: 0 good; 1 failed; 2 wrong options; 3 not there, no permission or not readable; 4 damaged, cut off or no snapshot;
5 written in a format or with a codec that this program does not know; 6 another program writes the store.)";

struct Options {
  std::string path;
  std::string key;
  std::string reason;
  uint64_t target_bytes = 0;
  bool deep = false;
  bool as_json = false;
};

using Action = std::function<ExitCode(dsv41_runtime*)>;

int fail(ExitCode code, const std::string& text) {
  std::fprintf(stderr, "dsv41-kv: %s\n", text.c_str());
  return code;
}

void add_path(CLI::App* command, Options* options, const char* type_name, const char* text) {
  command->add_option("path", options->path, text)->required()->type_name(type_name);
}

void add_key(CLI::App* command, Options* options) {
  command->add_option("key", options->key, "key of a record")->required()->type_name("KEY");
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

int run(const std::string& path, const Action& action) {
  try {
    dsv41_runtime* made = nullptr;
    dsv41_samples::call(dsv41_runtime_create, static_cast<const dsv41_runtime_options*>(nullptr), &made);
    const Runtime runtime(made);
    const ExitCode code = action(made);
    return std::fflush(stdout) == 0 ? code : fail(kFailed, "cannot write to stdout");
  } catch (const ApiError& error) {
    return fail(exit_code_of(error.code()), explained(error));
  } catch (const std::system_error& error) {
    return fail(kNoAccess, error.what());
  } catch (const std::exception& error) {
    return fail(kFailed, path + ": " + error.what());
  }
}

// What only looks.
void add_readers(CLI::App* app, Options* o, Action* action) {
  CLI::App* list = app->add_subcommand("list", "a line for each snapshot of a folder, or for each record of a store");
  add_path(list, o, "FOLDER", "folder with *.dsv41 files, or store");
  CLI::App* info = app->add_subcommand("info", "what a snapshot says of itself, how much a store holds");
  add_path(info, o, "FILE|STORE", "snapshot or store");
  CLI::App* verify =
      app->add_subcommand("verify", "compares a snapshot with its checksums, a store's records with their heads");
  add_path(verify, o, "FILE|STORE", "snapshot or store");
  verify->add_flag("--deep", o->deep, "read and decompress all, too");
  CLI::App* dump = app->add_subcommand("dump", "as JSON: all of a snapshot but KV memory; a record of a store");
  add_path(dump, o, "FILE|STORE", "snapshot or store");
  dump->add_option("key", o->key, "of a store: key of the record")->type_name("KEY");
  for (CLI::App* command : {list, info, verify}) command->add_flag("--json", o->as_json, "print JSON");

  list->callback([=] {
    *action = [o](auto* runtime) {
      return (is_store(o->path) ? list_store : list_snapshots)(runtime, o->path, o->as_json);
    };
  });
  info->callback([=] {
    *action = [o](auto* runtime) {
      return (is_folder(o->path) ? show_store : show_snapshot)(runtime, o->path, o->as_json);
    };
  });
  verify->callback([=] {
    *action = [o](auto* runtime) {
      return (is_folder(o->path) ? verify_store : verify_snapshot)(runtime, o->path, o->deep, o->as_json);
    };
  });
  dump->callback([=] {
    if (is_folder(o->path) && o->key.empty()) throw CLI::RequiredError("KEY, of a record of the store,");
    *action = [o](auto* runtime) {
      return o->key.empty() ? dump_snapshot(runtime, o->path) : dump_record(runtime, o->path, o->key);
    };
  });
}

// What changes a store.
void add_writers(CLI::App* app, Options* o, Action* action) {
  CLI::App* gc = app->add_subcommand("gc", "removes what has expired, then the least recently used");
  add_path(gc, o, "STORE", "store");
  gc->add_option("--to", o->target_bytes, "until the store takes at most this on disk; 300M and 2G work, too")
      ->required()
      ->type_name("BYTES")
      ->transform(CLI::AsSizeValue(false));
  gc->add_flag("--json", o->as_json, "print JSON");
  CLI::App* pin = app->add_subcommand("pin", "keeps a record and the pages below it, whatever their age");
  add_path(pin, o, "STORE", "store");
  add_key(pin, o);
  pin->add_option("--reason", o->reason, "for whoever looks later")->type_name("TEXT");
  CLI::App* unpin = app->add_subcommand("unpin", "takes a pin back");
  add_path(unpin, o, "STORE", "store");
  add_key(unpin, o);
  CLI::App* remove = app->add_subcommand("remove", "removes a record and all that stands on it");
  add_path(remove, o, "STORE", "store");
  add_key(remove, o);

  gc->callback(
      [=] { *action = [o](auto* runtime) { return shrink_store(runtime, o->path, o->target_bytes, o->as_json); }; });
  pin->callback([=] { *action = [o](auto* runtime) { return pin_record(runtime, o->path, o->key, o->reason); }; });
  unpin->callback([=] { *action = [o](auto* runtime) { return unpin_record(runtime, o->path, o->key); }; });
  remove->callback([=] { *action = [o](auto* runtime) { return remove_record(runtime, o->path, o->key); }; });
}

int main_of(int argc, char** argv) {
  Options options;
  Action action;
  CLI::App app("Looks at saved sessions and stores of libdsv41. No model is needed.", "dsv41-kv");
  app.footer(kFooter);
  app.require_subcommand(1);

  add_readers(&app, &options, &action);
  add_writers(&app, &options, &action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kGood : kUsage;
  }
  return run(options.path, action);
}

}  // namespace
}  // namespace dsv41_kv

int main(int argc, char** argv) { return dsv41_kv::main_of(argc, argv); }
