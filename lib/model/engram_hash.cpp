// The constants follow NumPy's generator bit for bit. Sources: numpy/random SeedSequence (bit_generator.pyx, after
// O'Neill's seed_seq design), PCG64 = pcg_setseq_128_xsl_rr_64 (M. O'Neill, PCG, HMC-CS-2014-0905), bounded integers by
// Lemire's multiplication (arXiv 1805.10941). Vectors: numerics.md 5 and model.md 6.3, in the tests.
#include "model/engram_hash.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <string>

namespace dsv41::model {
namespace {

__extension__ typedef unsigned __int128 Uint128;

// SeedSequence of one 32-bit word of entropy, and what generate_state(4, uint64) gives.
std::array<uint64_t, 4> seed_words(uint32_t entropy) {
  constexpr uint32_t kInitA = 0x43b0d7e5, kMultA = 0x931e8875, kInitB = 0x8b51f9dd, kMultB = 0x58f38ded;
  constexpr uint32_t kMixLeft = 0xca01f9dd, kMixRight = 0x4973f715;
  uint32_t hash_const = kInitA;
  const auto hash = [&hash_const](uint32_t value, uint32_t mult) {
    value ^= hash_const;
    hash_const *= mult;
    value *= hash_const;
    return value ^ (value >> 16);
  };
  std::array<uint32_t, 4> pool = {entropy, 0, 0, 0};
  for (uint32_t& word : pool) word = hash(word, kMultA);
  for (size_t from = 0; from < pool.size(); ++from) {
    for (size_t to = 0; to < pool.size(); ++to) {
      if (from == to) continue;
      const uint32_t mixed = kMixLeft * pool[to] - kMixRight * hash(pool[from], kMultA);
      pool[to] = mixed ^ (mixed >> 16);
    }
  }
  std::array<uint64_t, 4> out = {};
  hash_const = kInitB;
  for (size_t i = 0; i < 8; ++i) out[i / 2] |= uint64_t{hash(pool[i % 4], kMultB)} << (32 * (i % 2));
  return out;
}

class Pcg64 {
 public:
  explicit Pcg64(const std::array<uint64_t, 4>& seed) {
    const Uint128 start = Uint128{seed[0]} << 64 | seed[1];
    increment_ = (Uint128{seed[2]} << 64 | seed[3]) << 1 | 1;
    step();
    state_ += start;
    step();
  }

  uint64_t next() {
    step();
    const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const unsigned rotation = static_cast<unsigned>(state_ >> 122);
    return folded >> rotation | folded << ((64 - rotation) % 64);
  }

