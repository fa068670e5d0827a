// replay_quality [--folder FOLDER] [--documents N] [--hits 256,512,1024]: what a hit costs in quality, on the nano model
// and its held-out text. Prints a Markdown table.
//
//   build/bin/replay_quality --documents 60
//
// Per document and hit position H: a prefix of H tokens is computed once; then a prompt of H + 64 tokens is given to a
// session that starts in one of the ways below, and the 192 tokens that follow in the text are decoded one by one, each
// after the true ones before it. Compared on these: perplexity, the share of positions with the same largest logit as
// after `full`, and the answers that lie among them.
//
//   full            no hit; both halves of the model on all tokens
//   cold            no hit; the decoder on the last 128 tokens (the model's way, and the library's default)
//   window hit      a window entry ends at H
//   bounded replay  pages up to H; the encoder runs the last 128 of them again
//   exact replay    pages up to H; the encoder runs as many again as an exact result needs
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/exact_math.h"
#include "support/golden_file.h"
#include "support/model_runner.h"

namespace dsv41::test {
namespace {

constexpr int64_t kNewTokens = 64, kScoredTokens = 192;

struct Question {
  int64_t start = 0, end = 0;  // in the whole text
};

struct HeldOut {
  std::vector<int32_t> tokens;
  std::vector<Question> questions;
  std::vector<std::pair<int64_t, int64_t>> documents;
};

HeldOut read_held_out(const std::string& folder) {
  HeldOut out;
  std::ifstream file(folder + "/heldout.npy", std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (bytes.size() < 10 || std::memcmp(bytes.data(), "\x93NUMPY", 6) != 0) {
    std::fprintf(stderr, "replay_quality: cannot read %s/heldout.npy\n", folder.c_str());
    std::exit(2);
  }
  const size_t header = static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  for (size_t i = 10 + header; i + 1 < bytes.size(); i += 2) {
    out.tokens.push_back(static_cast<unsigned char>(bytes[i]) + 256 * static_cast<unsigned char>(bytes[i + 1]));
  }
  std::ifstream text(folder + "/heldout.json");
  const nlohmann::json described = nlohmann::json::parse(text);
  for (const auto& row : described.at("questions")) out.questions.push_back({row[2], row[3]});
  int64_t begin = 0;
  const int64_t n = static_cast<int64_t>(out.tokens.size());
  for (int64_t i = 1; i <= n; ++i) {
    if (i < n && out.tokens[static_cast<size_t>(i)] != 0) continue;
    out.documents.push_back({begin, i});
    begin = i;
  }
  return out;
}

struct Score {
  double sum_nats = 0;
  int64_t n_tokens = 0, n_agreeing = 0, n_right = 0, n_questions = 0, n_replayed = 0, n_layer_tokens = 0;
};

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "replay_quality: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

double nats(std::span<const float> logits, int32_t token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += exp_f64(logit - top);
  return log_f64(sum) + top - logits[static_cast<size_t>(token)];
}

struct Way {
  const char* name;
  session::EncoderReplay encoder = session::EncoderReplay::kBounded;
  session::DecoderPolicy decoder = session::DecoderPolicy::kBounded;
  bool prefix = false, windows = false;
};

constexpr Way kWays[] = {
    {"full", session::EncoderReplay::kBounded, session::DecoderPolicy::kFull},
    {"cold"},
    {"window hit", session::EncoderReplay::kBounded, session::DecoderPolicy::kBounded, true, true},
    {"bounded replay", session::EncoderReplay::kBounded, session::DecoderPolicy::kBounded, true},
    {"exact replay", session::EncoderReplay::kExact, session::DecoderPolicy::kBounded, true},
};

// Runs one document one way. best: the largest logit at each scored position, filled by the first way.
void run(const std::shared_ptr<const session::LoadedModel>& model, const HeldOut& text, int64_t begin, int64_t end,
         int64_t hit, const Way& way, std::vector<int32_t>* best, Score* score) {
  session::PoolOptions options;
  options.tokens = 16384;
  options.max_sessions = 4;
  options.prefix_cache = way.prefix;
  options.window_cache = way.windows;
  auto pool = make_pool(model, options);
  const auto part = [&](int64_t from, int64_t to) {
    return std::span(text.tokens).subspan(static_cast<size_t>(begin + from), static_cast<size_t>(to - from));
  };
  if (way.prefix) must(make_session(pool, session::DecoderPolicy::kBounded, 8192)->prefill(part(0, hit), {}, nullptr));
  auto session = make_session(pool, way.decoder, 8192);
  session->set_replay({way.encoder, way.decoder});
  session::RunResult result;
  must(session->prefill(part(0, hit + kNewTokens), {}, &result));
  score->n_replayed += result.encoder_tokens_replayed;
  score->n_layer_tokens += result.layer_tokens;
  const int64_t last = std::min(end - begin, hit + kNewTokens + kScoredTokens);
  std::vector<int32_t> mine;
  for (int64_t at = hit + kNewTokens; at < last; ++at) {
    const std::span<const float> logits = session->logits().value();
    mine.push_back(argmax(logits));
    const int32_t token = text.tokens[static_cast<size_t>(begin + at)];
    score->sum_nats += nats(logits, token);
    if (at + 1 < last) must(session->decode(token, {}, nullptr));
  }
  if (best->empty()) *best = mine;
  score->n_tokens += static_cast<int64_t>(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) score->n_agreeing += mine[i] == (*best)[i];
  const int64_t first = begin + hit + kNewTokens;
  for (const Question& question : text.questions) {
    if (question.start < first || question.end > begin + last) continue;
    ++score->n_questions;
    score->n_right += std::equal(mine.begin() + (question.start - first), mine.begin() + (question.end - first),
                                 text.tokens.begin() + question.start);
  }
}

std::vector<int64_t> read_list(const char* text) {
  std::vector<int64_t> out;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) out.push_back(std::atoll(item.c_str()));
  return out;
}

}  // namespace
}  // namespace dsv41::test

