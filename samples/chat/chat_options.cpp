#include "chat_options.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>

namespace dsv41_chat {
namespace {

constexpr const char* kFooter = R"(
Without -p, --prompt-file, --jsonl or --plan the program talks on a terminal (/help lists its commands), and reads one prompt
from stdin where stdin is a file or a pipe. Answers go to stdout, everything else to stderr. Ctrl-C stops the answer.

Exit codes: 0 answered; 1 failed while answering; 2 wrong options; 3 --model or --plan is not there or is no checkpoint; 4 the
prompt or --jsonl file cannot be read; 5 --jsonl went through, but some lines ended in an error; 6
--store cannot be opened; 130 Ctrl-C.

--jsonl: each line is an object with "messages" and, if wanted, "id", "mode" ("chat" or "thinking"), "effort", "drop_thinking",
"tools". Each line is a conversation of its own, computed from nothing, and is answered by one line of stdout, in order:
{"id", "answer": whole reply without end-of-sentence token, "content", "reasoning", "tool_calls", "error": null or text}.
The sampling options are those of the command line; --system, --mode, --effort are for the other ways of asking.)";

std::string default_history_file() {
  const char* home = std::getenv("HOME");
  return home && *home ? std::string(home) + "/.dsv41_chat_history" : "";
}

// CLI11's ranges let NaN through.
CLI::Validator finite_in(double lowest, double highest, bool lowest_too, const std::string& name) {
  const auto check = [=](std::string& text) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value) || !std::isfinite(value) || value < lowest || value > highest ||
        (value == lowest && !lowest_too))
      return "must be " + name;
    return {};
  };
  return CLI::Validator(check, name);
}

}  // namespace

