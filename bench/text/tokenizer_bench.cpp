// The tokenizer of the nano model on the conversations of tests/golden/world/eval.jsonl: loading, encoding one
// conversation a call (the cache of pieces lives for a call), encoding all of them in one call, decoding all ids at
// once, and streaming them token by token. Bytes are those of the text, items are tokens.
#include <benchmark/benchmark.h>

#include "base/file.h"
#include "base/json.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"

namespace dsv41::bench {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;

struct Corpus {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<std::string> conversations;
  std::string all;
  std::vector<int32_t> ids;  // of `all`
};

Result<std::string> tokenizer_json() {
  return read_file(DSV41_SOURCE_DIR "/samples/nano/tokenizer.json", kMaxFileBytes);
}

// What the messages of a line say, one below the other.
std::string text_of(const Json& line) {
  std::string text;
  const Json* messages = line.find("messages");
  if (!messages || !messages->is_array()) return text;
  for (const Json& message : messages->items()) {
    for (const char* key : {"reasoning", "content"}) {
      const Json* value = message.find(key);
      if (value && value->is_string()) text += value->as_string() + "\n";
    }
  }
  return text;
}

Result<Corpus> load_corpus() {
  Corpus corpus;
  DSV41_TRY_ASSIGN(const std::string json, tokenizer_json());
  DSV41_TRY_ASSIGN(corpus.tokenizer, text::Tokenizer::load(json));
  DSV41_TRY_ASSIGN(const std::string lines,
                   read_file(DSV41_SOURCE_DIR "/tests/golden/world/eval.jsonl", kMaxFileBytes));
  for (size_t begin = 0, end = 0; begin < lines.size(); begin = end + 1) {
    end = std::min(lines.find('\n', begin), lines.size());
    DSV41_TRY_ASSIGN(const Json line, Json::parse(std::string_view(lines).substr(begin, end - begin)));
    corpus.conversations.push_back(text_of(line));
    corpus.all += corpus.conversations.back();
  }
  DSV41_TRY(corpus.tokenizer->encode(corpus.all, text::Literals::kPlain, corpus.ids));
  return corpus;
}

// Null, with the benchmark marked as failed, when a file is missing.
const Corpus* corpus_or_skip(benchmark::State& state) {
  static const Result<Corpus> corpus = load_corpus();
  if (corpus.ok()) return &corpus.value();
  state.SkipWithError(std::string(corpus.status().message()).c_str());
  return nullptr;
}

void report(benchmark::State& state, const Corpus& corpus) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(corpus.all.size()));
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(corpus.ids.size()));
}

void tokenizer_load(benchmark::State& state) {
  const Result<std::string> json = tokenizer_json();
  if (!json.ok()) return state.SkipWithError(std::string(json.status().message()).c_str());
  for (auto _ : state) {
    if (!text::Tokenizer::load(json.value()).ok()) return state.SkipWithError("not loaded");
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(json->size()));
}
BENCHMARK(tokenizer_load)->Unit(benchmark::kMillisecond);

void tokenizer_encode_conversations(benchmark::State& state) {
  const Corpus* corpus = corpus_or_skip(state);
  if (!corpus) return;
  std::vector<int32_t> ids;
  for (auto _ : state) {
    for (const std::string& conversation : corpus->conversations) {
      ids.clear();
      if (!corpus->tokenizer->encode(conversation, text::Literals::kPlain, ids).ok()) {
        return state.SkipWithError("not encoded");
      }
    }
  }
  report(state, *corpus);
}
BENCHMARK(tokenizer_encode_conversations)->Unit(benchmark::kMillisecond);

void tokenizer_encode_all(benchmark::State& state) {
  const Corpus* corpus = corpus_or_skip(state);
  if (!corpus) return;
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    if (!corpus->tokenizer->encode(corpus->all, text::Literals::kPlain, ids).ok()) {
      return state.SkipWithError("not encoded");
    }
  }
  report(state, *corpus);
}
BENCHMARK(tokenizer_encode_all)->Unit(benchmark::kMillisecond);

void tokenizer_decode(benchmark::State& state) {
  const Corpus* corpus = corpus_or_skip(state);
  if (!corpus) return;
  std::string out;
  for (auto _ : state) {
    out.clear();
    if (!corpus->tokenizer->decode(corpus->ids, out).ok()) return state.SkipWithError("not decoded");
  }
  if (out != corpus->all) state.SkipWithError("the text did not come back");
  report(state, *corpus);
}
BENCHMARK(tokenizer_decode)->Unit(benchmark::kMillisecond);

void tokenizer_stream(benchmark::State& state) {
  const Corpus* corpus = corpus_or_skip(state);
  if (!corpus) return;
  std::string out;
  for (auto _ : state) {
    out.clear();
    text::TextStream stream(*corpus->tokenizer);
    for (const int32_t id : corpus->ids) {
      if (!stream.push(id, out).ok()) return state.SkipWithError("not streamed");
    }
    stream.flush(out);
  }
  if (out != corpus->all) state.SkipWithError("the text did not come back");
  report(state, *corpus);
}
BENCHMARK(tokenizer_stream)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsv41::bench
