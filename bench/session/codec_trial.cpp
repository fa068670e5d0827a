#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_c_literalCompressionMode
#include "session/codec_trial.h"

#include <time.h>
#include <zdict.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace dsv41::bench {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kChunkTarget = size_t{256} << 10;
constexpr int kRounds = 3;  // the best counts

double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Body>
double best_seconds(Body&& body) {
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = thread_seconds();
    body();
    best = std::min(best, thread_seconds() - begin);
  }
  return best;
}

class Zstd {
 public:
  explicit Zstd(const Coder& coder)
      : compressor_(ZSTD_createCCtx(), ZSTD_freeCCtx),
        decompressor_(ZSTD_createDCtx(), ZSTD_freeDCtx),
        compressor_dictionary_(nullptr, ZSTD_freeCDict),
        decompressor_dictionary_(nullptr, ZSTD_freeDDict) {
    ZSTD_CCtx_setParameter(compressor_.get(), ZSTD_c_compressionLevel, coder.level);
    ZSTD_CCtx_setParameter(compressor_.get(), ZSTD_c_minMatch, coder.min_match);
    if (coder.code_literals) {
      ZSTD_CCtx_setParameter(compressor_.get(), ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
    }
    if (coder.dictionary.empty()) return;
    const void* const bytes = coder.dictionary.data();
    compressor_dictionary_.reset(ZSTD_createCDict(bytes, coder.dictionary.size(), coder.level));
    decompressor_dictionary_.reset(ZSTD_createDDict(bytes, coder.dictionary.size()));
    ZSTD_CCtx_refCDict(compressor_.get(), compressor_dictionary_.get());
    ZSTD_DCtx_refDDict(decompressor_.get(), decompressor_dictionary_.get());
  }
  // Bytes written to `to`; 0: failed.
  size_t encode(std::span<const std::byte> from, std::span<std::byte> to) {
    const size_t n = ZSTD_compress2(compressor_.get(), to.data(), to.size(), from.data(), from.size());
    return ZSTD_isError(n) ? 0 : n;
  }
  bool decode(std::span<const std::byte> from, std::span<std::byte> to) {
    return ZSTD_decompressDCtx(decompressor_.get(), to.data(), to.size(), from.data(), from.size()) == to.size();
  }

 private:
  std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> compressor_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> decompressor_;
  std::unique_ptr<ZSTD_CDict, size_t (*)(ZSTD_CDict*)> compressor_dictionary_;
  std::unique_ptr<ZSTD_DDict, size_t (*)(ZSTD_DDict*)> decompressor_dictionary_;
};

// Pages make one section, the layers of a window half one each.
std::vector<Bytes> sections_of(const Plane& plane, Order order) {
  std::vector<Bytes> sections;
  for (const Bytes& piece : plane.pieces) {
    Bytes ordered(ordered_bytes(order, piece.size()));
    put_in_order(plane, order, piece, ordered);
    if (sections.empty() || plane.is_window) {
      sections.push_back(std::move(ordered));
    } else {
      sections[0].insert(sections[0].end(), ordered.begin(), ordered.end());
    }
  }
  return sections;
}

std::vector<std::span<const std::byte>> units_of(const std::vector<Bytes>& sections, size_t unit_bytes) {
  std::vector<std::span<const std::byte>> units;
  for (const Bytes& section : sections) {
    for (std::span<const std::byte> rest = section; !rest.empty();) {
      units.push_back(rest.first(std::min(unit_bytes, rest.size())));
      rest = rest.subspan(units.back().size());
    }
  }
  return units;
}

size_t unit_bytes_of(const Plane& plane, Unit unit, Order order) {
  const size_t piece_bytes = plane.piece_bytes();
  if (unit == Unit::kRecord) return ordered_bytes(order, piece_bytes);
  if (plane.is_window) return ordered_bytes(order, kChunkTarget);
  return ordered_bytes(order, std::max<size_t>(1, kChunkTarget / piece_bytes) * piece_bytes);
}

Status check_order(const Plane& plane, Order order) {
  Bytes ordered(ordered_bytes(order, plane.piece_bytes())), back(plane.piece_bytes());
  for (const Bytes& piece : plane.pieces) {
    put_in_order(plane, order, piece, ordered);
    undo_order(plane, order, ordered, back);
    if (back != piece) return Status(Code::kINTERNAL, std::string("cannot be undone: ") + order_name(order));
  }
  return Status();
}

// Time of bringing all pieces into the order, and back. A plane that stays as it is takes none.
void time_order(const Plane& plane, Order order, Trial* trial) {
  if (order == Order::kPlain) return;
  Bytes ordered(ordered_bytes(order, plane.piece_bytes())), piece(plane.piece_bytes());
  trial->encode_seconds += best_seconds([&] {
    for (const Bytes& from : plane.pieces) put_in_order(plane, order, from, ordered);
  });
  trial->decode_seconds += best_seconds([&] {
    for (size_t i = 0; i < plane.pieces.size(); ++i) undo_order(plane, order, ordered, piece);
  });
}

}  // namespace

