#include "chat_interactive.h"

#include <charconv>
#include <cstdio>

#include "chat_branches.h"
#include "chat_printer.h"
#include "chat_report.h"
#include "chat_saves.h"
#include "chat_terminal.h"

namespace dsv41_chat {
namespace {

constexpr const char* kHelp =
    "/system TEXT  set the system prompt (/system alone shows it, /system off removes it); the turns stay\n"
    "/undo         take back the last message and its answer\n"
    "/rewind N     take back the last N messages and their answers\n"
    "/regenerate   answer the last message again\n"
    "/fork NAME    start a branch that goes on from here, and go to it (/fork alone numbers it)\n"
    "/switch NAME  go to the branch with that name or number\n"
    "/branches     list the branches\n"
    "/save NAME    save this conversation, or save it again: messages, tokens and KV memory in one file\n"
    "/load NAME    go on with a saved conversation, on a branch of its own if this one has messages\n"
    "/list         list what is saved\n"
    "/reset        start a new conversation on this branch; the system prompt stays\n"
    "/stats        what the last answer reused, computed and replayed; tokens per second; KV memory\n"
    "/help         this list\n"
    "/quit         leave (Ctrl-D too)\n"
    "A line that ends in \\ goes on in the next one. // at the start sends a message that begins with /.\n"
    "Ctrl-C stops the answer; at the prompt, twice in a row leaves.\n";

class Talk {
 public:
  Talk(Engine& engine, const Options& options)
      : engine_(engine),
        options_(options),
        branches_(engine, options),
        saves_(engine, options.saves_folder),
        editor_(options.history_file) {}

  int run() {
    const int exit_code = converse();
    if (conversation().n_turns() == 0) return exit_code;
    if (engine_.store()) {
      keep_last();
    } else if (options_.saves_on_leaving) {
      save(kLastSave);
    }
    return exit_code;
  }

