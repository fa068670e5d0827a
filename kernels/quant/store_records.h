// Copies finished records from a step's scratch into KV memory. Two forms: into a paged field (main, indexer key) and
// into a window ring (only the newest `capacity` rows matter; the caller passes no more).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"
#include "tensor/paged_view.h"

namespace dsv41::kernels {

struct StoreRecordsArgs {
  const uint8_t* codes = nullptr;   // [n_entries, field.code_bytes], contiguous
  const uint8_t* scales = nullptr;  // [n_entries, field.scale_bytes], contiguous
  tensor::PagedField field;
  int64_t first_entry = 0;
  int64_t n_entries = 0;
};

struct StoreWindowArgs {
  const uint8_t* records = nullptr;  // [n_rows, ring.row_bytes], contiguous
  tensor::WindowRing ring;
  int64_t first_position = 0;
  int64_t n_rows = 0;  // at most ring.capacity
};

Status check_store_records(const StoreRecordsArgs& args);
void store_records_ref(const StoreRecordsArgs& args);
void store_records_cpu(const StoreRecordsArgs& args, const CpuContext& context);

Status check_store_window(const StoreWindowArgs& args);
void store_window_ref(const StoreWindowArgs& args);
void store_window_cpu(const StoreWindowArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
