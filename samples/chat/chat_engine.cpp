#include "chat_engine.h"

#include <algorithm>

namespace dsv41_chat {
namespace {

constexpr uint64_t kPoolContexts = 4;  // branches share what they have in common; the rest of this is cache
constexpr uint64_t kWindowLifeNs = uint64_t{60} * 60 * 1000 * 1000 * 1000;  // somebody who types may pause for long

using dsv41_samples::call;
using dsv41_samples::made_by;
using dsv41_samples::read_list;

int32_t show_progress(void* user, const dsv41_progress* progress) {
  const bool open = progress->phase == DSV41_PHASE_OPEN;
  static_cast<ProgressBar*>(user)->update(progress->done, progress->total, open ? "‰" : "tokens");
  return 0;
}

// Sorts the parser's events into a reply. Lives during one generate call.
struct ReplyReader {
  dsv41_chatparse* parser;
  const ReplyOptions& options;
  Reply& reply;

  void take_events() {
    for (;;) {
      dsv41_chat_event event = made_by(dsv41_chat_event_init);
      dsv41_error error = made_by(dsv41_error_init);
      const dsv41_status status = dsv41_chatparse_next(parser, &event, &error);
      if (status < 0) throw ApiError(error);
      if (status == DSV41_END) return;
      take(event.kind, std::string_view(event.text, event.text_size), std::string_view(event.value, event.value_size));
    }
  }

