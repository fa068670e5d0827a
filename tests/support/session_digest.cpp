#include "support/session_digest.h"

#include <algorithm>

#include "base/sha256.h"
#include "support/model_runner.h"

namespace dsv41::test {
namespace {

template <class T>
void add(Sha256& hash, std::span<const T> values) {
  hash.update(std::as_bytes(values));
}

}  // namespace

std::string session_digest(const session::Session& session) {
  Sha256 hash;
  const model::ModelConfig& config = session.pool().loaded_model()->config();
  const int64_t n = session.position();
  add(hash, session.tokens());
  if (session.has_logits()) add(hash, session.logits().value());
  for (size_t s = 0; s < config.kv_source_layer_ids.size(); ++s) {
    const int source = static_cast<int>(s);
    const int64_t n_entries = n / config.compress_ratio(config.kv_source_layer_ids[s]);
    add<uint8_t>(hash, field_records(session.kv().main(source), n_entries));
    add<uint8_t>(hash, field_records(session.kv().index(source), n_entries));
    if (session.kv().open_rows(source) && n % 2) add<float>(hash, open_row(session.kv(), source, n - 1));
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t floor = layer < config.decoder_start() ? session.encoder_floor() : session.decoder_floor();
    const int64_t low = std::max(floor, n - config.sliding_window + 1);
    add<uint8_t>(hash, window_records(session.kv().ring(layer), low, n));
  }
  return sha256_hex(hash.finish());
}

}  // namespace dsv41::test