  // Uniform in [0, n) as Generator.integers draws it for n - 1 >= 2^32 (below that NumPy takes 32-bit draws).
  uint64_t below(uint64_t n) {
    Uint128 product = Uint128{next()} * n;
    if (static_cast<uint64_t>(product) < n) {
      const uint64_t threshold = (0 - n) % n;
      while (static_cast<uint64_t>(product) < threshold) product = Uint128{next()} * n;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  void step() { state_ = state_ * kMultiplier + increment_; }

  static constexpr Uint128 kMultiplier = Uint128{0x2360ed051fc65da4} << 64 | 0x4385df649fccf645;
  Uint128 state_ = 0;
  Uint128 increment_ = 0;
};

uint64_t power_mod(uint64_t base, uint64_t exponent, uint64_t modulus) {
  Uint128 result = 1, square = base % modulus;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = result * square % modulus;
    square = square * square % modulus;
  }
  return static_cast<uint64_t>(result);
}

// Miller-Rabin; the bases 2, 7, 61 decide for all n below 4,759,123,141 (Jaeschke 1993, Math. Comp. 61).
bool is_prime(uint64_t n) {
  assert(n < 4'759'123'141);
  if (n < 2) return false;
  for (uint64_t p : {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61}) {
    if (n % p == 0) return n == p;
  }
  int shift = 0;
  uint64_t odd = n - 1;
  for (; odd % 2 == 0; odd /= 2) ++shift;
  for (uint64_t base : {2, 7, 61}) {
    uint64_t x = power_mod(base, odd, n);
    bool passes = x == 1 || x == n - 1;
    for (int i = 1; i < shift && !passes; ++i) {
      x = power_mod(x, 2, n);
      passes = x == n - 1;
    }
    if (!passes) return false;
  }
  return true;
}

}  // namespace

std::vector<int64_t> engram_multipliers(int64_t layer, int64_t compressed_vocab, int64_t count) {
  assert(compressed_vocab >= 1 && compressed_vocab < int64_t{1} << 30);  // else the bound falls below 2^32
  Pcg64 generator(seed_words(static_cast<uint32_t>(10007 * layer)));
  const uint64_t bound = static_cast<uint64_t>(INT64_MAX / compressed_vocab / 2);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<int64_t>(2 * generator.below(bound) + 1));
  return out;
}

Result<std::vector<EngramLayerConstants>> engram_constants(const ModelConfig& config) {
  std::vector<EngramLayerConstants> layers;
  // The published procedure restarts at engram_vocab_size for every layer and order but skips primes in use; since all
  // of them are in use by then, that is one walk upwards.
  uint64_t candidate = static_cast<uint64_t>(config.engram_vocab_size);
  for (size_t i = 0; i < config.engram_layer_ids.size(); ++i) {
    EngramLayerConstants layer;
    layer.multipliers = engram_multipliers(config.engram_layer_ids[i], config.engram_compressed_vocab_size,
                                           config.engram_max_ngram_size);
    int64_t n_rows = 0;
    for (int64_t column = 0; column < config.engram_n_columns(); ++column) {
      while (!is_prime(candidate)) ++candidate;
      layer.primes.push_back(static_cast<int64_t>(candidate++));
      layer.offsets.push_back(n_rows);
      n_rows += layer.primes.back();
    }
    if (n_rows != config.engram_num_embeddings[i]) {
      return Status(Code::kCHECKPOINT, "engram_num_embeddings[" + std::to_string(i) + "] is " +
                                           std::to_string(config.engram_num_embeddings[i]) +
                                           ", but the primes of that layer sum to " + std::to_string(n_rows));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

Result<EngramHash> EngramHash::create(const ModelConfig& config, std::vector<int32_t> vocab_map) {
  EngramHash hash;
  if (config.engram_layer_ids.empty()) return hash;
  if (vocab_map.size() != static_cast<size_t>(config.vocab_size)) {
    return Status(Code::kINVALID_ARG, "the Engram map has " + std::to_string(vocab_map.size()) +
                                          " entries for a vocabulary of " + std::to_string(config.vocab_size));
  }
  const bool inside = std::all_of(vocab_map.begin(), vocab_map.end(),
                                  [&](int32_t id) { return id >= 0 && id < config.engram_compressed_vocab_size; });
  if (!inside) return Status(Code::kINVALID_ARG, "the Engram map holds an id outside the compressed vocabulary");
  DSV41_TRY_ASSIGN(hash.layers_, engram_constants(config));
  hash.vocab_map_ = std::move(vocab_map);
  hash.n_columns_ = config.engram_n_columns();
  hash.n_look_back_ = config.engram_max_ngram_size - 1;
  hash.n_heads_ = config.engram_n_heads;
  hash.pad_ = hash.compress(static_cast<int32_t>(config.engram_pad_token_id));
  return hash;
}

// Products stay below 2^63: an id is below the compressed vocabulary V and a multiplier below 2 * ((2^63 - 1) / V / 2).
void EngramHash::hash(int64_t engram_idx, std::span<const int32_t> history, int64_t n_positions,
                      int64_t* row_ids) const {
  const EngramLayerConstants& constants = layer(engram_idx);
  const int64_t length = static_cast<int64_t>(history.size());
  assert(n_positions <= length);
  for (int64_t position = length - n_positions; position < length; ++position) {
    bool blocked = false;
    int64_t mixed = 0;
    for (int64_t back = 0, column = 0; back <= n_look_back_; ++back) {
      blocked = blocked || back > position || history[static_cast<size_t>(position - back)] == kEngramDead;
      const int64_t id = blocked ? pad_ : history[static_cast<size_t>(position - back)];
      mixed ^= id * constants.multipliers[static_cast<size_t>(back)];
      if (back == 0) continue;  // n-grams start with two tokens
      for (int64_t head = 0; head < n_heads_; ++head, ++column) {
        const size_t c = static_cast<size_t>(column);
        *row_ids++ = mixed % constants.primes[c] + constants.offsets[c];
      }
    }
  }
}

}  // namespace dsv41::model
