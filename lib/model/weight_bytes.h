// What the weights of a configuration weigh, by kind, from the inventory alone: no checkpoint is needed.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace dsv41::model {

// Bytes as a checkpoint stores them, codes and scales.
struct WeightBytes {
  uint64_t experts = 0;        // routed experts of the main layers
  uint64_t engram_tables = 0;  // of which a token reads a few rows
  uint64_t drafts = 0;         // draft layers with their experts and heads
  uint64_t vision = 0;
  uint64_t other = 0;  // of the main layers, embedding and head

  // Read to decode one token, the rows that it takes of embedding and Engram tables included; with the query of every indexer,
  // which only contexts beyond index_topk records use.
  uint64_t of_one_token = 0;

  uint64_t total() const { return experts + engram_tables + drafts + vision + other; }
};

WeightBytes weight_bytes_of(const ModelConfig& config);

}  // namespace dsv41::model
