#include "kv/window_entry.h"

#include <cassert>

#include "kv/ring_pieces.h"

namespace dsv41::kv {
namespace {

// What decides an entry's layout, beside the geometry.
struct Extent {
  int64_t end = 0;
  int64_t n_encoder_layers = 0;
  int64_t n_encoder_rows = 0, n_decoder_rows = 0;  // of each layer
};

int64_t rows_below(const WindowRows& half, int64_t end) { return half.present ? end - half.low : 0; }

// Entries of `field` that are complete below `end` in the page that holds `end`. A page starts at a multiple of every
// ratio.
uint64_t partial_entries(const PageField& field, int64_t end) {
  return static_cast<uint64_t>(end % kPageTokens) * field.entries / static_cast<uint64_t>(kPageTokens);
}

uint64_t entry_bytes(const SequenceKv& kv, const Extent& extent) {
  const PageGeometry& geometry = kv.pool().geometry();
  const int64_t n_decoder_layers = geometry.shape().n_window_layers - extent.n_encoder_layers;
  const int64_t n_rows = extent.n_encoder_layers * extent.n_encoder_rows + n_decoder_layers * extent.n_decoder_rows;
  uint64_t bytes = static_cast<uint64_t>(n_rows) * geometry.window_row_bytes() + kv.open_rows_bytes();
  for (const PageField& field : geometry.fields()) {
    bytes += partial_entries(field, extent.end) * (field.code_bytes + field.scale_bytes);
  }
  return bytes;
}

// move(device, bytes) for each piece of the sequence's memory that the entry has, in the order of the entry.
template <class Move>
Status move_all(const SequenceKv& kv, const Extent& extent, Move move) {
  PagePool& pool = kv.pool();
  const PageGeometry& geometry = pool.geometry();
  const std::vector<uint64_t> offsets = window_page_offsets(kv);
  for (int64_t layer = 0; layer < geometry.shape().n_window_layers; ++layer) {
    const int64_t n_rows = layer < extent.n_encoder_layers ? extent.n_encoder_rows : extent.n_decoder_rows;
    DSV41_TRY(
        for_each_ring_piece(geometry.ring(layer, pool.arena(), offsets.data()), extent.end - n_rows, extent.end, move));
  }
  DSV41_TRY(move(reinterpret_cast<std::byte*>(kv.all_open_rows()), kv.open_rows_bytes()));
  if (extent.end % kPageTokens == 0) return Status();
  const PageId partial = kv.pages()[static_cast<size_t>(extent.end / kPageTokens)];
  const uint64_t offset = pool.page_offset(partial);
  for (const PageField& field : geometry.fields()) {
    const tensor::PagedField view = geometry.view(field, pool.arena(), &offset);
    const uint64_t n = partial_entries(field, extent.end);
    DSV41_TRY(move(view.codes(0), n * field.code_bytes));
    DSV41_TRY(move(view.scales(0), n * field.scale_bytes));
  }
  return Status();
}

// What both directions need: the pages and rows that `end` speaks of are there.
Status check_place(const SequenceKv& kv, int64_t end, size_t n_tail, int64_t n_encoder_layers) {
  if (end < 0 || static_cast<int64_t>(n_tail) != end % kPageTokens) {
    return Status(Code::kINVALID_ARG, "a window entry has the tokens behind its last page, no more and no fewer");
  }
  if (!kv.has_windows() || kv.n_pages() < pages_for(end) || kv.n_sealed() < end / kPageTokens) {
    return Status(Code::kINVALID_ARG, "the sequence lacks pages of a window entry");
  }
  if (n_encoder_layers < 0 || n_encoder_layers > kv.pool().geometry().shape().n_window_layers) {
    return Status(Code::kINVALID_ARG, "more encoder layers than window layers");
  }
  return Status();
}

bool rows_fit(const SequenceKv& kv, const WindowRows& half, int64_t end) {
  return !half.present || (half.low >= 0 && half.low <= end && end - half.low <= kv.pool().geometry().window_rows());
}

// The chain's last page below `end`.
PageId chain_end_at(const SequenceKv& kv, int64_t end) {
  const int64_t n_pages = end / kPageTokens;
  return n_pages ? kv.pages()[static_cast<size_t>(n_pages) - 1] : kNoPage;
}

// The queue is idle afterwards, whatever happened: nothing may still use the host memory.
Status wait_after(Status moved, backend::Queue& queue) {
  Status waited = queue.wait();
  return moved.ok() ? std::move(waited) : std::move(moved);
}

}  // namespace

Result<WindowEntryRef> save_windows(const SequenceKv& kv, WindowSave what, backend::Queue& queue) {
  DSV41_TRY(check_place(kv, what.end, what.tail.size(), what.n_encoder_layers));
  const int64_t window = kv.pool().geometry().shape().sliding_window;
  if (!what.encoder.cover(what.end, window)) {
    return Status(Code::kREPLAY_REQUIRED, "the encoder's window rows do not reach the position to save at");
  }
  what.decoder.present = what.with_decoder && what.decoder.cover(what.end, window);
  if (!rows_fit(kv, what.encoder, what.end) || !rows_fit(kv, what.decoder, what.end)) {
    return Status(Code::kINVALID_ARG, "more window rows than a ring holds");
  }
  auto entry = std::make_shared<WindowEntry>();
  entry->root = kv.root();
  entry->chain_end = chain_end_at(kv, what.end);
  if (entry->chain_end != kNoPage) entry->chain_serial = kv.pool().serial(entry->chain_end);
  entry->tail = std::move(what.tail);
  entry->end = what.end;
  entry->encoder = what.encoder;
  entry->decoder = what.decoder;
  entry->provenance = std::move(what.provenance);
  entry->tail_provenance = std::move(what.tail_provenance);
  const Extent extent{what.end, what.n_encoder_layers, rows_below(what.encoder, what.end),
                      rows_below(what.decoder, what.end)};
  DSV41_TRY_ASSIGN(entry->memory, HostMapping::create(entry_bytes(kv, extent)));
  std::byte* to = entry->memory.data();
  DSV41_TRY(wait_after(move_all(kv, extent,
                                [&](const std::byte* device, uint64_t bytes) {
                                  std::byte* const host = to;
                                  to += bytes;
                                  return queue.copy_to_host(host, device, bytes);
                                }),
                       queue));
  assert(to == entry->memory.data() + entry->memory.size());
  return WindowEntryRef(std::move(entry));
}

Status load_windows(const WindowEntry& entry, int64_t n_encoder_layers, const SequenceKv& kv, backend::Queue& queue) {
  DSV41_TRY(check_place(kv, entry.end, entry.tail.size(), n_encoder_layers));
  const PageId chain_end = kv.chain_end();
  if (*kv.root() != *entry.root || kv.n_sealed() * kPageTokens != entry.n_chain_tokens() ||
      chain_end != entry.chain_end || (chain_end != kNoPage && kv.pool().serial(chain_end) != entry.chain_serial)) {
    return Status(Code::kINVALID_ARG, "the window entry belongs on another chain of pages");
  }
  const Extent extent{entry.end, n_encoder_layers, rows_below(entry.encoder, entry.end),
                      rows_below(entry.decoder, entry.end)};
  if (!rows_fit(kv, entry.encoder, entry.end) || !rows_fit(kv, entry.decoder, entry.end) ||
      entry_bytes(kv, extent) != entry.memory.size()) {
    return Status(Code::kINVALID_ARG, "the window entry is of another layout");
  }
  const std::byte* from = entry.memory.data();
  return wait_after(move_all(kv, extent,
                             [&](std::byte* device, uint64_t bytes) {
                               const std::byte* const host = from;
                               from += bytes;
                               return queue.copy_to_device(device, host, bytes);
                             }),
                    queue);
}

}  // namespace dsv41::kv
