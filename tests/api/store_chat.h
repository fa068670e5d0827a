// A conversation of nano that tests of stores put and find again, under a date of the test's.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

#include "api/nano_api.h"

namespace dsv41::test {

constexpr uint64_t kHour = uint64_t{3600} * 1000000000u;

// A runtime whose date is the test's.
inline std::atomic<uint64_t> date{1790000000000000000u};
inline const Runtime& dated_runtime() {
  static const Runtime runtime = [] {
    auto options = make<dsv41_runtime_options>();
    options.n_threads = 2;
    options.wall_clock_fn = [](void*) { return date.load(); };
    return Runtime(options);
  }();
  return runtime;
}
inline const Model& dated_model() {
  static const Model model(dated_runtime(), kNanoFolder);
  return model;
}

// 300 tokens (two pages and 44) with logits, in a pool without a store.
struct Chat {
  explicit Chat(size_t n = 300) : tokens(filler_tokens(dated_model(), n)) { session.prefill(tokens); }
  Tokens tokens;
  Pool pool{dated_model()};
  Session session{pool};
};

inline dsv41_put_options flushed() {
  auto options = make<dsv41_put_options>();
  options.flush = 1;
  return options;
}

inline Tokens with(const Tokens& tokens, size_t n_more) {
  Tokens out = tokens;
  for (size_t i = 0; i < n_more; ++i) out.push_back(tokens[i % tokens.size()]);
  return out;
}

// Of the byte at that part of the file: of two pages in a segment, the second one's body lies in the second half.
inline void flip_a_bit(const std::filesystem::path& path, double part) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(static_cast<double>(std::filesystem::file_size(path)) * part);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

}  // namespace dsv41::test
