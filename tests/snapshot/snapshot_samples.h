// Snapshot files as sessions would write them, with made-up records: sections that fit each other by FORMAT.md. The
// geometry is head_dim 32, index_head_dim 32, KV sources of ratios 2 and 1, 2 encoder and 1 decoder layers with
// windows, a vocabulary of 50.
#pragma once

#include <string>

#include "snapshot/snapshot_bytes.h"

namespace dsv41::test {

enum class SampleKind : uint32_t { kPrefix = 1, kFull = 2, kState = 3 };

struct Sample {
  std::string name;
  SampleKind kind = SampleKind::kPrefix;
  int64_t n_tokens = 0;
  std::string salt;
  bool media = false;    // one in every 100 tokens
  bool decoder = false;  // windows of the decoder, logits
  bool host = false;     // sampler state and data of the host
};
// Empty ones, ends around a page, all kinds.
std::vector<Sample> samples();

std::vector<SectionContent> sections_of(const Sample& sample);
std::vector<SectionContent> sections_of(const std::string& name);
SectionContent& section_of(std::vector<SectionContent>& sections, snapshot::SectionType type);

}  // namespace dsv41::test
