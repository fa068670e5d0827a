#include "kernels/common/number_formats.h"
#include "kernels/engram/engram_gather.h"

namespace dsv41::kernels {

Status check_engram_gather(const EngramGatherArgs& args) {
  if (args.n_rows < 0 || args.n_columns <= 0 || args.table.rows <= 0 || args.table.cols <= 0) {
    return Status(Code::kINVALID_ARG, "engram_gather: empty or negative extent");
  }
  if (args.table.format != tensor::WeightFormat::kFp8Row32 || args.table.cols % 32 != 0) {
    return Status(Code::kINVALID_ARG, "engram_gather: the table is not E4M3 with one scale per 32 columns");
  }
  if (args.n_rows > 0 && (!args.table.codes || !args.table.scales || !args.row_ids || !args.e)) {
    return Status(Code::kINVALID_ARG, "engram_gather: null pointer");
  }
  return Status();
}

void engram_gather_ref(const EngramGatherArgs& args) {
  const uint8_t* codes = static_cast<const uint8_t*>(args.table.codes);
  const uint8_t* scales = static_cast<const uint8_t*>(args.table.scales);
  const int64_t dim = args.table.cols;
  for (int64_t i = 0; i < args.n_rows * args.n_columns; ++i) {
    const int64_t id = args.row_ids[i];
    for (int64_t c = 0; c < dim; ++c) {
      const double scale = e8m0_to_f32(scales[id * (dim / 32) + c / 32]);
      args.e[i * dim + c] = f64_to_bf16(e4m3_to_f32(codes[id * dim + c]) * scale);
    }
  }
}

}  // namespace dsv41::kernels
