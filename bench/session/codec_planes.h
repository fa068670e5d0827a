// What the codec experiments compress: planes of KV pages and of window rows, either of the nano model on text that it
// was not trained on, or of random latents at the released model's geometry.
//
// A page plane comes in pieces of one page (kv/page_image.h), a window plane in pieces of the layers of one half of the
// model, 128 rows each. A piece is entries of one size behind each other, field by field: layer by layer.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "kv/page_geometry.h"

namespace dsv41::bench {

// The first four as kv/page_image.h numbers them.
enum PlaneKind : size_t {
  kMainCodes,
  kMainScales,
  kIndexCodes,
  kIndexScales,
  kWindowCodes,
  kWindowScales,
  kPlaneKinds,
};
inline constexpr size_t kPageKinds = kWindowCodes;

struct Plane {
  std::string name;
  size_t entry_bytes = 0;
  bool is_window = false;
  bool is_nibbles = false;     // two e2m1 codes a byte, the lower channel in the low half
  std::vector<size_t> fields;  // entries of each field in a piece
  std::vector<std::vector<std::byte>> pieces;

  size_t n_channels() const { return is_nibbles ? 2 * entry_bytes : entry_bytes; }
  size_t piece_bytes() const;
};

struct DataSet {
  std::string name;
  std::vector<int32_t> tokens;  // those of the pages
  std::array<Plane, kPlaneKinds> planes;

  size_t n_pages() const { return planes[kMainCodes].pieces.size(); }
  // Raw bytes of a page plane for one token.
  double bytes_per_token(PlaneKind kind) const;
};

// Planes without pieces; a window piece has n_layers layers.
DataSet empty_data_set(std::string name, const kv::PageGeometry& geometry, size_t n_layers);
kv::PageGeometry released_geometry();

// Full pages of the longest documents of tests/golden/heldout, n_pages at most, and for each of these documents the
// window rows in front of its end.
Result<DataSet> nano_pages(size_t n_pages);

// Latents without any relation between tokens: normal, or Student's t with 5 degrees of freedom (heavy tails), times a
// gain for each channel of each layer (log-normal, sigma 0.5) where these are wanted; quantised by the model's own
// kernels.
struct Latents {
  const char* name;
  bool channel_gains = false;
  bool heavy_tails = false;
};
DataSet synthetic_pages(const Latents& latents, size_t n_pages, size_t n_windows);

}  // namespace dsv41::bench
