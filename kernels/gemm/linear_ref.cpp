// The products in double, one rounding at the end. A strip of the weight is decoded once for up to 16 token rows and a
// strip of the inputs once for 32 outputs, because whole models run through this file; each output still is one plain
// sum.
#include <algorithm>
#include <cassert>

#include "kernels/common/e4m3_table.h"
#include "kernels/common/number_formats.h"
#include "kernels/gemm/linear.h"

namespace dsv41::kernels {
namespace {

using tensor::WeightFormat;
using tensor::WeightLayout;
using tensor::WeightView;

constexpr int64_t kRows = 16, kOuts = 32, kCols = 128, kLanes = 8;

double weight_at(const WeightView& weight, int64_t row, int64_t col) {
  const int64_t i = row * weight.cols + col;
  if (weight.format == WeightFormat::kBf16) return bf16_to_f32(static_cast<const uint16_t*>(weight.codes)[i]);
  const uint8_t* codes = static_cast<const uint8_t*>(weight.codes);
  const int64_t scale_row = weight.format == WeightFormat::kFp8Tile32 ? row / 32 : row;
  const double scale =
      e8m0_to_f32(static_cast<const uint8_t*>(weight.scales)[scale_row * (weight.cols / 32) + col / 32]);
  if (weight.format == WeightFormat::kFp8Tile32) return kE4m3Values[codes[i]] * scale;
  return kE2m1Values[codes[i / 2] >> (col % 2 * 4) & 15] * scale;
}

double input_at(const LinearArgs& args, int64_t row, int64_t group, int64_t col) {
  const int64_t in = args.weight.cols;
  if (args.x) return bf16_to_f32(args.x[row * args.x_stride + group * in + col]);
  return kE4m3Values[args.x_codes[row * in + col]] * double{e8m0_to_f32(args.x_scales[(row * in + col) / 32])};
}

// sums[r][o] += inputs[r][:] . weights[:][o]; kLanes outputs advance side by side.
void add_products(const double* inputs, const double* weights, int64_t n_rows, int64_t n_cols, double (*sums)[kOuts]) {
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t first = 0; first < kOuts; first += kLanes) {
      double sum[kLanes];
      for (int64_t o = 0; o < kLanes; ++o) sum[o] = sums[r][first + o];
      for (int64_t c = 0; c < n_cols; ++c) {
        for (int64_t o = 0; o < kLanes; ++o) sum[o] += inputs[r * kCols + c] * weights[c * kOuts + first + o];
      }
      for (int64_t o = 0; o < kLanes; ++o) sums[r][first + o] = sum[o];
    }
  }
}

// Token rows [row, row + n_rows) times weight rows [out, out + n_outs), which lie in one group.
void multiply_part(const LinearArgs& args, int64_t row, int64_t n_rows, int64_t group, int64_t out, int64_t n_outs) {
  double sums[kRows][kOuts] = {};
  double inputs[kRows * kCols], weights[kCols * kOuts] = {};
  for (int64_t col = 0; col < args.weight.cols; col += kCols) {
    const int64_t n_cols = std::min(kCols, args.weight.cols - col);
    for (int64_t r = 0; r < n_rows; ++r) {
      for (int64_t c = 0; c < n_cols; ++c) inputs[r * kCols + c] = input_at(args, row + r, group, col + c);
    }
    for (int64_t o = 0; o < n_outs; ++o) {
      for (int64_t c = 0; c < n_cols; ++c) weights[c * kOuts + o] = weight_at(args.weight, out + o, col + c);
    }
    add_products(inputs, weights, n_rows, n_cols, sums);
  }
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t o = 0; o < n_outs; ++o) {
      const int64_t i = (row + r) * args.y_stride + out + o;
      if (args.y_is_f32) {
        static_cast<float*>(args.y)[i] = static_cast<float>(sums[r][o]);
      } else {
        static_cast<uint16_t*>(args.y)[i] = f64_to_bf16(sums[r][o]);
      }
    }
  }
}

}  // namespace

Status check_linear(const LinearArgs& args) {
  const WeightView& weight = args.weight;
  const bool is_quantised = args.x_codes != nullptr;
  if (args.n_rows < 0 || weight.rows <= 0 || weight.cols <= 0) {
    return Status(Code::kINVALID_ARG, "linear: empty or negative extent");
  }
  if (!weight.codes) return Status(Code::kINVALID_ARG, "linear: null weight");
  switch (weight.format) {
    case WeightFormat::kBf16:
      if (is_quantised) return Status(Code::kUNSUPPORTED, "linear: quantised inputs for a BF16 weight");
      break;
    case WeightFormat::kFp4Row32:
      if (args.x) return Status(Code::kUNSUPPORTED, "linear: BF16 inputs for an FP4 weight");
      [[fallthrough]];
    case WeightFormat::kFp8Tile32:
      if (weight.cols % 32 != 0) return Status(Code::kINVALID_ARG, "linear: in is not a multiple of 32");
      if (!weight.scales && !(weight.format == WeightFormat::kFp4Row32 && weight.layout == WeightLayout::kPacked)) {
        return Status(Code::kINVALID_ARG, "linear: null weight scales");
      }
      break;
    default: return Status(Code::kUNSUPPORTED, "linear: weight format without a product");
  }
  if (args.n_groups < 1 || weight.rows % args.n_groups != 0) {
    return Status(Code::kINVALID_ARG, "linear: out is not a multiple of n_groups");
  }
  if (is_quantised && args.n_groups != 1) return Status(Code::kUNSUPPORTED, "linear: grouped quantised inputs");
  if (args.y_stride < weight.rows) return Status(Code::kINVALID_ARG, "linear: output rows overlap");
  if (args.n_rows == 0) return Status();
  if (!args.y || (args.x != nullptr) == is_quantised || (is_quantised && !args.x_scales)) {
    return Status(Code::kINVALID_ARG, "linear: null pointer, or both or no forms of input");
  }
  if (args.x && args.x_stride < weight.cols * args.n_groups) {
    return Status(Code::kINVALID_ARG, "linear: input rows overlap");
  }
  return Status();
}

void linear_ref(const LinearArgs& args) {
  assert(args.weight.layout == WeightLayout::kRows);  // the backend `ref` packs nothing
  const int64_t group_out = args.weight.rows / args.n_groups;
  for (int64_t row = 0; row < args.n_rows; row += kRows) {
    for (int64_t group = 0; group < args.n_groups; ++group) {
      for (int64_t out = 0; out < group_out; out += kOuts) {
        multiply_part(args, row, std::min(kRows, args.n_rows - row), group, group * group_out + out,
                      std::min(kOuts, group_out - out));
      }
    }
  }
}

}  // namespace dsv41::kernels
