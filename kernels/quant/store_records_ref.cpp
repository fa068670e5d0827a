#include <cstring>

#include "kernels/quant/store_records.h"

namespace dsv41::kernels {

Status check_store_records(const StoreRecordsArgs& args) {
  if (args.n_entries < 0 || args.first_entry < 0) return Status(Code::kINVALID_ARG, "store_records: negative extent");
  if (args.field.entries_per_page == 0) return Status(Code::kINVALID_ARG, "store_records: page without entries");
  if (args.n_entries == 0) return Status();
  if (!args.field.arena || !args.field.page_offsets || (args.field.code_bytes > 0 && !args.codes) ||
      (args.field.scale_bytes > 0 && !args.scales)) {
    return Status(Code::kINVALID_ARG, "store_records: null pointer");
  }
  return Status();
}

void store_records_ref(const StoreRecordsArgs& args) {
  const tensor::PagedField& field = args.field;
  for (int64_t i = 0; i < args.n_entries; ++i) {
    std::memcpy(field.codes(args.first_entry + i), args.codes + i * field.code_bytes, field.code_bytes);
    std::memcpy(field.scales(args.first_entry + i), args.scales + i * field.scale_bytes, field.scale_bytes);
  }
}

Status check_store_window(const StoreWindowArgs& args) {
  if (args.n_rows < 0 || args.first_position < 0) return Status(Code::kINVALID_ARG, "store_window: negative extent");
  if (args.ring.capacity == 0 || args.ring.rows_per_page == 0 || args.ring.row_bytes == 0) {
    return Status(Code::kINVALID_ARG, "store_window: empty ring");
  }
  if (args.n_rows > int64_t{args.ring.capacity}) {
    return Status(Code::kINVALID_ARG, "store_window: more rows than the ring holds");
  }
  if (args.n_rows > 0 && (!args.records || !args.ring.arena || !args.ring.page_offsets)) {
    return Status(Code::kINVALID_ARG, "store_window: null pointer");
  }
  return Status();
}

void store_window_ref(const StoreWindowArgs& args) {
  for (int64_t i = 0; i < args.n_rows; ++i) {
    std::memcpy(args.ring.row(args.first_position + i), args.records + i * args.ring.row_bytes, args.ring.row_bytes);
  }
}

}  // namespace dsv41::kernels