  void take(uint32_t kind, std::string_view text, std::string_view value) {
    switch (kind) {
      case DSV41_CHAT_REASONING:
      case DSV41_CHAT_CONTENT: {
        const bool reasoning = kind == DSV41_CHAT_REASONING;
        (reasoning ? reply.reasoning : reply.content) += text;
        if (options.on_text) options.on_text(text, reasoning);
        break;
      }
      case DSV41_CHAT_TOOL_CALL_END:
        reply.tool_calls.push_back({{"name", text}, {"arguments", Json::parse(value)}});
        break;
      case DSV41_CHAT_MALFORMED:
        if (reply.malformed.empty()) reply.malformed = text;
        break;
      default: break;
    }
  }
};

struct GenerateState {
  ReplyReader reader;
  std::exception_ptr failure;  // no exception may cross the C callback
};

int32_t take_token(void* user, const dsv41_token_event* event) {
  auto* state = static_cast<GenerateState*>(user);
  try {
    state->reader.reply.tokens.push_back(event->token);
    call(dsv41_chatparse_push, state->reader.parser, event->token);
    state->reader.take_events();
    return 0;
  } catch (...) {
    state->failure = std::current_exception();
    return 1;
  }
}

uint32_t place_of(const std::string& name) {
  if (name == "mmap") return DSV41_PLACE_MMAP;
  if (name == "ram") return DSV41_PLACE_RAM;
  return name == "disk" ? DSV41_PLACE_DISK : DSV41_PLACE_AUTO;
}

}  // namespace

Engine::Engine(const Options& options) : options_(options) {
  auto runtime_options = made_by(dsv41_runtime_options_init);
  runtime_options.n_threads = options.n_threads;
  dsv41_runtime* runtime = nullptr;
  call(dsv41_runtime_create, &runtime_options, &runtime);
  runtime_.reset(runtime);
  dsv41_cancel* cancel = nullptr;
  call(dsv41_cancel_create, runtime, &cancel);
  cancel_.reset(cancel);
  watch_interrupts(cancel);
  if (!options.store_folder.empty()) store_.emplace(runtime, options.store_folder);

  ProgressBar bar("opening " + options.model);
  auto model_options = made_by(dsv41_model_options_init);
  model_options.folder = options.model.data();
  model_options.folder_size = options.model.size();
  model_options.backends = options.backend.data();
  model_options.backends_size = options.backend.size();
  model_options.progress_fn = show_progress;
  model_options.progress_user = &bar;
  model_options.cancel = cancel;
  model_options.expert_placement = place_of(options.experts);
  model_options.engram_placement = place_of(options.engram);
  model_options.expert_cache_bytes = options.expert_cache_bytes;
  dsv41_model* model = nullptr;
  call(dsv41_model_open, runtime, &model_options, &model);
  model_.reset(model);
  model_info_ = made_by(dsv41_model_info_init);
  call(dsv41_model_info_get, model, &model_info_);

  context_tokens_ =
      std::min(options.context_tokens > 0 ? options.context_tokens : kDefaultContextTokens, model_info_.max_tokens);
  auto pool_options = made_by(dsv41_pool_options_init);
  pool_options.tokens = options.pool_tokens > 0 ? options.pool_tokens : kPoolContexts * context_tokens_;
  pool_options.window_cache_ttl_ns = kWindowLifeNs;
  // Lines stand for themselves: what was asked before must not show in an answer, not even in its roundings.
  if (options.jsonl_file) pool_options.no_prefix_cache = pool_options.no_window_cache = 1;
  dsv41_pool* pool = nullptr;
  call(dsv41_pool_create, model, &pool_options, &pool);
  pool_.reset(pool);
  if (store_) store_->attach_to(pool);
}

dsv41_session_options Engine::session_options() const {
  auto session_options = made_by(dsv41_session_options_init);
  session_options.decoder = options_.full_decoder ? DSV41_DECODER_FULL : DSV41_DECODER_BOUNDED;
  session_options.max_tokens = context_tokens_;
  return session_options;
}

Session Engine::new_session() const {
  const dsv41_session_options session_options = this->session_options();
  dsv41_session* session = nullptr;
  call(dsv41_session_create, pool_.get(), &session_options, &session);
  return Session(session);
}

Session Engine::fork(const Session& session) const {
  dsv41_session* made = nullptr;
  call(dsv41_session_fork, session.get(), session_info(session).position, &made,
       static_cast<dsv41_replay_info*>(nullptr));
  return Session(made);
}

// A session that is released puts its windows into the cache; a fork has the same ones and costs next to nothing. A
// failure only costs a replay.
void Engine::keep_windows(const Session& session) const {
  dsv41_session* made = nullptr;
  dsv41_session_fork(session.get(), session_info(session).position, &made, nullptr, nullptr);
  dsv41_session_release(made);
}

void Engine::reset(const Session& session) const { call(dsv41_session_reset, session.get()); }

dsv41_replay_info Engine::rewind(const Session& session, const Json& request) const {
  const std::vector<int32_t> prompt = render(request);
  auto input = made_by(dsv41_input_init);
  input.tokens = prompt.data();
  input.n_tokens = prompt.size();
  uint64_t common = 0;
  call(dsv41_session_common_prefix, session.get(), &input, &common);
  auto info = made_by(dsv41_replay_info_init);
  call(dsv41_session_truncate, session.get(), common, static_cast<const dsv41_replay_options*>(nullptr), &info);
  return info;
}

dsv41_session_info Engine::session_info(const Session& session) const {
  auto info = made_by(dsv41_session_info_init);
  call(dsv41_session_info_get, session.get(), &info);
  return info;
}

dsv41_pool_stats Engine::pool_stats() const {
  auto stats = made_by(dsv41_pool_stats_init);
  call(dsv41_pool_stats_get, pool_.get(), &stats);
  return stats;
}

std::string Engine::model_fingerprint() const {
  auto fingerprint = made_by(dsv41_fingerprint_init);
  call(dsv41_model_fingerprint, model_.get(), &fingerprint);
  std::string text;
  for (const uint8_t byte : fingerprint.model) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

std::vector<int32_t> Engine::render(const Json& request) const {
  const std::string text = request.dump(-1, ' ', false, Json::error_handler_t::replace);
  return read_list<int32_t>([&](int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
    return dsv41_chat_render(model_.get(), text.data(), text.size(), buffer, capacity, n, error);
  });
}

std::string Engine::text_of(const std::vector<int32_t>& tokens) const {
  const std::vector<char> text = read_list<char>([&](char* buffer, size_t capacity, size_t* n, dsv41_error* error) {
    return dsv41_detokenize(model_.get(), tokens.data(), tokens.size(), 0, buffer, capacity, n, error);
  });
  return std::string(text.begin(), text.end());
}

// The list of the last range: all before it are parts of it.
std::vector<uint64_t> Engine::hits_of(const Session& session) const {
  size_t n_ranges = 0, n_hits = 0;
  call(dsv41_session_provenance, session.get(), static_cast<dsv41_range*>(nullptr), size_t{0}, &n_ranges,
       static_cast<uint64_t*>(nullptr), size_t{0}, &n_hits);
  std::vector<dsv41_range> ranges(n_ranges);
  std::vector<uint64_t> hits(n_hits);
  if (ranges.empty() || hits.empty()) return {};
  call(dsv41_session_provenance, session.get(), ranges.data(), n_ranges, &n_ranges, hits.data(), n_hits, &n_hits);
  const auto first = hits.begin() + static_cast<ptrdiff_t>(ranges.back().first_hit);
  return std::vector<uint64_t>(first, first + static_cast<ptrdiff_t>(ranges.back().n_hits));
}

// Makes the session hold exactly `prompt`, with logits. False when interrupted.
bool Engine::sync_to(const Session& session, const std::vector<int32_t>& prompt, const ReplyOptions& options,
                     TurnReport* report) {
  auto input = made_by(dsv41_input_init);
  input.tokens = prompt.data();
  input.n_tokens = prompt.size();
  ProgressBar bar("reading the prompt");
  auto run_options = made_by(dsv41_run_options_init);
  run_options.cancel = cancel_.get();
  run_options.progress_fn = show_progress;
  run_options.progress_user = &bar;
  report->prompt = made_by(dsv41_run_result_init);
  dsv41_error error = made_by(dsv41_error_init);
  while (dsv41_sync(session.get(), &input, &run_options, &report->prompt, &error) < 0) {
    if (error.code == DSV41_CANCELLED) return false;
    if (error.code != DSV41_POOL_FULL || !options.make_room || !options.make_room()) throw ApiError(error);
  }
  const dsv41_run_result& result = report->prompt;
  totals_.encoder_tokens_computed += result.encoder_tokens_computed;
  totals_.decoder_tokens_computed += result.decoder_tokens_computed;
  totals_.encoder_tokens_replayed += result.encoder_tokens_replayed;
  totals_.decoder_tokens_replayed += result.decoder_tokens_replayed;
  totals_.tokens_reused += result.tokens_reused;
  totals_.store_tokens += result.hit_store_tokens;
  totals_.store_bytes += result.store_bytes_read;
  totals_.prompt_tokens += result.encoder_tokens_computed;
  totals_.prompt_ns += result.time_ns;
  return true;
}

void Engine::generate(const Session& session, const ReplyOptions& options, Reply* reply) {
  auto parse_options = made_by(dsv41_chatparse_options_init);
  parse_options.thinking = options.thinking;
  dsv41_chatparse* parser = nullptr;
  call(dsv41_chatparse_create, model_.get(), &parse_options, &parser);
  const Handle<dsv41_chatparse, dsv41_chatparse_release> parser_handle(parser);

  auto sampler_options = made_by(dsv41_sampler_options_init);
  sampler_options.temperature = options_.temperature;
  sampler_options.top_k = options_.top_k;
  sampler_options.top_p = options_.top_p;
  sampler_options.min_p = options_.min_p;
  sampler_options.seed = options.seed;
  dsv41_sampler* sampler = nullptr;
  call(dsv41_sampler_create, model_.get(), &sampler_options, &sampler);
  const Handle<dsv41_sampler, dsv41_sampler_release> sampler_handle(sampler);

  GenerateState state{{parser, options, *reply}, nullptr};
  auto generate_options = made_by(dsv41_generate_options_init);
  generate_options.cancel = cancel_.get();
  generate_options.token_fn = take_token;
  generate_options.token_user = &state;
  dsv41_generate_result& sum = reply->report.answer;
  dsv41_error error = made_by(dsv41_error_init);
  dsv41_status status = DSV41_OK;
  do {  // tokens before a failure stay in the session, so that the next call goes on behind them
    if (options_.max_new_tokens > 0) generate_options.max_new_tokens = options_.max_new_tokens - reply->tokens.size();
    auto result = made_by(dsv41_generate_result_init);
    status = dsv41_generate(session.get(), sampler, &generate_options, &result, &error);
    totals_.encoder_tokens_computed += result.encoder_tokens_computed;
    totals_.decoder_tokens_computed += result.decoder_tokens_computed;
    totals_.reply_tokens += result.n_tokens;
    totals_.reply_ns += result.time_ns;
    result.n_tokens += sum.n_tokens;
    result.layer_tokens += sum.layer_tokens;
    sum = result;
  } while (status == DSV41_POOL_FULL && options.make_room && options.make_room());
  if (state.failure) std::rethrow_exception(state.failure);
  if (status < 0 && status != DSV41_CANCELLED) throw ApiError(error);
  reply->interrupted = status == DSV41_CANCELLED;
  reply->stop_reason = sum.stop_reason;
  call(dsv41_chatparse_finish, parser);
  state.reader.take_events();
}

Reply Engine::answer(const Session& session, const Json& request, const ReplyOptions& options) {
  dsv41_cancel_reset(cancel_.get());
  Reply reply;
  if (!sync_to(session, render(request), options, &reply.report)) {
    reply.interrupted = true;
    return reply;
  }
  generate(session, options, &reply);
  reply.report.hits = hits_of(session);
  reply.text = text_of(reply.tokens);
  dsv41_cancel_reset(cancel_.get());  // a second Ctrl-C stops this, too
  if (store_) reply.report.store_problem = store_->put(session.get(), cancel_.get());
  return reply;
}

}  // namespace dsv41_chat
