// dsv41-chat: talk with a model, answer one prompt, answer a list of conversations, or plan memory. Shows what a host
// does with the C API: chat_engine.cpp, chat_saves.cpp, chat_store.cpp and chat_plan.cpp hold every call
// of it.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <sstream>

#include "chat_conversation.h"
#include "chat_engine.h"
#include "chat_interactive.h"
#include "chat_jsonl.h"
#include "chat_options.h"
#include "chat_plan.h"
#include "chat_printer.h"
#include "chat_report.h"
#include "chat_terminal.h"

namespace dsv41_chat {
namespace {

int fail(int exit_code, const std::string& text) {
  std::fprintf(stderr, "dsv41-chat: %s\n", text.c_str());
  return exit_code;
}

std::string read_all(std::istream& input) {
  return std::string(std::istreambuf_iterator<char>(input), std::istreambuf_iterator<char>());
}

// Opens a file named on the command line; "-" is stdin. Null, with a message on stderr, when that cannot be done.
std::istream* open_input(const std::string& name, std::ifstream* file) {
  if (name == "-") return &std::cin;
  errno = 0;
  file->open(name, std::ios::binary);
  // A folder opens, but cannot be read.
  if (file->is_open() && (file->peek(), !file->bad())) {
    file->clear();
    return file;
  }
  fail(kBadInput, "cannot read " + name + ": " + std::strerror(errno));
  return nullptr;
}

// The prompt of the one-shot ways of asking, without the line feeds at its end.
bool read_prompt(const Options& options, std::string* prompt) {
  if (options.prompt && *options.prompt != "-") {
    *prompt = *options.prompt;
  } else {
    std::ifstream file;
    std::istream* input = open_input(options.prompt_file.value_or("-"), &file);
    if (!input) return false;
    *prompt = read_all(*input);
  }
  while (!prompt->empty() && (prompt->back() == '\n' || prompt->back() == '\r')) prompt->pop_back();
  return true;
}

int answer_prompt(Engine& engine, const Options& options, const std::string& prompt) {
  Conversation conversation(options);
  conversation.add_user(prompt);
  ReplyOptions reply_options;
  reply_options.thinking = options.thinking;
  reply_options.seed = *options.seed;
  ReplyPrinter printer;
  reply_options.on_text = [&](std::string_view text, bool reasoning) { printer.print(text, reasoning); };
  const Reply reply = engine.answer(engine.new_session(), conversation.request(), reply_options);
  printer.finish();
  for (const Json& call : reply.tool_calls) print_dim("tool call: " + call.dump() + "\n");
  if (!reply.malformed.empty()) print_dim("a broken tool call: " + reply.malformed + "\n");
  if (reply.stop_reason == DSV41_STOP_MAX_TOKENS) print_dim("stopped at --max-tokens\n");
  if (reply.stop_reason == DSV41_STOP_CONTEXT_FULL) print_dim("stopped: the context is full\n");
  if (!reply.report.store_problem.empty()) print_dim("not in the store: " + reply.report.store_problem + "\n");
  if (reply.interrupted) return kInterrupted;
  return std::fflush(stdout) == 0 && !std::ferror(stdout) ? kAnswered : fail(kFailed, "cannot write the answer");
}

// What a failed opening means to the user.
int explain_open_failure(const Options& options, const ApiError& error) {
  switch (error.code()) {
    case DSV41_CANCELLED: return kInterrupted;
    case DSV41_NOT_FOUND:
    case DSV41_IO:
    case DSV41_PERMISSION:
    case DSV41_CHECKPOINT:
    case DSV41_CHECKPOINT_UNSUPPORTED:
    case DSV41_TOKENIZER:
      // The library says which file is missing and what a checkpoint folder holds.
      return fail(kBadModel, "cannot open the model in '" + options.model + "': " + error.what() +
                                 "\n--model FOLDER names the checkpoint folder to use.");
    default:
      return fail(kFailed, "cannot open the model in '" + options.model + "': " + dsv41_status_name(error.code()) +
                               ": " + error.what());
  }
}

int run(Options options) {
  if (options.plan) return print_plan(options);
  options.seed_is_drawn = !options.seed;
  if (!options.seed) options.seed = std::random_device{}();
  const bool interactive = !options.prompt && !options.prompt_file && !options.jsonl_file && stdin_is_terminal();

  // Inputs first: a wrong file name shows at once, not after a long opening.
  std::string prompt;
  std::ifstream jsonl_file;
  std::istream* jsonl = nullptr;
  if (options.jsonl_file) {
    jsonl = open_input(*options.jsonl_file, &jsonl_file);
    if (!jsonl) return kBadInput;
  } else if (!interactive) {
    if (!read_prompt(options, &prompt)) return kBadInput;
    if (prompt.empty()) return fail(kUsage, "the prompt is empty");
  }

  install_interrupt_handler();
  std::unique_ptr<Engine> engine;
  try {
    engine = std::make_unique<Engine>(options);
  } catch (const StoreFailure& failure) {
    return fail(kBadStore, "cannot open the store in '" + options.store_folder + "': " + failure.what());
  } catch (const ApiError& error) {
    return explain_open_failure(options, error);
  }
  if (engine->store() && engine->store()->read_only()) print_dim(store_text(*engine->store()));
  try {
    return jsonl         ? answer_jsonl(*engine, options, *jsonl)
           : interactive ? talk(*engine, options)
                         : answer_prompt(*engine, options, prompt);
  } catch (const ApiError& error) {
    return fail(kFailed, std::string(dsv41_status_name(error.code())) + ": " + error.what());
  }
}

}  // namespace
}  // namespace dsv41_chat

int main(int argc, char** argv) {
  dsv41_chat::Options options;
  if (const std::optional<int> exit_code = dsv41_chat::parse_options(argc, argv, &options)) return *exit_code;
  try {
    return dsv41_chat::run(std::move(options));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dsv41-chat: %s\n", error.what());
    return dsv41_chat::kFailed;
  }
}
