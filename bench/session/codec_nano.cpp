// Pages and window rows of the nano model: held-out documents, the longest first, each in a session of its own from BOS
// to EOS. Long ones, so that a chunk of many pages has pages of one session, as in a file: documents begin alike.
#include <algorithm>

#include "backend/registry.h"
#include "base/file.h"
#include "base/wire.h"
#include "kv/page_image.h"
#include "kv/ring_pieces.h"
#include "session/codec_planes.h"
#include "session/session.h"

namespace dsv41::bench {
namespace {

constexpr int32_t kBos = 0;
constexpr int64_t kMostTokens = 8192;  // the longest document has 6,754
constexpr size_t kDocuments = 32;      // the shortest of them has 1,352

Result<std::vector<std::vector<int32_t>>> read_documents() {
  DSV41_TRY_ASSIGN(const MappedFile file, MappedFile::open(DSV41_SOURCE_DIR "/tests/golden/heldout/heldout.npy"));
  WireReader in(file.bytes());
  in.get_bytes(8);                   // NumPy format 1.0: magic and version
  in.get_bytes(in.get<uint16_t>());  // header
  std::vector<std::vector<int32_t>> documents;
  while (in.n_left() >= sizeof(uint16_t)) {
    const int32_t token = in.get<uint16_t>();
    if (token == kBos || documents.empty()) documents.emplace_back();
    documents.back().push_back(token);
  }
  if (!in.ok()) return Status(Code::kCORRUPT, "heldout.npy is cut off");
  std::ranges::stable_sort(documents, std::ranges::greater(), &std::vector<int32_t>::size);
  documents.resize(std::min(documents.size(), kDocuments));
  return documents;
}

Result<std::shared_ptr<session::Pool>> new_pool() {
  DSV41_TRY_ASSIGN(std::shared_ptr<backend::Backend> backend, backend::create_backend("cpu", {}));
  session::ModelOptions options;
  options.folder = DSV41_SOURCE_DIR "/samples/nano";
  options.backend = std::move(backend);
  DSV41_TRY_ASSIGN(std::shared_ptr<const session::LoadedModel> model, session::LoadedModel::open(options));
  session::PoolOptions pool_options;
  pool_options.tokens = 2 * kMostTokens;
  pool_options.max_sessions = 1;
  pool_options.prefix_cache = pool_options.window_cache = false;
  return session::Pool::create(std::move(model), pool_options);
}

Status add_pages(const session::Session& session, size_t n_pages, backend::Queue& queue, DataSet* set) {
  const kv::PagePool& pool = session.pool().pages();
  for (size_t page = 0; page < n_pages; ++page) {
    for (size_t kind = 0; kind < kPageKinds; ++kind) {
      Plane& plane = set->planes[kind];
      plane.pieces.emplace_back(plane.piece_bytes());
      DSV41_TRY(kv::pack_plane(pool, session.kv().pages()[page], kv::kPageTokens, static_cast<int>(kind),
                               plane.pieces.back(), queue));
      DSV41_TRY(queue.wait());
    }
  }
  return Status();
}

// The newest rows of the layers [first_layer, last_layer): one piece of each window plane.
Status add_windows(const session::Session& session, int64_t first_layer, int64_t last_layer, backend::Queue& queue,
                   DataSet* set) {
  const kv::PagePool& pool = session.pool().pages();
  const std::vector<uint64_t> offsets = kv::window_page_offsets(session.kv());
  Plane& codes = set->planes[kWindowCodes];
  Plane& scales = set->planes[kWindowScales];
  std::vector<std::byte>& code_piece = codes.pieces.emplace_back();
  std::vector<std::byte>& scale_piece = scales.pieces.emplace_back();
  const int64_t end = session.position();
  for (int64_t layer = first_layer; layer < last_layer; ++layer) {
    const int64_t n_rows = static_cast<int64_t>(codes.fields[static_cast<size_t>(layer - first_layer)]);
    std::vector<std::byte> rows(static_cast<size_t>(n_rows) * (codes.entry_bytes + scales.entry_bytes));
    std::byte* to = rows.data();
    DSV41_TRY(kv::for_each_ring_piece(pool.geometry().ring(layer, pool.arena(), offsets.data()), end - n_rows, end,
                                      [&](const std::byte* device, uint64_t bytes) {
                                        std::byte* const host = to;
                                        to += bytes;
                                        return queue.copy_to_host(host, device, bytes);
                                      }));
    DSV41_TRY(queue.wait());
    for (auto row = rows.begin(); row != rows.end();) {
      const auto scale = row + static_cast<ptrdiff_t>(codes.entry_bytes);
      const auto next = scale + static_cast<ptrdiff_t>(scales.entry_bytes);
      code_piece.insert(code_piece.end(), row, scale);
      scale_piece.insert(scale_piece.end(), scale, next);
      row = next;
    }
  }
  return Status();
}

}  // namespace

Result<DataSet> nano_pages(size_t n_pages) {
  DSV41_TRY_ASSIGN(const std::vector<std::vector<int32_t>> documents, read_documents());
  DSV41_TRY_ASSIGN(std::shared_ptr<session::Pool> pool, new_pool());
  DSV41_TRY_ASSIGN(const std::unique_ptr<backend::Queue> queue, pool->pages().backend().create_queue());
  const int64_t n_layers = pool->pages().geometry().shape().n_window_layers;
  DataSet set = empty_data_set("nano", pool->pages().geometry(), static_cast<size_t>(n_layers / 2));
  for (const std::vector<int32_t>& document : documents) {
    const size_t n = std::min(document.size() / static_cast<size_t>(kv::kPageTokens), n_pages - set.n_pages());
    DSV41_TRY_ASSIGN(const std::unique_ptr<session::Session> session, session::Session::create(pool, {}));
    DSV41_TRY(session->prefill(document, {}, nullptr));
    DSV41_TRY(add_pages(*session, n, *queue, &set));
    set.tokens.insert(set.tokens.end(), document.begin(),
                      document.begin() + static_cast<ptrdiff_t>(n * static_cast<size_t>(kv::kPageTokens)));
    DSV41_TRY(add_windows(*session, 0, n_layers / 2, *queue, &set));
    DSV41_TRY(add_windows(*session, n_layers / 2, n_layers, *queue, &set));
  }
  return set;
}

}  // namespace dsv41::bench
