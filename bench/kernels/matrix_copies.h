// Weights from memory that no cache holds: copies of one matrix that take turns, packed on large pages, or in rows on small
// ones as in a mapped file.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "kernels/common/number_formats.h"
#include "kernels/gemm/packed_weight.h"
#include "support/kernel_runs.h"
#include "tensor/weight_view.h"

namespace dsv41::bench {

// Memory that is there, on large or on small pages.
class Pages {
 public:
  Pages(size_t bytes, bool large) : bytes_(bytes + kLargePage) {
    raw_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw_ == MAP_FAILED) return;
    data_ = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(raw_) + kLargePage - 1) & ~(kLargePage - 1));
    ::madvise(data_, bytes, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // advice: a refusal shows in the figures
  }
  ~Pages() {
    if (raw_ != MAP_FAILED) ::munmap(raw_, bytes_);
  }
  Pages(const Pages&) = delete;
  std::byte* data() const { return data_; }

 private:
  static constexpr size_t kLargePage = size_t{2} << 20;
  size_t bytes_;
  void* raw_;
  std::byte* data_ = nullptr;
};

class MatrixCopies {
 public:
  // About `pool_bytes` in all, at least one copy.
  MatrixCopies(tensor::WeightFormat format, int64_t rows, int64_t cols, bool packed,
               size_t pool_bytes = size_t{1} << 30)
      : codes_bytes_(static_cast<size_t>(rows * cols) * (format == tensor::WeightFormat::kFp4Row32 ? 1 : 2) /
                     (format == tensor::WeightFormat::kBf16 ? 1 : 2)),
        piece_bytes_((std::max(kernels::packed_bytes(format, rows, cols), codes_bytes_) + 255) / 256 * 256),
        n_(std::max<size_t>(1, pool_bytes / piece_bytes_)),
        pages_(n_ * piece_bytes_, packed) {
    if (!pages_.data()) return;
    const std::vector<uint8_t> codes = random_codes(format);
    // FP4: products with normal inputs and a few thousand columns are normal too.
    const std::vector<uint8_t> scales = test::random_e8m0(piece_bytes_ - codes_bytes_ + 64, 2, 115, 121);
    const tensor::WeightView in_rows = {format, rows, cols, codes.data(), scales.data()};
    SerialParallel serial;
    for (size_t i = 0; i < n_; ++i) {
      std::byte* const at = pages_.data() + i * piece_bytes_;
      if (i > 0) {
        std::memcpy(at, pages_.data(), piece_bytes_);
      } else if (packed) {
        view_ = kernels::pack_weight(in_rows, at, serial);
      } else {
        std::memcpy(at, codes.data(), codes_bytes_);
        std::memcpy(at + codes_bytes_, scales.data(), piece_bytes_ - codes_bytes_);
        view_ = in_rows;
        view_.codes = at;
        view_.scales = at + codes_bytes_;
      }
    }
  }

  bool ok() const { return pages_.data() != nullptr; }
  size_t n() const { return n_; }
  size_t piece_bytes() const { return piece_bytes_; }  // as many in either layout, a multiple of 256
  const std::byte* next() {
    const std::byte* const at = pages_.data() + next_ * piece_bytes_;
    next_ = (next_ + 1) % n_;
    return at;
  }
  tensor::WeightView next_view() {
    tensor::WeightView view = view_;
    const ptrdiff_t moved = next() - pages_.data();
    view.codes = static_cast<const std::byte*>(view_.codes) + moved;
    if (view_.scales) view.scales = static_cast<const std::byte*>(view_.scales) + moved;
    return view;
  }

 private:
  // A megabyte of them, again and again. FP8: normal values as a quantiser leaves them, of which the largest of a thousand
  // is near the end of the range.
  std::vector<uint8_t> random_codes(tensor::WeightFormat format) const {
    constexpr size_t kDrawn = size_t{1} << 20;
    std::vector<uint8_t> drawn = test::random_e4m3(kDrawn, 1);
    if (format == tensor::WeightFormat::kFp8Tile32) {
      std::minstd_rand random(1);
      std::normal_distribution<float> values(0, 100);
      for (uint8_t& code : drawn) code = kernels::f32_to_e4m3(std::clamp(values(random), -448.0f, 448.0f));
    }
    if (format == tensor::WeightFormat::kBf16) {
      const std::vector<uint16_t> values = test::random_bf16(kDrawn / 2, 1);
      std::memcpy(drawn.data(), values.data(), kDrawn);
    }
    std::vector<uint8_t> codes(codes_bytes_);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = drawn[i % kDrawn];
    return codes;
  }

  size_t codes_bytes_, piece_bytes_, n_;
  Pages pages_;
  tensor::WeightView view_;
  size_t next_ = 0;
};

}  // namespace dsv41::bench
