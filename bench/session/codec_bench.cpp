// ChunkCodec on the planes of pages at the released geometry, random latents with a gain for each channel: one page's
// plane as in a record of the store, and chunks as in a snapshot. Bytes are raw ones; `ratio` is raw by stored. Lines
// of planes that files keep raw say what trying zstd on them would cost. codec_experiments has the other trials.
#include <benchmark/benchmark.h>

#include "base/chunk_codec.h"
#include "session/codec_planes.h"

namespace dsv41::bench {
namespace {

constexpr size_t kPages = 64;  // 7.3 MB
constexpr size_t kChunkTarget = size_t{256} << 10;

const DataSet& pages() {
  static const DataSet set = synthetic_pages({"", true, false}, kPages, 1);
  return set;
}

// Whole pages' planes of about `target` bytes, at least one page.
std::vector<std::vector<std::byte>> units_of(size_t kind, size_t target) {
  std::vector<std::vector<std::byte>> units(1);
  for (const std::vector<std::byte>& piece : pages().planes[kind].pieces) {
    if (!units.back().empty() && units.back().size() + piece.size() > target) units.emplace_back();
    units.back().insert(units.back().end(), piece.begin(), piece.end());
  }
  return units;
}

size_t total_bytes(const std::vector<std::vector<std::byte>>& units) {
  size_t sum = 0;
  for (const std::vector<std::byte>& unit : units) sum += unit.size();
  return sum;
}

void codec_encode(benchmark::State& state, size_t kind, size_t target) {
  const std::vector<std::vector<std::byte>> units = units_of(kind, target);
  ChunkCodec codec;
  size_t stored = 0;
  for (auto _ : state) {
    stored = 0;
    for (const std::vector<std::byte>& unit : units) {
      const Result<ChunkCodec::Encoded> encoded = codec.encode(unit, true);
      if (!encoded.ok()) return state.SkipWithError("encode failed");
      stored += encoded->bytes.size();
    }
  }
  const size_t raw = total_bytes(units);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(raw));
  state.counters["ratio"] = static_cast<double>(raw) / static_cast<double>(stored);
}

void codec_decode(benchmark::State& state, size_t kind, size_t target) {
  const std::vector<std::vector<std::byte>> units = units_of(kind, target);
  ChunkCodec codec;
  std::vector<std::pair<Codec, std::vector<std::byte>>> stored;
  for (const std::vector<std::byte>& unit : units) {
    const Result<ChunkCodec::Encoded> encoded = codec.encode(unit, true);
    if (!encoded.ok()) return state.SkipWithError("encode failed");
    stored.emplace_back(encoded->codec, std::vector<std::byte>(encoded->bytes.begin(), encoded->bytes.end()));
  }
  std::vector<std::byte> raw(kChunkTarget);
  for (auto _ : state) {
    for (size_t i = 0; i < units.size(); ++i) {
      const std::span<std::byte> out = std::span(raw).first(units[i].size());
      if (!codec.decode(stored[i].first, stored[i].second, out).ok()) return state.SkipWithError("decode failed");
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(total_bytes(units)));
}

const bool kRegistered = [] {
  const char* const planes[kPageKinds] = {"main codes", "main scales", "index codes", "index scales"};
  for (size_t kind = 0; kind < kPageKinds; ++kind) {
    for (const auto& [unit, target] : {std::pair{"/record", size_t{0}}, std::pair{"/chunk", kChunkTarget}}) {
      const std::string name = std::string(planes[kind]) + unit;
      benchmark::RegisterBenchmark(("codec_encode/" + name).c_str(), codec_encode, kind, target)
          ->Unit(benchmark::kMicrosecond);
      benchmark::RegisterBenchmark(("codec_decode/" + name).c_str(), codec_decode, kind, target)
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