std::optional<int> parse_options(int argc, char** argv, Options* options) {
  Options& o = *options;
  o.history_file = default_history_file();
  CLI::App app("Chat with a DeepSeek-V4.1-Flash checkpoint on this machine, through libdsv41.", "dsv41-chat");
  app.footer(kFooter);
  app.get_formatter()->column_width(30);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);

  app.add_option("-m,--model", o.model, "checkpoint folder")->type_name("FOLDER")->capture_default_str();
  app.add_option("--backend", o.backend, "cpu, or ref: plain loops in double, slow")
      ->check(CLI::IsMember({"cpu", "ref"}))
      ->capture_default_str();
  app.add_option("--threads", o.n_threads, "threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  const CLI::IsMember is_place({"auto", "mmap", "ram", "disk"});
  app.add_option(
         "--experts", o.experts,
         "where experts lie: pages of the files (mmap), memory, or disk with a cache; auto: in memory if they fit")
      ->check(is_place)
      ->capture_default_str();
  app.add_option("--engram", o.engram, "the same of the tables of Engram rows; auto: pages of the files")
      ->check(is_place)
      ->capture_default_str();
  app.add_option("--expert-cache", o.expert_cache_bytes,
                 "memory for experts from disk, as 6GB; 0: a quarter of the machine's")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->type_name("BYTES");
  std::string decoder = "bounded";
  app.add_option("--decoder", decoder,
                 "decoder layers run on the last 128 tokens of a prompt (bounded) or on all (full)")
      ->check(CLI::IsMember({"bounded", "full"}))
      ->capture_default_str();
  app.add_option("--context", o.context_tokens,
                 "tokens that prompt and answers may take; 0: the model's limit, at most 65536")
      ->type_name("TOKENS");
  app.add_option("--pool", o.pool_tokens,
                 "tokens of all branches together that KV memory holds; 0: four times the context")
      ->type_name("TOKENS");

  CLI::Option_group* input = app.add_option_group("Input");
  input->require_option(0, 1);
  input->add_option("-p,--prompt", o.prompt, "answer this and end; - reads the prompt from stdin")->type_name("TEXT");
  input->add_option("--prompt-file", o.prompt_file, "answer the text of a file and end")->type_name("FILE");
  CLI::Option* jsonl =
      input->add_option("--jsonl", o.jsonl_file, "answer a list of conversations, one JSON object a line")
          ->type_name("FILE");
  CLI::Option* plan = input
                          ->add_option("--plan", o.plan,
                                       "print the KV memory of a model and end: a config.json, its folder, "
                                       "V4.1-Flash, V4-Flash or V4-Pro")
                          ->type_name("MODEL");

  CLI::Option_group* planning = app.add_option_group("With --plan");
  planning->add_option("--plan-sessions", o.plan_sessions, "number of sessions")
      ->needs(plan)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  planning->add_option("--plan-tokens", o.plan_tokens, "tokens of each; 0: the model's limit")
      ->needs(plan)
      ->capture_default_str();
  planning->add_option("--plan-kv", o.plan_kv, "how a V4 model keeps KV memory")
      ->needs(plan)
      ->check(CLI::IsMember({"native", "fp8-index", "bf16"}))
      ->capture_default_str();
  planning->add_flag("--plan-drafts", o.plan_drafts, "count draft layers too")->needs(plan);

  app.add_option("--system", o.system, "system prompt")->type_name("TEXT");
  std::string mode = "chat";
  CLI::Option* mode_option = app.add_option("--mode", mode, "chat answers at once, thinking reasons first")
                                 ->check(CLI::IsMember({"chat", "thinking"}))
                                 ->capture_default_str();
  bool think = false, keep_thinking = false;
  app.add_flag("--think", think, "same as --mode thinking")->excludes(mode_option);
  app.add_option("--effort", o.effort, "how thoroughly to reason, in thinking mode")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_flag("--keep-thinking", keep_thinking, "keep the reasoning of earlier turns in the prompt");
  app.add_option("--max-tokens", o.max_new_tokens, "longest reply; 0: up to the context")->type_name("TOKENS");

  CLI::Option* temperature = app.add_option("--temp", o.temperature, "temperature; 0 is greedy")
                                 ->check(finite_in(0, 1e6, true, "a number from 0"))
                                 ->capture_default_str();
  bool greedy = false;
  app.add_flag("--greedy", greedy, "always the likeliest token; same as --temp 0")->excludes(temperature);
  app.add_option("--top-k", o.top_k, "draw from the k likeliest tokens; 0: off")->capture_default_str();
  app.add_option("--top-p", o.top_p, "draw from the likeliest tokens that share this much; 1: off")
      ->check(finite_in(0, 1, false, "a number above 0, at most 1"))
      ->capture_default_str();
  app.add_option("--min-p", o.min_p, "drop tokens this much less likely than the likeliest; 0: off")
      ->check(finite_in(0, 1, true, "a number from 0 to 1"))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "same seed, same text; none: another one each time")->type_name("NUMBER");
  app.add_option("--history", o.history_file, "file of the lines typed; \"\": none")->type_name("FILE");

  CLI::Option* saves =
      app.add_option("--saves", o.saves_folder,
                     "folder of saved conversations; the last one is kept in it, as \"last\", when you leave")
          ->type_name("FOLDER")
          ->capture_default_str();
  CLI::Option* resume =
      app.add_flag("--resume{last}", o.resume, "go on with a saved conversation; --resume=NAME: that one");

  app.add_option("--store", o.store_folder,
                 "folder that keeps the KV memory of all conversations: what was computed once is read from there. The "
                 "messages of the last one are kept in --saves after each answer")
      ->type_name("FOLDER")
      ->excludes(jsonl)
      ->excludes(plan);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? kAnswered : kUsage;
  }
  o.full_decoder = decoder == "full";
  o.thinking = think || mode == "thinking";
  o.drop_thinking = !keep_thinking;
  if (greedy) o.temperature = 0;
  o.saves_on_leaving = saves->count() + resume->count() > 0;
  return std::nullopt;
}

}  // namespace dsv41_chat
