// libFuzzer entry: any bytes as a safetensors file end in CHECKPOINT or in tensors that tile the payload.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv41;
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  const Result<std::vector<model::StoredTensor>> tensors = model::parse_safetensors(file);
  if (!tensors.ok()) {
    if (tensors.status().code() != Code::kCHECKPOINT) std::abort();
    return 0;
  }
  uint64_t n_bytes = 0;
  for (const model::StoredTensor& tensor : tensors.value()) {
    if (tensor.data < file.data() + 8 || tensor.bytes > size) std::abort();
    if (tensor.data + tensor.bytes > file.data() + size) std::abort();
    n_bytes += tensor.bytes;
  }
  if (n_bytes > size) std::abort();
  return 0;
}
