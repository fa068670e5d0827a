#include "session/codec_bounds.h"

#include <cmath>

namespace dsv41::bench {
namespace {

class Counts {
 public:
  Counts(size_t n_contexts, size_t n_symbols) : n_symbols_(n_symbols), counts_(n_contexts * n_symbols) {}
  void add(size_t context, size_t symbol) { ++counts_[context * n_symbols_ + symbol]; }
  double bits_per_symbol() const {
    double bits = 0, n = 0;
    for (size_t first = 0; first < counts_.size(); first += n_symbols_) {
      const std::span<const uint32_t> context = std::span(counts_).subspan(first, n_symbols_);
      double n_context = 0, n_occurring = 0;
      for (const uint32_t count : context) {
        n_context += count;
        n_occurring += count > 0;
      }
      for (const uint32_t count : context) {
        if (count > 0) bits += count * std::log2(n_context / count);
      }
      if (n_context > 0) bits += (n_occurring - 1) / (2 * std::log(2.0));
      n += n_context;
    }
    return n > 0 ? bits / n : 0;
  }

 private:
  size_t n_symbols_;
  std::vector<uint32_t> counts_;
};

std::vector<uint8_t> symbols_of(const Plane& plane, std::span<const std::byte> piece) {
  std::vector<uint8_t> symbols;
  symbols.reserve(piece.size() * (plane.is_nibbles ? 2 : 1));
  for (const std::byte value : piece) {
    const uint8_t byte = std::to_integer<uint8_t>(value);
    if (plane.is_nibbles) {
      symbols.push_back(byte & 15);
      symbols.push_back(byte >> 4);
    } else {
      symbols.push_back(byte);
    }
  }
  return symbols;
}

}  // namespace

Bounds bounds_of(const Plane& plane) {
  const size_t n_symbols = plane.is_nibbles ? 16 : 256, n_channels = plane.n_channels();
  Counts order_0(1, n_symbols), per_channel(plane.fields.size() * n_channels, n_symbols),
      after_last(n_symbols, n_symbols);
  for (const std::vector<std::byte>& piece : plane.pieces) {
    const std::vector<uint8_t> symbols = symbols_of(plane, piece);
    size_t at = 0;
    for (size_t field = 0; field < plane.fields.size(); ++field) {
      for (size_t entry = 0; entry < plane.fields[field]; ++entry) {
        for (size_t channel = 0; channel < n_channels; ++channel, ++at) {
          order_0.add(0, symbols[at]);
          per_channel.add(field * n_channels + channel, symbols[at]);
          if (entry > 0) after_last.add(symbols[at - n_channels], symbols[at]);
        }
      }
    }
  }
  return {plane.is_nibbles ? 4 : 8, order_0.bits_per_symbol(), per_channel.bits_per_symbol(),
          after_last.bits_per_symbol()};
}

}  // namespace dsv41::bench
