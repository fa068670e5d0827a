#include "chat_interactive.h"

#include <cinttypes>
#include <cstdio>

#include "chat_conversation.h"
#include "chat_printer.h"
#include "chat_terminal.h"

namespace dsv41_chat {
namespace {

constexpr const char* kHelp =
    "/system TEXT  set the system prompt (/system alone shows it, /system off removes it); the turns stay\n"
    "/undo         take back the last message and its answer\n"
    "/regenerate   answer the last message again\n"
    "/reset        start a new conversation; the system prompt stays\n"
    "/stats        tokens computed, reused and replayed, tokens per second, KV memory\n"
    "/help         this list\n"
    "/quit         leave (Ctrl-D too)\n"
    "A line that ends in \\ goes on in the next one. // at the start sends a message that begins with /.\n"
    "Ctrl-C stops the answer; at the prompt, twice in a row leaves.\n";

double per_second(uint64_t tokens, uint64_t ns) {
  return ns == 0 ? 0 : static_cast<double>(tokens) / (static_cast<double>(ns) * 1e-9);
}

class Talk {
 public:
  Talk(Engine& engine, const Options& options)
      : engine_(engine), options_(options), conversation_(options), editor_(options.history_file) {}

  int run() {
    print_dim(options_.model + " (" + engine_.model_info().backend + "), " + std::to_string(engine_.context_tokens()) +
              " tokens of context. /help lists the commands.\n");
    bool warned = false;  // the last thing that happened was Ctrl-C at the prompt
    while (!leaving_) {
      std::string line;
      const ReadResult result = read_message(&line);
      if (result == ReadResult::kEnd) break;
      if (result == ReadResult::kInterrupted) {
        if (warned) return kInterrupted;
        warned = true;
        print_dim("Ctrl-C again leaves, so does /quit.\n");
        continue;
      }
      warned = false;
      if (line.find_first_not_of(" \t") == std::string::npos) continue;
      editor_.remember(line);
      if (line[0] == '/' && line.compare(0, 2, "//") != 0) {
        command(line);
      } else {
        ask(line.substr(line.compare(0, 2, "//") == 0 ? 1 : 0));
      }
    }
    return kAnswered;
  }

 private:
  // One message: a line, and the next one while it ends in a backslash.
  ReadResult read_message(std::string* message) {
    for (std::string prompt = "> ";; prompt = ". ") {
      std::string line;
      const ReadResult result = editor_.read(prompt, &line);
      if (result != ReadResult::kLine) {
        std::fputc('\n', stderr);
        return result;
      }
      *message += line;
      if (message->empty() || message->back() != '\\') return result;
      message->back() = '\n';
    }
  }

  void command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(line.find_first_not_of(' ', space));
    if (name == "/system") {
      system(rest);
    } else if (name == "/undo") {
      undo();
    } else if (name == "/regenerate") {
      regenerate();
    } else if (name == "/reset") {
      conversation_.clear();
      engine_.reset();
      n_regenerated_ = 0;
      print_dim("A new conversation.\n");
    } else if (name == "/stats") {
      stats();
    } else if (name == "/help") {
      print_dim(kHelp);
    } else if (name == "/quit" || name == "/exit") {
      leaving_ = true;
    } else {
      print_dim("There is no command " + name + ". /help lists them.\n");
    }
  }

  void system(const std::string& text) {
    if (!text.empty()) conversation_.set_system(text == "off" ? "" : text);
    print_dim(conversation_.system().empty() ? "No system prompt.\n"
                                             : "System prompt: " + conversation_.system() + "\n");
  }

  void undo() {
    std::string message;
    if (!conversation_.drop_turn(&message)) return print_dim("There is nothing to take back.\n");
    n_regenerated_ = 0;
    print_dim("Taken back: " + message + "\n");
  }

  void regenerate() {
    if (!conversation_.drop_reply()) return print_dim("There is no answer to make again.\n");
    if (options_.temperature == 0)
      print_dim("The likeliest token always wins (greedy), so the answer will be the same.\n");
    ++n_regenerated_;
    reply();
  }

  void ask(const std::string& message) {
    n_regenerated_ = 0;
    conversation_.add_user(message);
    reply();
  }

  // Answers the last message. A reply that was stopped stays in the conversation as far as it came; a message that got
  // none is taken back.
  void reply() {
    try {
      const Reply reply = engine_.answer(conversation_.request(), reply_options());
      printer_.finish();
      if (reply.tokens.empty() && reply.interrupted) {
        conversation_.drop_turn(nullptr);
        return print_dim("Stopped before the answer; your message was taken back.\n");
      }
      conversation_.add_reply(reply);
      for (const Json& call : reply.tool_calls) print_dim("Tool call: " + call.dump() + "\n");
      if (!reply.malformed.empty()) print_dim("A broken tool call: " + reply.malformed + "\n");
      if (reply.interrupted) print_dim("Stopped.\n");
      if (reply.stop_reason == DSV41_STOP_MAX_TOKENS) print_dim("Stopped at --max-tokens.\n");
      if (reply.stop_reason == DSV41_STOP_CONTEXT_FULL) print_dim("The context is full: /undo or /reset makes room.\n");
    } catch (const ApiError& error) {
      printer_.finish();
      conversation_.drop_turn(nullptr);
      print_dim(std::string(dsv41_status_name(error.code())) + ": " + error.what() +
                "\nYour message was taken back.\n");
    }
    take_interrupt();
  }

  ReplyOptions reply_options() {
    ReplyOptions options;
    options.thinking = options_.thinking;
    options.seed = *options_.seed + n_regenerated_;  // another text at the same place needs another seed
    options.on_text = [this](std::string_view text, bool reasoning) { printer_.print(text, reasoning); };
    return options;
  }

  void stats() {
    const Totals& t = engine_.totals();
    const dsv41_session_info session = engine_.session_info();
    const dsv41_pool_stats pool = engine_.pool_stats();
    const double kib = static_cast<double>(session.n_pages * pool.page_bytes) / 1024;
    char text[1024];
    std::snprintf(text, sizeof text,
                  "tokens      computed  %" PRIu64 " encoder, %" PRIu64
                  " decoder\n"
                  "            reused    %" PRIu64
                  "\n"
                  "            replayed  %" PRIu64 " encoder, %" PRIu64
                  " decoder\n"
                  "prompt      %.1f tokens/s (%" PRIu64
                  " tokens)\n"
                  "answer      %.1f tokens/s (%" PRIu64
                  " tokens)\n"
                  "context     %" PRIu64 " of %" PRIu64
                  " tokens in %zu turns\n"
                  "KV          %.1f KiB in %" PRIu64
                  " pages\n"
                  "seed        %" PRIu64 "\n",
                  t.encoder_tokens_computed, t.decoder_tokens_computed, t.tokens_reused, t.encoder_tokens_replayed,
                  t.decoder_tokens_replayed, per_second(t.prompt_tokens, t.prompt_ns), t.prompt_tokens,
                  per_second(t.reply_tokens, t.reply_ns), t.reply_tokens, session.position, session.max_tokens,
                  conversation_.n_turns(), kib, session.n_pages, *options_.seed);
    print_dim(text);
  }

  Engine& engine_;
  const Options& options_;
  Conversation conversation_;
  LineEditor editor_;
  ReplyPrinter printer_;
  uint64_t n_regenerated_ = 0;  // of the last message
  bool leaving_ = false;
};

}  // namespace

int talk(Engine& engine, const Options& options) { return Talk(engine, options).run(); }

}  // namespace dsv41_chat