Result<Trial> try_coder(const Plane& plane, Unit unit, Order order, const Coder& coder) {
  DSV41_TRY(check_order(plane, order));
  const std::vector<Bytes> sections = sections_of(plane, order);
  const size_t unit_bytes = unit_bytes_of(plane, unit, order);
  const std::vector<std::span<const std::byte>> units = units_of(sections, unit_bytes);
  Zstd zstd(coder);
  Trial trial;
  Bytes frame(ZSTD_compressBound(unit_bytes)), raw(unit_bytes);
  std::vector<Bytes> frames;
  for (const std::span<const std::byte> from : units) {
    const size_t n = zstd.encode(from, frame);
    frames.emplace_back(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(n));
    const std::span<std::byte> to = std::span(raw).first(from.size());
    if (n == 0 || !zstd.decode(frames.back(), to) || !std::equal(to.begin(), to.end(), from.begin())) {
      return Status(Code::kINTERNAL, "zstd does not give back " + plane.name);
    }
    trial.stored_bytes += n;
  }
  for (const Bytes& piece : plane.pieces) trial.raw_bytes += piece.size();
  trial.encode_seconds = best_seconds([&] {
    for (const std::span<const std::byte> from : units) zstd.encode(from, frame);
  });
  trial.decode_seconds = best_seconds([&] {
    for (size_t i = 0; i < frames.size(); ++i) zstd.decode(frames[i], std::span(raw).first(units[i].size()));
  });
  time_order(plane, order, &trial);
  return trial;
}

Result<std::vector<std::byte>> train_dictionary(const Plane& plane, Order order, size_t n_bytes) {
  Bytes samples, ordered(ordered_bytes(order, plane.piece_bytes()));
  for (const Bytes& piece : plane.pieces) {
    put_in_order(plane, order, piece, ordered);
    samples.insert(samples.end(), ordered.begin(), ordered.end());
  }
  const std::vector<size_t> sizes(plane.pieces.size(), ordered.size());
  Bytes dictionary(n_bytes);
  const size_t n = ZDICT_trainFromBuffer(dictionary.data(), dictionary.size(), samples.data(), sizes.data(),
                                         static_cast<unsigned>(sizes.size()));
  if (ZDICT_isError(n)) return Status(Code::kINTERNAL, std::string("dictionary: ") + ZDICT_getErrorName(n));
  dictionary.resize(n);
  return dictionary;
}

Plane every_second_piece(const Plane& plane, size_t first) {
  Plane half = plane;
  half.pieces.clear();
  for (size_t i = first; i < plane.pieces.size(); i += 2) half.pieces.push_back(plane.pieces[i]);
  return half;
}

}  // namespace dsv41::bench
