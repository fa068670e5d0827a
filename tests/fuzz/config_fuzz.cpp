// libFuzzer entry: any bytes as config.json end in a failure of the two checkpoint codes or in a config whose inventory
// and Engram constants can be computed.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/engram_hash.h"
#include "model/tensor_inventory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv41;
  const Result<model::ModelConfig> config = model::parse_config({reinterpret_cast<const char*>(data), size});
  if (!config.ok()) {
    const Code code = config.status().code();
    if (code != Code::kCHECKPOINT && code != Code::kCHECKPOINT_UNSUPPORTED) std::abort();
    return 0;
  }
  int64_t n_tensors = 0;
  uint64_t n_bytes = 0;
  model::for_each_expected_tensor(config.value(), [&](const model::TensorSpec& spec) {
    ++n_tensors;
    n_bytes |= spec.bytes();
  });
  if (n_tensors == 0 || n_bytes >> 60 != 0) std::abort();
  const bool summed = model::engram_constants(config.value()).ok();
  static_cast<void>(summed);
  return 0;
}
