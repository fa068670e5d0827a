#include "session/codec_planes.h"

#include <random>

#include "kernels/common/cpu_features.h"
#include "kernels/common/number_formats.h"
#include "kernels/quant/act_quant.h"
#include "kernels/quant/fp4_quant.h"

namespace dsv41::bench {
namespace {

constexpr size_t kWindowTokens = 128;
constexpr double kGainSigma = 0.5, kTailDegrees = 5;

// Random values of the channels of one field (or one layer's window), which keep their gains.
class LatentSource {
 public:
  LatentSource(const Latents& latents, size_t dim, uint32_t seed)
      : random_(seed), heavy_tails_(latents.heavy_tails), gains_(dim, 1.0f) {
    std::lognormal_distribution<float> gain(0.0f, static_cast<float>(kGainSigma));
    if (latents.channel_gains) {
      for (float& value : gains_) value = gain(random_);
    }
  }
  // bf16 [n_rows, dim]
  std::vector<uint16_t> rows(size_t n_rows) {
    std::vector<uint16_t> values(n_rows * gains_.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = heavy_tails_ ? tails_(random_) : normal_(random_);
      values[i] = kernels::f32_to_bf16(value * gains_[i % gains_.size()]);
    }
    return values;
  }

 private:
  std::mt19937 random_;
  bool heavy_tails_;
  std::vector<float> gains_;
  std::normal_distribution<float> normal_;
  std::student_t_distribution<float> tails_{static_cast<float>(kTailDegrees)};
};

void quantise(PlaneKind codes_kind, std::span<const uint16_t> x, int64_t n_rows, uint8_t* codes, uint8_t* scales) {
  static SerialParallel serial;
  const kernels::CpuContext context = {kernels::supported_cpu_targets().back(), &serial};
  const int64_t dim = static_cast<int64_t>(x.size()) / n_rows;
  if (codes_kind == kWindowCodes) {
    kernels::act_quant_cpu({x.data(), dim, codes, dim, scales, dim / 32, n_rows, dim}, context);
    return;
  }
  const bool main = codes_kind == kMainCodes;
  const kernels::Fp4Format format = main ? kernels::Fp4Format::kMain : kernels::Fp4Format::kIndex;
  const int64_t scale_stride = dim / (main ? 16 : 32);
  kernels::fp4_quant_cpu({format, x.data(), dim, codes, dim / 2, scales, scale_stride, n_rows, dim}, context);
}

void fill_planes(const Latents& latents, PlaneKind codes_kind, size_t n_pieces, DataSet* set) {
  Plane& codes = set->planes[codes_kind];
  Plane& scales = set->planes[codes_kind + 1];
  codes.pieces.assign(n_pieces, std::vector<std::byte>(codes.piece_bytes()));
  scales.pieces.assign(n_pieces, std::vector<std::byte>(scales.piece_bytes()));
  size_t first_entry = 0;
  for (size_t field = 0; field < codes.fields.size(); ++field) {
    LatentSource source(latents, codes.n_channels(), static_cast<uint32_t>(100 * codes_kind + field + 1));
    const size_t n_rows = codes.fields[field];
    for (size_t piece = 0; piece < n_pieces; ++piece) {
      std::byte* const to_codes = codes.pieces[piece].data() + first_entry * codes.entry_bytes;
      std::byte* const to_scales = scales.pieces[piece].data() + first_entry * scales.entry_bytes;
      quantise(codes_kind, source.rows(n_rows), static_cast<int64_t>(n_rows), reinterpret_cast<uint8_t*>(to_codes),
               reinterpret_cast<uint8_t*>(to_scales));
    }
    first_entry += n_rows;
  }
}

}  // namespace

size_t Plane::piece_bytes() const {
  size_t n_entries = 0;
  for (const size_t n : fields) n_entries += n;
  return n_entries * entry_bytes;
}

double DataSet::bytes_per_token(PlaneKind kind) const {
  return static_cast<double>(planes[kind].piece_bytes()) / static_cast<double>(kv::kPageTokens);
}

kv::PageGeometry released_geometry() {
  const kv::KvShape shape = {{{2, 2}, {8, 2}, {14, 2}, {20, 1}}, 512, 128, 40, 128};
  return kv::PageGeometry::compute(shape).value();
}

DataSet empty_data_set(std::string name, const kv::PageGeometry& geometry, size_t n_layers) {
  DataSet set;
  set.name = std::move(name);
  const char* const names[kPlaneKinds] = {"main codes",   "main scales",  "index codes",
                                          "index scales", "window codes", "window scales"};
  for (size_t kind = 0; kind < kPlaneKinds; ++kind) {
    set.planes[kind].name = names[kind];
    set.planes[kind].is_window = kind >= kPageKinds;
    set.planes[kind].is_nibbles = kind == kMainCodes || kind == kIndexCodes;
  }
  for (const kv::PageField& field : geometry.fields()) {
    Plane& codes = set.planes[field.is_index ? kIndexCodes : kMainCodes];
    Plane& scales = set.planes[field.is_index ? kIndexScales : kMainScales];
    codes.entry_bytes = field.code_bytes;
    scales.entry_bytes = field.scale_bytes;
    codes.fields.push_back(field.entries);
    scales.fields.push_back(field.entries);
  }
  const size_t head_dim = static_cast<size_t>(geometry.shape().head_dim);
  set.planes[kWindowCodes].entry_bytes = head_dim;
  set.planes[kWindowScales].entry_bytes = geometry.window_row_bytes() - head_dim;
  set.planes[kWindowCodes].fields.assign(n_layers, kWindowTokens);
  set.planes[kWindowScales].fields.assign(n_layers, kWindowTokens);
  return set;
}

DataSet synthetic_pages(const Latents& latents, size_t n_pages, size_t n_windows) {
  const kv::PageGeometry geometry = released_geometry();
  DataSet set = empty_data_set(latents.name, geometry, static_cast<size_t>(geometry.shape().n_window_layers / 2));
  fill_planes(latents, kMainCodes, n_pages, &set);
  fill_planes(latents, kIndexCodes, n_pages, &set);
  fill_planes(latents, kWindowCodes, n_windows, &set);
  constexpr int32_t kVocabulary = 129280;
  std::mt19937 random(7);
  set.tokens.resize(n_pages * static_cast<size_t>(kv::kPageTokens));
  for (int32_t& token : set.tokens) token = static_cast<int32_t>(random() % kVocabulary);
  return set;
}

}  // namespace dsv41::bench
