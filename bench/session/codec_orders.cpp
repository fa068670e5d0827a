#include "session/codec_orders.h"

#include <algorithm>

namespace dsv41::bench {
namespace {

bool is_delta(Order order) { return order == Order::kDelta || order == Order::kDeltaChannelMajor; }
bool is_channel_major(Order order) { return order == Order::kChannelMajor || order == Order::kDeltaChannelMajor; }

std::byte less(std::byte a, std::byte b) {
  return static_cast<std::byte>(std::to_integer<unsigned>(a) - std::to_integer<unsigned>(b));
}
std::byte plus(std::byte a, std::byte b) {
  return static_cast<std::byte>(std::to_integer<unsigned>(a) + std::to_integer<unsigned>(b));
}

// body(first byte of the field, its entries)
template <class Body>
void for_each_field(const Plane& plane, Body&& body) {
  size_t first = 0;
  for (const size_t n_entries : plane.fields) {
    body(first, n_entries);
    first += n_entries * plane.entry_bytes;
  }
}

// [n_rows, n_columns] to [n_columns, n_rows]
void transpose(const std::byte* from, size_t n_rows, size_t n_columns, std::byte* to) {
  for (size_t row = 0; row < n_rows; ++row) {
    for (size_t column = 0; column < n_columns; ++column) to[column * n_rows + row] = from[row * n_columns + column];
  }
}

void split_halves(std::span<const std::byte> piece, std::span<std::byte> ordered) {
  const size_t half = piece.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const std::byte a = piece[2 * i], b = piece[2 * i + 1];
    ordered[i] = (a & std::byte{15}) | (b << 4);
    ordered[half + i] = (a >> 4) | (b & std::byte{240});
  }
}

void join_halves(std::span<const std::byte> ordered, std::span<std::byte> piece) {
  const size_t half = piece.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const std::byte low = ordered[i], high = ordered[half + i];
    piece[2 * i] = (low & std::byte{15}) | (high << 4);
    piece[2 * i + 1] = (low >> 4) | (high & std::byte{240});
  }
}

}  // namespace

const char* order_name(Order order) {
  switch (order) {
    case Order::kPlain: return "as in memory";
    case Order::kChannelMajor: return "channel-major";
    case Order::kDelta: return "delta";
    case Order::kDeltaChannelMajor: return "delta, channel-major";
    case Order::kHalves: return "half planes";
    case Order::kNibbleBytes: return "a nibble a byte";
  }
  return "";
}

size_t ordered_bytes(Order order, size_t piece_bytes) {
  return order == Order::kNibbleBytes ? 2 * piece_bytes : piece_bytes;
}

void put_in_order(const Plane& plane, Order order, std::span<const std::byte> piece, std::span<std::byte> ordered) {
  if (order == Order::kHalves) return split_halves(piece, ordered);
  if (order == Order::kNibbleBytes) {
    for (size_t i = 0; i < piece.size(); ++i) {
      ordered[2 * i] = piece[i] & std::byte{15};
      ordered[2 * i + 1] = piece[i] >> 4;
    }
    return;
  }
  std::vector<std::byte> deltas;
  if (is_delta(order)) {
    deltas.assign(piece.begin(), piece.end());
    for_each_field(plane, [&](size_t first, size_t n_entries) {
      const size_t end = first + n_entries * plane.entry_bytes;
      for (size_t i = first + plane.entry_bytes; i < end; ++i) deltas[i] = less(piece[i], piece[i - plane.entry_bytes]);
    });
    piece = deltas;
  }
  if (!is_channel_major(order)) {
    std::copy(piece.begin(), piece.end(), ordered.begin());
    return;
  }
  for_each_field(plane, [&](size_t first, size_t n_entries) {
    transpose(piece.data() + first, n_entries, plane.entry_bytes, ordered.data() + first);
  });
}

void undo_order(const Plane& plane, Order order, std::span<const std::byte> ordered, std::span<std::byte> piece) {
  if (order == Order::kHalves) return join_halves(ordered, piece);
  if (order == Order::kNibbleBytes) {
    for (size_t i = 0; i < piece.size(); ++i) piece[i] = ordered[2 * i] | (ordered[2 * i + 1] << 4);
    return;
  }
  if (is_channel_major(order)) {
    for_each_field(plane, [&](size_t first, size_t n_entries) {
      transpose(ordered.data() + first, plane.entry_bytes, n_entries, piece.data() + first);
    });
  } else {
    std::copy(ordered.begin(), ordered.end(), piece.begin());
  }
  if (!is_delta(order)) return;
  for_each_field(plane, [&](size_t first, size_t n_entries) {
    const size_t end = first + n_entries * plane.entry_bytes;
    for (size_t i = first + plane.entry_bytes; i < end; ++i) piece[i] = plus(piece[i], piece[i - plane.entry_bytes]);
  });
}

}  // namespace dsv41::bench
