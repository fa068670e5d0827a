// Opens the small checkpoints on a backend and runs the forward pass for tests: sessions through the session room, and
// all rows of a prompt at once straight through model::Forward.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kv/sequence_kv.h"
#include "model/forward.h"
#include "session/session.h"

namespace dsv41::test {

// Folder of a small checkpoint: "pico" or "nano".
std::string checkpoint_folder(const std::string& name);

std::shared_ptr<backend::Backend> make_backend(const std::string& name, int n_threads = 1,
                                               const std::string& cpu_target = "");
std::shared_ptr<const session::LoadedModel> open_model(const std::string& name,
                                                       std::shared_ptr<backend::Backend> backend);
// Without caches: each session computes its own.
std::shared_ptr<session::Pool> make_pool(std::shared_ptr<const session::LoadedModel> model, uint32_t max_sessions = 4,
                                         uint64_t tokens = 4096);
std::shared_ptr<session::Pool> make_pool(std::shared_ptr<const session::LoadedModel> model,
                                         const session::PoolOptions& options);
std::unique_ptr<session::Session> make_session(std::shared_ptr<session::Pool> pool,
                                               session::DecoderPolicy decoder = session::DecoderPolicy::kBounded,
                                               int64_t max_tokens = 4096);

// A sequence driven straight through model::Forward, whole stack on all rows.
class RawSequence {
 public:
  RawSequence(std::shared_ptr<session::Pool> pool, int64_t max_tokens);
  // Prefills `ids` from position 0 in one step; logits of all rows [n, vocab].
  std::vector<float> prefill(const std::vector<int32_t>& ids);
  model::StepSequence step(int64_t begin, int64_t end, const int32_t* tokens) const;
  model::Forward& forward() { return *forward_; }
  const kv::SequenceKv& kv() const { return *kv_; }

 private:
  std::shared_ptr<session::Pool> pool_;
  std::unique_ptr<model::Forward> forward_;
  kv::KvRef kv_;
};

// Record bytes as the golden files hold them: codes, then scales, per entry.
std::vector<uint8_t> field_records(const tensor::PagedField& field, int64_t n_entries);
// Window records of positions [begin, end).
std::vector<uint8_t> window_records(const tensor::WindowRing& ring, int64_t begin, int64_t end);
// Open compressor row of an even position: [2, head_dim].
std::vector<float> open_row(const kv::SequenceKv& kv, int source, int64_t position);

// Largest logit, lowest id on ties.
int32_t argmax(std::span<const float> logits);
// Greedy continuation of a session that has logits.
std::vector<int32_t> greedy(session::Session& session, int n_tokens);

}  // namespace dsv41::test