 private:
  int converse() {
    print_dim(options_.model + " (" + engine_.model_info().backend + "), " + std::to_string(engine_.context_tokens()) +
              " tokens of context. /help lists the commands.\n");
    if (engine_.store() && !engine_.store()->read_only()) print_dim(store_text(*engine_.store()));
    if (options_.resume) load(*options_.resume);
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

  Branch& branch() { return branches_.current(); }
  Conversation& conversation() { return branches_.current().conversation; }

  // One message: a line, and the next one while it ends in a backslash.
  ReadResult read_message(std::string* message) {
    for (std::string prompt = branches_.size() > 1 ? branch().name + "> " : "> ";; prompt = ". ") {
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
    const size_t begin = line.find_first_not_of(' ', space), end = line.find_last_not_of(' ');
    const std::string rest = begin == std::string::npos ? "" : line.substr(begin, end + 1 - begin);
    if (name == "/system") {
      system(rest);
    } else if (name == "/undo") {
      rewind(1);
    } else if (name == "/rewind") {
      rewind(rest);
    } else if (name == "/regenerate") {
      regenerate();
    } else if (name == "/fork") {
      fork(rest);
    } else if (name == "/switch" && !rest.empty()) {
      switch_to(rest);
    } else if (name == "/branches" || name == "/switch") {
      print_dim(branches_.list());
    } else if (name == "/save") {
      save(rest);
    } else if (name == "/load") {
      load(rest);
    } else if (name == "/list") {
      print_dim(saves_.list());
    } else if (name == "/reset") {
      reset();
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
    if (!text.empty()) conversation().set_system(text == "off" ? "" : text);
    print_dim(conversation().system().empty() ? "No system prompt.\n"
                                              : "System prompt: " + conversation().system() + "\n");
  }

  void rewind(const std::string& text) {
    size_t n_turns = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), n_turns);
    if (failure != std::errc() || end != text.data() + text.size() || n_turns == 0)
      return print_dim("/rewind N: how many messages to take back, from 1.\n");
    rewind(n_turns);
  }

  void rewind(size_t n_turns) {
    const size_t n_there = conversation().n_turns();
    if (n_there == 0) return print_dim("There is nothing to take back.\n");
    if (n_turns > n_there) return print_dim("Messages to take back: only " + std::to_string(n_there) + ".\n");
    for (std::string message; n_turns > 0 && conversation().drop_turn(&message); --n_turns)
      print_dim("Taken back: " + message + "\n");
    branch().n_regenerated = 0;
    cut_session();
  }

  // The session lets go of what the next prompt will not begin with, whatever the next message is.
  void cut_session() {
    try {
      Conversation next = conversation();
      next.add_user("");
      print_dim(rewind_text(engine_.rewind(branch().session, next.request())));
    } catch (const ApiError& error) {
      print_dim(explained(error));  // nothing is lost: the next answer cuts what it must
    }
  }

  void regenerate() {
    if (!conversation().drop_reply()) return print_dim("There is no answer to make again.\n");
    if (options_.temperature == 0)
      print_dim("The likeliest token always wins (greedy), so the answer will be the same.\n");
    ++branch().n_regenerated;
    reply();
  }

  void fork(const std::string& name) {
    try {
      std::string why_not;
      if (branches_.fork(name, &why_not)) return print_dim("Now on " + branches_.line_of(branch()));
      print_dim("No branch was made: " + why_not + ".\n");
    } catch (const ApiError& error) {
      print_dim("No branch was made: " + explained(error));
    }
  }

  void switch_to(const std::string& name) {
    if (branches_.switch_to(name)) return print_dim("Now on " + branches_.line_of(branch()));
    print_dim("There is no branch " + name + ". /branches lists them.\n");
  }

  void save(const std::string& name) {
    const std::string problem = Saves::problem_of(name);
    if (!problem.empty()) return print_dim("/save NAME: " + problem + ".\n");
    if (conversation().n_turns() == 0) return print_dim("There is nothing to save.\n");
    try {
      print_dim("Saved as " + name + ": " + saved_text(saves_.save(name, branch().session, chat_json())) + ".\n");
    } catch (const ApiError& error) {
      print_dim("Not saved. " + explained(error));
    }
    take_interrupt();
  }

  Json chat_json() {
    Json chat = conversation().to_json();
    chat["seed"] = branch().seed;
    chat["n_regenerated"] = branch().n_regenerated;
    return chat;
  }

  // With a store: after each answer, so that a program that was killed has lost nothing but the message it was at.
  void keep_last() {
    try {
      saves_.save_messages(kLastSave, chat_json());
    } catch (const ApiError& error) {
      print_dim("The messages were not kept. " + explained(error));
    }
  }

  static uint64_t number_in(const Json& chat, const char* key, uint64_t otherwise) {
    const Json number = chat.value(key, Json());
    return number.is_number_unsigned() ? number.get<uint64_t>() : otherwise;
  }

  void load(const std::string& name) {
    const std::string problem = Saves::problem_of(name);
    if (!problem.empty()) return print_dim("/load NAME: " + problem + ".\n");
    try {
      LoadedChat loaded = saves_.load(name, [this] { return make_room(); });
      Conversation conversation(options_);
      if (!conversation.from_json(loaded.chat))
        return print_dim("Not loaded: " + name + " holds no conversation of this program.\n");
      // The saved seed goes on, so that the draws are those of a talk that was never left.
      const uint64_t seed = options_.seed_is_drawn ? number_in(loaded.chat, "seed", *options_.seed) : *options_.seed;
      const uint64_t n_regenerated = number_in(loaded.chat, "n_regenerated", 0);
      branches_.take_in(std::move(conversation), std::move(loaded), seed, n_regenerated);
      print_dim("Now on " + branches_.line_of(branch()) + load_text(*branch().loaded));
    } catch (const ApiError& error) {
      print_dim("Not loaded. " + explained(error));
    }
    take_interrupt();
  }

  void reset() {
    conversation().clear();
    engine_.reset(branch().session);
    branch().n_regenerated = 0;
    branch().last_report.reset();
    branch().loaded.reset();
    print_dim("A new conversation.\n");
  }

  void ask(const std::string& message) {
    engine_.keep_windows(branch().session);  // /undo will come back to here
    branch().n_regenerated = 0;
    conversation().add_user(message);
    reply();
  }

  // Answers the last message. A reply that was stopped stays in the conversation as far as it came; a message that got
  // none is taken back.
  void reply() {
    try {
      const Reply reply = engine_.answer(branch().session, conversation().request(), reply_options());
      printer_.finish();
      if (reply.tokens.empty() && reply.interrupted) {
        conversation().drop_turn(nullptr);
        return print_dim("Stopped before the answer; your message was taken back.\n");
      }
      conversation().add_reply(reply);
      branch().last_report = reply.report;
      for (const Json& call : reply.tool_calls) print_dim("Tool call: " + call.dump() + "\n");
      if (!reply.malformed.empty()) print_dim("A broken tool call: " + reply.malformed + "\n");
      if (reply.interrupted) print_dim("Stopped.\n");
      if (reply.stop_reason == DSV41_STOP_MAX_TOKENS) print_dim("Stopped at --max-tokens.\n");
      if (reply.stop_reason == DSV41_STOP_CONTEXT_FULL) print_dim("The context is full: /undo or /reset makes room.\n");
      if (!reply.report.store_problem.empty()) print_dim("Not in the store: " + reply.report.store_problem + "\n");
      if (engine_.store()) keep_last();
    } catch (const ApiError& error) {
      printer_.finish();
      conversation().drop_turn(nullptr);
      print_dim(explained(error) + "Your message was taken back.\n");
    }
    take_interrupt();
  }

  static std::string explained(const ApiError& error) {
    const std::string text = std::string(dsv41_status_name(error.code())) + ": " + error.what() + "\n";
    if (error.code() == DSV41_POOL_FULL) return text + "/undo or /reset makes room; --pool sets the pool's size.\n";
    return text;
  }

  ReplyOptions reply_options() {
    ReplyOptions options;
    options.thinking = options_.thinking;
    options.seed = branch().seed + branch().n_regenerated;  // another text at the same place needs another seed
    options.on_text = [this](std::string_view text, bool reasoning) { printer_.print(text, reasoning); };
    options.make_room = [this] { return make_room(); };
    return options;
  }

  bool make_room() {
    const Branch* parked = branches_.park_one();
    if (!parked) return false;
    printer_.finish();
    print_dim("The KV pool is full: branch " + parked->name +
              " gives up its memory. Its messages stay, and its next answer brings the tokens back.\n");
    return true;
  }

  void stats() {
    const dsv41_session_info session = engine_.session_info(branch().session);
    const dsv41_pool_stats pool = engine_.pool_stats();
    char text[512];
    std::snprintf(
        text, sizeof text,
        "context     %llu of %llu tokens in %zu turns\n"
        "KV          %.1f KiB in %llu pages, %llu of them shared\n",
        static_cast<unsigned long long>(session.position), static_cast<unsigned long long>(session.max_tokens),
        conversation().n_turns(), static_cast<double>(session.n_pages * pool.page_bytes) / 1024,
        static_cast<unsigned long long>(session.n_pages), static_cast<unsigned long long>(session.n_pages_shared));
    print_dim((branch().last_report ? report_text(*branch().last_report) : "") + totals_text(engine_.totals()) +
              (branch().loaded ? load_stats_text(*branch().loaded) : "") + text + pool_text(pool) + store_stats() +
              "seed        " + std::to_string(branch().seed) + "\n");
  }

  std::string store_stats() {
    if (!engine_.store()) return {};
    return store_stats_text(*engine_.store(), branch().last_report ? &*branch().last_report : nullptr,
                            engine_.totals());
  }

  Engine& engine_;
  const Options& options_;
  Branches branches_;
  Saves saves_;
  LineEditor editor_;
  ReplyPrinter printer_;
  bool leaving_ = false;
};

}  // namespace

int talk(Engine& engine, const Options& options) { return Talk(engine, options).run(); }

}  // namespace dsv41_chat
