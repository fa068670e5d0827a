// codec_experiments [--pages N]: what planes of KV memory gain from zstd, beside what any coder could gain. Prints
// Markdown tables; lib/snapshot/FORMAT.md has the results ("Experiments").
//
//   build/bin/codec_experiments --pages 400
//
// Data: nano pages on held-out text, and random latents at the released geometry. Speeds are MB/s of raw bytes and of
// one thread's processor time, best of three rounds, encode / decode, changes of order included. Sizes follow from the
// data and the version of zstd alone; those of nano also from its rows, whose last bits differ between SIMD targets.
#include <zstd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "session/codec_bounds.h"
#include "session/codec_totals.h"
#include "session/codec_trial.h"
#include "session/snapshot_planes.h"

namespace dsv41::bench {
namespace {

constexpr size_t kWindowHalves = 24;
constexpr size_t kDictionaryBytes = size_t{16} << 10;
constexpr double kRawLimit = 894 * 1.01;  // kv.md section 10

struct Study {
  DataSet set;
  std::array<Bounds, kPlaneKinds> bounds;
};

Status print_bounds(const std::vector<Study>& studies) {
  std::printf(
      "\n## Bounds: bits of a symbol (an e2m1 code or a byte)\n\n"
      "| data | plane | raw | order 0 | a model per channel | given the entry before | raw / order 0 | raw / per "
      "channel |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const Study& study : studies) {
    for (size_t kind = 0; kind < kPlaneKinds; ++kind) {
      const Bounds& bounds = study.bounds[kind];
      std::printf("| %s | %s | %d | %.3f | %.3f | %.3f | %.3f | %.3f |\n", study.set.name.c_str(),
                  study.set.planes[kind].name.c_str(), bounds.symbol_bits, bounds.order_0, bounds.per_channel,
                  bounds.after_last, bounds.symbol_bits / bounds.order_0, bounds.symbol_bits / bounds.per_channel);
    }
  }
  return Status();
}

void print_trial(const Trial& trial) {
  std::printf(" %.3f (%.0f / %.0f) |", trial.ratio(), trial.encode_mb_per_s(), trial.decode_mb_per_s());
}

const char* unit_name(Unit unit) { return unit == Unit::kRecord ? "record" : "chunk"; }

Status print_levels(const std::vector<Study>& studies) {
  std::printf(
      "\n## zstd, planes as they are: raw / stored (MB/s)\n\n"
      "| data | plane | unit | -5, literals coded | 1 | 3 |\n|---|---|---|---|---|---|\n");
  for (const Study& study : studies) {
    for (size_t kind = 0; kind < kPlaneKinds; ++kind) {
      for (const Unit unit : {Unit::kRecord, Unit::kChunk}) {
        const Plane& plane = study.set.planes[kind];
        if (unit == Unit::kRecord && plane.is_window) continue;
        std::printf("| %s | %s | %s |", study.set.name.c_str(), plane.name.c_str(), unit_name(unit));
        for (const Coder& coder : {Coder{-5, true, {}}, Coder{1, false, {}}, Coder{3, false, {}}}) {
          DSV41_TRY_ASSIGN(const Trial trial, try_coder(plane, unit, Order::kPlain, coder));
          print_trial(trial);
        }
        std::printf("\n");
      }
    }
  }
  return Status();
}

std::vector<Order> orders_of(size_t kind) {
  if (kind == kMainCodes || kind == kIndexCodes) {
    return {Order::kPlain, Order::kChannelMajor, Order::kHalves, Order::kNibbleBytes};
  }
  if (kind == kWindowCodes) return {Order::kPlain, Order::kChannelMajor};
  return {Order::kPlain, Order::kChannelMajor, Order::kDelta, Order::kDeltaChannelMajor};
}

Status print_orders(const std::vector<Study>& studies) {
  std::printf(
      "\n## Orders, zstd 1: raw / stored (MB/s with the order)\n\n"
      "| data | plane | order | record | chunk |\n|---|---|---|---|---|\n");
  for (const Study& study : studies) {
    for (size_t kind = 0; kind < kPlaneKinds; ++kind) {
      for (const Order order : orders_of(kind)) {
        const Plane& plane = study.set.planes[kind];
        std::printf("| %s | %s | %s |", study.set.name.c_str(), plane.name.c_str(), order_name(order));
        for (const Unit unit : {Unit::kRecord, Unit::kChunk}) {
          if (unit == Unit::kRecord && plane.is_window) {
            std::printf(" |");
            continue;
          }
          DSV41_TRY_ASSIGN(const Trial trial, try_coder(plane, unit, order, {}));
          print_trial(trial);
        }
        std::printf("\n");
      }
    }
  }
  return Status();
}

Status print_dictionaries(const std::vector<Study>& studies) {
  std::printf(
      "\n## Dictionaries of 16 KiB, zstd 1, records: trained on every second page, the others coded\n\n"
      "| data | plane | order | without | with |\n|---|---|---|---|---|\n");
  for (const Study& study : studies) {
    for (const size_t kind : {kMainScales, kIndexScales}) {
      const Plane train = every_second_piece(study.set.planes[kind], 1);
      const Plane coded = every_second_piece(study.set.planes[kind], 0);
      for (const Order order : {Order::kPlain, Order::kChannelMajor}) {
        DSV41_TRY_ASSIGN(const std::vector<std::byte> dictionary, train_dictionary(train, order, kDictionaryBytes));
        std::printf("| %s | %s | %s |", study.set.name.c_str(), coded.name.c_str(), order_name(order));
        for (const Coder& coder : {Coder{}, Coder{1, false, dictionary}}) {
          DSV41_TRY_ASSIGN(const Trial trial, try_coder(coded, Unit::kRecord, order, coder));
          print_trial(trial);
        }
        std::printf("\n");
      }
    }
  }
  return Status();
}

// What matches of less than 7 bytes are worth, in the planes that zstd gets.
Status print_matches(const std::vector<Study>& studies) {
  std::printf(
      "\n## zstd 1 with all matches, and with those of at least 7 bytes: ratio (MB/s encode / decode)\n\n"
      "| data | plane | chunk: all | chunk: 7 | record: all | record: 7 |\n|---|---|---|---|---|---|\n");
  for (const Study& study : studies) {
    for (const size_t kind : {size_t{kMainScales}, size_t{kIndexScales}, size_t{kWindowCodes}, size_t{kWindowScales}}) {
      const Plane& plane = study.set.planes[kind];
      std::printf("| %s | %s |", study.set.name.c_str(), plane.name.c_str());
      for (const Unit unit : {Unit::kChunk, Unit::kRecord}) {
        for (const int min_match : {0, 7}) {
          if (unit == Unit::kRecord && plane.is_window) {
            std::printf(" |");
            continue;
          }
          Coder coder;
          coder.min_match = min_match;
          DSV41_TRY_ASSIGN(const Trial trial, try_coder(plane, unit, Order::kPlain, coder));
          print_trial(trial);
        }
      }
      std::printf("\n");
    }
  }
  return Status();
}

// What zstd 1 costs and saves in each plane, for a gigabyte of KV at the released geometry.
Status print_costs(const std::vector<Study>& studies, const DataSet& released) {
  std::printf(
      "\n## zstd 1, plane by plane: seconds of one thread for a GB of KV of the released geometry\n\n"
      "| data | plane | share of the KV | chunk: encode s | decode s | saved, share of the plane | bytes a token |\n"
      "|---|---|---|---|---|---|---|\n");
  double all = 0;
  for (size_t kind = 0; kind < kPageKinds; ++kind) all += released.bytes_per_token(static_cast<PlaneKind>(kind));
  for (const Study& study : studies) {
    for (size_t kind = 0; kind < kPageKinds; ++kind) {
      const Plane& plane = study.set.planes[kind];
      DSV41_TRY_ASSIGN(const Trial trial, try_coder(plane, Unit::kChunk, Order::kPlain, {}));
      const double bytes = released.bytes_per_token(static_cast<PlaneKind>(kind)), saved = 1 - 1 / trial.ratio();
      std::printf("| %s | %s | %.1f %% | %.3f | %.3f | %.1f %% | %.1f |\n", study.set.name.c_str(), plane.name.c_str(),
                  100 * bytes / all, bytes / all * 1e3 / trial.encode_mb_per_s(),
                  bytes / all * 1e3 / trial.decode_mb_per_s(), 100 * saved, bytes * saved);
    }
  }
  return Status();
}

struct Policy {
  const char* name;
  TriedPlanes tried;
};
std::vector<Policy> policies() {
  Policy library = {"as the library does", {}};
  for (size_t kind = 0; kind < kPageKinds; ++kind) {
    library.tried[kind] = session::tries_zstd(session::kPlaneSections[kind]);
  }
  return {{"none", {}}, library, {"scales, index codes", {false, true, true, true}}, {"all", {true, true, true, true}}};
}

// One line of the table of totals; `at`: the geometry that the shares of `set` are applied to.
Status print_total(const Study& study, const DataSet& at, const Policy& policy) {
  DSV41_TRY_ASSIGN(const Totals totals, totals_of(study.set, policy.tried));
  double raw = 0, order_0 = 0, per_channel = 0, file = totals.file, record = totals.record;
  for (size_t kind = 0; kind < kPageKinds; ++kind) {
    const PlaneKind plane = static_cast<PlaneKind>(kind);
    const Bounds& bounds = study.bounds[kind];
    const double bytes = at.bytes_per_token(plane), more = bytes - study.set.bytes_per_token(plane);
    raw += bytes;
    order_0 += bytes * bounds.order_0 / bounds.symbol_bits;
    per_channel += bytes * bounds.per_channel / bounds.symbol_bits;
    file += more * totals.file_share[kind];
    record += more * totals.record_share[kind];
  }
  std::printf("| %s%s | %s | %.0f | %.1f | %.1f | %.1f | %.2f | %.1f | %.3f |\n", study.set.name.c_str(),
              &at == &study.set ? "" : ", shares at the released geometry", policy.name, raw, order_0, per_channel,
              file, totals.ids, record, file / kRawLimit);
  return Status();
}

Status print_totals(const std::vector<Study>& studies, const DataSet& released) {
  std::printf(
      "\n## Totals: bytes a token, zstd 1 on the planes named; file and record with heads, padding and ids\n\n"
      "| data | zstd on | raw KV | order-0 bound of KV | per-channel bound | file | of it ids | record | file / %.1f "
      "|\n"
      "|---|---|---|---|---|---|---|---|---|\n",
      kRawLimit);
  for (const Study& study : studies) {
    for (const Policy& policy : policies()) {
      DSV41_TRY(print_total(study, study.set, policy));
      if (study.set.planes[kMainCodes].piece_bytes() == released.planes[kMainCodes].piece_bytes()) continue;
      DSV41_TRY(print_total(study, released, policy));
    }
  }
  return Status();
}

// Bytes of a codes plane and its scales, at their order-0 bounds by what they take.
double share_of_bound(const Study& study, size_t codes_kind, double codes_share, double scales_share) {
  double bound = 0, stored = 0;
  for (const auto& [kind, share] : {std::pair{codes_kind, codes_share}, std::pair{codes_kind + 1, scales_share}}) {
    const double bytes = static_cast<double>(study.set.planes[kind].piece_bytes());
    bound += bytes * study.bounds[kind].order_0 / study.bounds[kind].symbol_bits;
    stored += bytes * share;
  }
  return bound / stored;
}

Status print_entries(const std::vector<Study>& studies) {
  std::printf(
      "\n## Whole entries in a file: order-0 bound / stored, zstd 1\n\n"
      "| data | main, codes raw | index, codes raw | index, both | window, both |\n|---|---|---|---|---|\n");
  for (const Study& study : studies) {
    std::array<double, kPlaneKinds> shares;
    for (size_t kind = 0; kind < kPlaneKinds; ++kind) {
      DSV41_TRY_ASSIGN(const Trial trial, try_coder(study.set.planes[kind], Unit::kChunk, Order::kPlain, {}));
      shares[kind] = 1 / trial.ratio();
    }
    std::printf("| %s | %.3f | %.3f | %.3f | %.3f |\n", study.set.name.c_str(),
                share_of_bound(study, kMainCodes, 1, shares[kMainScales]),
                share_of_bound(study, kIndexCodes, 1, shares[kIndexScales]),
                share_of_bound(study, kIndexCodes, shares[kIndexCodes], shares[kIndexScales]),
                share_of_bound(study, kWindowCodes, shares[kWindowCodes], shares[kWindowScales]));
  }
  return Status();
}

Status run(size_t n_pages) {
  std::vector<Study> studies;
  DSV41_TRY_ASSIGN(DataSet nano, nano_pages(n_pages));
  studies.push_back({std::move(nano), {}});
  for (const Latents& latents : {Latents{"normal", false, false}, Latents{"channel gains", true, false},
                                 Latents{"channel gains, heavy tails", true, true}}) {
    studies.push_back({synthetic_pages(latents, n_pages, kWindowHalves), {}});
  }
  std::printf(
      "zstd %s; each document of nano in a session of its own\n\n| data | pages | window halves |\n|---|---|---|\n",
      ZSTD_versionString());
  for (Study& study : studies) {
    for (size_t kind = 0; kind < kPlaneKinds; ++kind) study.bounds[kind] = bounds_of(study.set.planes[kind]);
    std::printf("| %s | %zu | %zu |\n", study.set.name.c_str(), study.set.n_pages(),
                study.set.planes[kWindowCodes].pieces.size());
  }
  const kv::PageGeometry geometry = released_geometry();
  const DataSet released = empty_data_set("", geometry, 0);
  DSV41_TRY(print_bounds(studies));
  DSV41_TRY(print_totals(studies, released));
  DSV41_TRY(print_costs(studies, released));
  DSV41_TRY(print_entries(studies));
  DSV41_TRY(print_matches(studies));
  DSV41_TRY(print_levels(studies));
  DSV41_TRY(print_orders(studies));
  return print_dictionaries(studies);
}

}  // namespace
}  // namespace dsv41::bench

int main(int argc, char** argv) {
  size_t n_pages = 400;
  if (argc == 3 && std::strcmp(argv[1], "--pages") == 0) n_pages = std::strtoul(argv[2], nullptr, 10);
  if ((argc != 1 && argc != 3) || n_pages < 2) {
    std::fprintf(stderr, "usage: codec_experiments [--pages N]   (N: 2 or more)\n");
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // it takes minutes: each line as soon as it is known
  const dsv41::Status status = dsv41::bench::run(n_pages);
  if (!status.ok()) std::fprintf(stderr, "codec_experiments: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
