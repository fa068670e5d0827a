// Record stores on the CPU: as ref, but entries that lie together in a page are copied in one piece.
#include <algorithm>
#include <cstring>

#include "kernels/quant/store_records.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainEntries = 32;

// Entries from `entry` on that share its page, at most `most`.
int64_t entries_together(int64_t entry, int64_t entries_per_page, int64_t most) {
  return std::min(most, entries_per_page - entry % entries_per_page);
}

}  // namespace

void store_records_cpu(const StoreRecordsArgs& args, const CpuContext& context) {
  const tensor::PagedField& field = args.field;
  context.parallel->run(args.n_entries, kGrainEntries, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t entry = args.first_entry + i;
      const int64_t n = entries_together(entry, field.entries_per_page, end - i);
      std::memcpy(field.codes(entry), args.codes + i * field.code_bytes, static_cast<size_t>(n) * field.code_bytes);
      std::memcpy(field.scales(entry), args.scales + i * field.scale_bytes, static_cast<size_t>(n) * field.scale_bytes);
      i += n;
    }
  });
}

void store_window_cpu(const StoreWindowArgs& args, const CpuContext& context) {
  const tensor::WindowRing& ring = args.ring;
  context.parallel->run(args.n_rows, kGrainEntries, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(ring.row(args.first_position + i), args.records + i * ring.row_bytes, ring.row_bytes);
    }
  });
}

}  // namespace dsv41::kernels
