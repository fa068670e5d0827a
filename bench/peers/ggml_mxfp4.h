// A peer in the same process: MXFP4 matrices times float rows by ggml, from libraries that are loaded when the environment names
// their folder (DSV41_GGML=FOLDER with libggml-base.so and libggml-cpu.so, as the package llama-cpp-python builds them).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace dsv41::bench {

class GgmlMatrices {
 public:
  // n_copies matrices [rows, cols] that take turns, as the type has them or repacked for several rows at a time, with n_tokens
  // rows of inputs. Null and a reason: not here.
  static std::unique_ptr<GgmlMatrices> create(int64_t rows, int64_t cols, int64_t n_tokens, int n_copies, bool repacked,
                                              std::string* why);
  virtual ~GgmlMatrices() = default;
  // All matrices once, on n_threads threads; inputs are quantised each time.
  virtual void multiply(int n_threads) = 0;
};

}  // namespace dsv41::bench
