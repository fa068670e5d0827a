// What the tensors of a sparse checkpoint hold: random numbers that keep activations near one, so that a forward pass
// through random layers stays finite.
//
// All values of a tensor come from one rule over 64-bit words, in lanes of the tensor's element:
//
//   word i = (mix(seed of the tensor, i) AND keep) + add
//
// `keep` leaves the sign, the low bits of the exponent and the mantissa random, `add` sets the smallest exponent; no
// sum carries into the next lane. So four neighbouring powers of two are equally likely, and the root mean square is
// 7.04 times the smallest: a matrix gets the one that comes nearest to 1 / sqrt(its inputs). A word depends on seed,
// name and place alone, so nothing is repeated, and a gigabyte takes half a second beside the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "model/tensor_inventory.h"

namespace dsv41::test {

struct ValuePattern {
  uint64_t keep = 0;
  uint64_t add = 0;
};

// The rule of a tensor by its name, dtype and shape. None for a gate's bias, which is no random matter, and for a dtype
// that the model does not store.
std::optional<ValuePattern> value_pattern(const model::TensorSpec& spec);

uint64_t seed_of_tensor(uint64_t seed, const std::string& name);

// The bytes of a tensor from `first` on, a multiple of 8.
void fill_values(const ValuePattern& pattern, uint64_t tensor_seed, uint64_t first, std::span<std::byte> out);

}  // namespace dsv41::test