int main(int argc, char** argv) {
  using namespace dsv41;
  using namespace dsv41::test;
  std::string folder = golden_path("heldout");
  int64_t n_documents = 60;
  std::vector<int64_t> hits = {256, 512, 1024};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--folder") folder = argv[i + 1];
    if (option == "--documents") n_documents = std::atoll(argv[i + 1]);
    if (option == "--hits") hits = read_list(argv[i + 1]);
  }
  const HeldOut text = read_held_out(folder);
  const auto model = open_model("nano", make_backend("cpu", 2));
  std::printf("| H | start | tokens replayed | layer x tokens | perplexity | same token as full | answers right |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (int64_t hit : hits) {
    Score scores[std::size(kWays)];
    int64_t n_done = 0;
    for (const auto& [begin, end] : text.documents) {
      if (n_done == n_documents) break;
      if (end - begin < hit + kNewTokens + kScoredTokens) continue;
      ++n_done;
      std::vector<int32_t> best;
      for (size_t w = 0; w < std::size(kWays); ++w) run(model, text, begin, end, hit, kWays[w], &best, &scores[w]);
    }
    for (size_t w = 0; w < std::size(kWays) && n_done; ++w) {
      const Score& s = scores[w];
      std::printf("| %lld | %s | %.0f | %.0f | %.3f | %.2f %% | %lld of %lld |\n", static_cast<long long>(hit),
                  kWays[w].name, static_cast<double>(s.n_replayed) / static_cast<double>(n_done),
                  static_cast<double>(s.n_layer_tokens) / static_cast<double>(n_done),
                  std::exp(s.sum_nats / static_cast<double>(s.n_tokens)),
                  100.0 * static_cast<double>(s.n_agreeing) / static_cast<double>(s.n_tokens),
                  static_cast<long long>(s.n_right), static_cast<long long>(s.n_questions));
      std::fflush(stdout);
    }
  }
  return 0;
}
