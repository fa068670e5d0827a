// dsv41-redis: one process reads a prompt, another one answers it. prefill computes the prompt's KV memory and puts it
// into Redis; decode, here or on another machine with the same model, takes it from there and generates, without having
// run the prompt. Shows a store on objects of the host's: redis_objects.cpp is all that such a host has to write.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <dsv41/dsv41.hpp>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "redis_objects.h"

namespace dsv41_redis {
namespace {

enum ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kNoRedis = 3,   // Redis is not there, does not answer, or refuses
  kNothing = 4,   // decode: nothing of this prompt is in the store
  kBadModel = 5,  // the model cannot be opened
};

constexpr const char* kFooter = R"(
A conversation of one message. Both commands take the same --model and prompt; the answer goes to stdout, what was computed and
what came from Redis to stderr. Redis has to be one that only you can reach: neither a password nor encryption is used.

Exit codes: 0 done; 1 failed; 2 wrong options; 3 Redis is not there, does not answer or refuses; 4 decode: nothing of this
prompt is in the store; 5 the model cannot be opened.)";

struct Options {
  RedisAddress address;
  std::string model = "samples/nano";
  std::string prompt;
  std::string kind = "full";
  uint64_t max_new_tokens = 0;
};

// The command ends with a code of its own.
class Ending : public std::runtime_error {
 public:
  Ending(ExitCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// What both commands need: Redis first, so that a wrong address shows before the model is opened.
struct Setup {
  Setup(const Options& options, RedisObjects& objects, uint32_t lock)
      : store(runtime, objects.functions(), store_options(lock)), model(opened_model(runtime, options)), pool(model) {
    const dsv41_store_stats stats = store.stats();
    std::fprintf(stderr, "store: %llu pages, %llu states in Redis\n", static_cast<unsigned long long>(stats.n_pages),
                 static_cast<unsigned long long>(stats.n_states));
  }

  static dsv41_store_options store_options(uint32_t lock) {
    auto options = dsv41::make<dsv41_store_options>();
    options.lock = lock;
    return options;
  }

  static dsv41::Model opened_model(const dsv41::Runtime& runtime, const Options& options) {
    try {
      return dsv41::Model(runtime, options.model);
    } catch (const dsv41::Error& error) {
      throw Ending(kBadModel, "cannot open the model in '" + options.model + "': " + error.what());
    }
  }

  dsv41::Runtime runtime;
  dsv41::Store store;
  dsv41::Model model;
  dsv41::Pool pool;
};

dsv41::Tokens rendered(const dsv41::Model& model, const Options& options) {
  std::string prompt = options.prompt;
  if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  while (!prompt.empty() && prompt.back() == '\n') prompt.pop_back();
  if (prompt.empty()) throw Ending(kUsage, "the prompt is empty");
  const nlohmann::json request = {{"messages", {{{"role", "user"}, {"content", prompt}}}}};
  return model.chat_render(request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

const char* class_text(uint32_t result_class) {
  switch (result_class) {
    case DSV41_RESULT_BIT_IDENTICAL: return "bit-identical";
    case DSV41_RESULT_EXACT: return "exact";
    default: return "approximate";
  }
}

unsigned long long number(uint64_t n) { return n; }

void prefill(const Options& options, RedisObjects& objects) {
  const Setup setup(options, objects, DSV41_LOCK_WRITER);
  const dsv41::Tokens tokens = rendered(setup.model, options);
  dsv41::Session session(setup.pool);
  const dsv41_run_result run = session.prefill(tokens);
  auto state = dsv41::make<dsv41_snapshot_options>();
  state.kind = options.kind == "full" ? DSV41_SNAPSHOT_FULL : DSV41_SNAPSHOT_PREFIX;
  auto put_options = dsv41::make<dsv41_put_options>();
  put_options.state = &state;
  put_options.flush = 1;
  const dsv41_put_result put = setup.store.put(session, put_options);
  if (put.outcome != DSV41_PUT_QUEUED && put.outcome != DSV41_PUT_PRESENT)
    throw Ending(kFailed, "the store did not take the prompt in (reason " + std::to_string(put.outcome) + ")");
  std::fprintf(stderr, "prefill: %llu tokens computed; %llu pages new in the store, %llu there before; state: %s\n",
               number(run.encoder_tokens_computed), number(put.n_pages_new), number(put.n_pages_present),
               put.outcome == DSV41_PUT_QUEUED ? options.kind.c_str() : "there before");
}

// Looks the prompt up and makes a session of what is there.
dsv41::Session fetched(const Setup& setup, const dsv41::Tokens& tokens, dsv41_restore_info* info) {
  const std::optional<dsv41::Match> match = setup.store.lookup(setup.model, tokens);
  if (!match) throw Ending(kNothing, "nothing of this prompt is in the store: dsv41-redis prefill puts it there");
  return match->restore(setup.store, setup.pool, dsv41::make<dsv41_restore_options>(), info);
}

void decode(const Options& options, RedisObjects& objects) {
  const Setup setup(options, objects, DSV41_LOCK_READER);
  const dsv41::Tokens tokens = rendered(setup.model, options);
  auto restored = dsv41::make<dsv41_restore_info>();
  dsv41::Session session = fetched(setup, tokens, &restored);
  const dsv41_run_result run = session.sync(tokens);
  auto sampler_options = dsv41::make<dsv41_sampler_options>();
  sampler_options.temperature = 0;  // greedy: the same text whoever runs it
  dsv41::Sampler sampler(setup.model, sampler_options);
  auto generate_options = dsv41::make<dsv41_generate_options>();
  generate_options.max_new_tokens = options.max_new_tokens;
  session.generate(
      sampler,
      [](const dsv41_token_event& event) {
        return std::fwrite(event.text, 1, event.text_size, stdout) == event.text_size;
      },
      generate_options);
  std::fputc('\n', stdout);
  std::fprintf(stderr, "decode: %llu of %zu tokens from Redis, %llu bytes read; %llu computed, %llu replayed; %s\n",
               number(restored.position), tokens.size(), number(restored.bytes_read),
               number(run.encoder_tokens_computed), number(run.encoder_tokens_replayed), class_text(run.result_class));
}

int fail(ExitCode code, const std::string& text) {
  std::fprintf(stderr, "dsv41-redis: %s\n", text.c_str());
  return code;
}

int run(const Options& options, void (*command)(const Options&, RedisObjects&)) {
  RedisObjects objects(options.address);
  try {
    command(options, objects);
    return std::fflush(stdout) == 0 && !std::ferror(stdout) ? kDone : fail(kFailed, "cannot write the answer");
  } catch (const Ending& ending) {
    return fail(ending.code(), ending.what());
  } catch (const dsv41::Error& error) {
    if (!objects.problem().empty()) return fail(kNoRedis, "Redis at " + objects.problem() + " (" + error.what() + ")");
    if (error.status() == DSV41_NOT_FOUND) return fail(kNothing, "Redis holds no store with this --prefix yet");
    return fail(kFailed, std::string(error.name()) + ": " + error.what());
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
}

void add_common(CLI::App* command, Options* options) {
  RedisAddress& address = options->address;
  command->add_option("-p,--prompt", options->prompt, "message; - reads it from stdin, once the store is open")
      ->required()
      ->type_name("TEXT");
  command->add_option("-m,--model", options->model, "checkpoint folder")->type_name("FOLDER")->capture_default_str();
  command->add_option("--host", address.host, "of the Redis server")->capture_default_str();
  command->add_option("--port", address.port, "of the Redis server")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  command->add_option("--prefix", address.prefix, "of all keys")->capture_default_str();
  command
      ->add_option_function<unsigned>(
          "--timeout", [&address](unsigned seconds) { address.timeout = std::chrono::seconds(seconds); },
          "seconds to wait for Redis; else 5")
      ->check(CLI::Range(1, 3600))
      ->type_name("SECONDS");
}

int main_of(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a server that goes away is an error, not an end
  Options options;
  CLI::App app("Hands the KV memory of a prompt from one process to another, through Redis.", "dsv41-redis");
  app.footer(kFooter);
  app.require_subcommand(1);
  CLI::App* prefill_command = app.add_subcommand("prefill", "computes a prompt and puts its KV memory into Redis");
  CLI::App* decode_command = app.add_subcommand("decode", "takes it from there and generates the answer, greedily");
  for (CLI::App* command : {prefill_command, decode_command}) add_common(command, &options);
  prefill_command
      ->add_option("--kind", options.kind,
                   "full: with windows, goes on bit for bit; prefix: without, decode replays 128 tokens")
      ->check(CLI::IsMember({"full", "prefix"}))
      ->capture_default_str();
  decode_command->add_option("--max-tokens", options.max_new_tokens, "longest answer; 0: up to the context")
      ->type_name("TOKENS");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  return run(options, prefill_command->parsed() ? prefill : decode);
}

}  // namespace
}  // namespace dsv41_redis

int main(int argc, char** argv) { return dsv41_redis::main_of(argc, argv); }
