#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/attention/compressor_pool.h"
#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"

namespace dsv41::kernels {
namespace {

// Slot of an even position in the open-row ring.
int64_t open_row_slot(int64_t position) { return position / 2 % kOpenRowSlots; }

}  // namespace

Status check_compressor_pool(const CompressorPoolArgs& args) {
  if (args.first_position < 0 || args.n_rows < 0 || args.first_entry < 0 || args.n_entries < 0 || args.dim <= 0) {
    return Status(Code::kINVALID_ARG, "compressor_pool: empty or negative extent");
  }
  if (args.n_entries == 0) return Status();
  const int64_t first_odd = 2 * args.first_entry + 1, last_odd = first_odd + 2 * (args.n_entries - 1);
  if (first_odd < args.first_position || last_odd >= args.first_position + args.n_rows) {
    return Status(Code::kINVALID_ARG, "compressor_pool: an entry does not complete inside the step");
  }
  if (!args.k || !args.gate || !args.pooled) return Status(Code::kINVALID_ARG, "compressor_pool: null pointer");
  if (2 * args.first_entry < args.first_position && !args.open_rows) {
    return Status(Code::kINVALID_ARG, "compressor_pool: the open row is missing");
  }
  return Status();
}

void compressor_pool_ref(const CompressorPoolArgs& args) {
  for (int64_t i = 0; i < args.n_entries; ++i) {
    const int64_t even = 2 * (args.first_entry + i), row = even - args.first_position;
    const float* open = row >= 0 ? nullptr : args.open_rows + open_row_slot(even) * 2 * args.dim;
    const float* k0 = row >= 0 ? args.k + row * args.dim : open;
    const float* g0 = row >= 0 ? args.gate + row * args.dim : open + args.dim;
    const float* k1 = args.k + (row + 1) * args.dim;
    const float* g1 = args.gate + (row + 1) * args.dim;
    for (int64_t c = 0; c < args.dim; ++c) {
      const double largest = std::max<double>(g0[c], g1[c]);
      const double w0 = exp_f64(g0[c] - largest), w1 = exp_f64(g1[c] - largest);
      args.pooled[i * args.dim + c] = f64_to_bf16((w0 * k0[c] + w1 * k1[c]) / (w0 + w1));
    }
  }
}

Status check_store_open_rows(const StoreOpenRowsArgs& args) {
  if (args.first_position < 0 || args.n_rows < 0 || args.dim <= 0) {
    return Status(Code::kINVALID_ARG, "store_open_rows: empty or negative extent");
  }
  if (args.n_rows > 0 && (!args.k || !args.gate || !args.open_rows)) {
    return Status(Code::kINVALID_ARG, "store_open_rows: null pointer");
  }
  return Status();
}

void store_open_rows_ref(const StoreOpenRowsArgs& args) {
  const int64_t end = args.first_position + args.n_rows;
  const int64_t oldest = std::max(args.first_position, (end + 1) / 2 * 2 - 2 * kOpenRowSlots);
  const size_t row_bytes = static_cast<size_t>(args.dim) * sizeof(float);
  for (int64_t position = (oldest + 1) / 2 * 2; position < end; position += 2) {
    const int64_t row = position - args.first_position;
    float* slot = args.open_rows + open_row_slot(position) * 2 * args.dim;
    std::memcpy(slot, args.k + row * args.dim, row_bytes);
    std::memcpy(slot + args.dim, args.gate + row * args.dim, row_bytes);
  }
}

}  // namespace dsv41::kernels
