// dsv41-kv: looks at saved sessions without a model: what is there, what a file holds, whether it is whole. It reads and
// never changes anything.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <system_error>

#include "kv_tool_snapshots.h"

namespace dsv41_kv {
namespace {

using dsv41_samples::ApiError;
using dsv41_samples::Runtime;

constexpr const char* kFooter = R"(
A snapshot is a file that a host has saved with dsv41_snapshot_save_file; dsv41-chat calls them NAME.dsv41.

Exit codes: 0 good; 1 failed; 2 wrong options; 3 not there, no permission or not readable; 4 damaged, cut off or no snapshot;
5 written in a format or with a codec that this program does not know.)";

struct Options {
  std::string path;
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

int main_of(int argc, char** argv) {
  Options options;
  Action action;
  CLI::App app("Looks at saved sessions of libdsv41. No model is needed.", "dsv41-kv");
  app.footer(kFooter);
  app.require_subcommand(1);

  CLI::App* list = app.add_subcommand("list", "a line for each snapshot of a folder");
  add_path(list, &options, "FOLDER", "folder with *.dsv41 files");
  CLI::App* info = app.add_subcommand("info", "what a snapshot says of itself");
  add_path(info, &options, "FILE", "snapshot");
  CLI::App* verify = app.add_subcommand("verify", "compares every byte with its checksum");
  add_path(verify, &options, "FILE", "snapshot");
  verify->add_flag("--deep", options.deep, "decompress all and compare the sections with each other, too");
  CLI::App* dump = app.add_subcommand("dump", "all but KV memory as JSON: info, tokens, the host's data");
  add_path(dump, &options, "FILE", "snapshot");
  for (CLI::App* command : {list, info, verify}) command->add_flag("--json", options.as_json, "print JSON");

  list->callback(
      [&] { action = [&](auto* runtime) { return list_snapshots(runtime, options.path, options.as_json); }; });
  info->callback(
      [&] { action = [&](auto* runtime) { return show_snapshot(runtime, options.path, options.as_json); }; });
  verify->callback([&] {
    action = [&](auto* runtime) { return verify_snapshot(runtime, options.path, options.deep, options.as_json); };
  });
  dump->callback([&] { action = [&](auto* runtime) { return dump_snapshot(runtime, options.path); }; });

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
