// The device seam: buffers, queues and the op table. A backend implements this file; its comments are the
// specification.
//
// Device pointers are opaque to callers: they may be offset, and passed to ops and copies of the same backend, never
// read or written by the host. Weights go through upload(), so their layout in memory is the backend's. A step of the
// model is a list of ops on one queue, in order; no op reads host memory, except that ops copy their args struct before
// they return. Small tables (positions, page tables, sequence structs) are copied to the device first.
//
// Threads: Backend functions may be called from any thread. A Queue belongs to one thread at a time. Different queues
// may run at once. To write a backend: a folder under lib/backend, one class each of Backend and Queue, a line in
// registry.cpp, the shared op tests. An op that a backend does not have answers UNSUPPORTED; nothing moves to another
// backend in silence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "kernels/attention/compressor_pool.h"
#include "kernels/attention/index_scores.h"
#include "kernels/attention/rope.h"
#include "kernels/attention/select_entries.h"
#include "kernels/attention/sparse_attention.h"
#include "kernels/engram/engram_gate.h"
#include "kernels/engram/engram_gather.h"
#include "kernels/gemm/linear.h"
#include "kernels/mhc/embed_streams.h"
#include "kernels/mhc/mhc_coefficients.h"
#include "kernels/mhc/mhc_collapse.h"
#include "kernels/mhc/mhc_combine.h"
#include "kernels/moe/experts.h"
#include "kernels/moe/gate_select.h"
#include "kernels/moe/moe_combine.h"
#include "kernels/moe/swiglu.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/quant/act_quant.h"
#include "kernels/quant/fp4_quant.h"
#include "kernels/quant/store_records.h"
#include "tensor/weight_view.h"

namespace dsv41::backend {

// A weight as it lies in host memory (usually a mapped checkpoint), in the file's number format.
struct HostWeight {
  tensor::WeightFormat format = tensor::WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;  // null for kF32 and kBf16
  bool is_matrix = false;             // only linear and experts read it: it may be packed
};

enum class MemoryUse : uint8_t {
  kWorkspace,  // scratch and small tables: from the host's allocator on CPUs
  kArena,      // large, committed when first touched, 2 MiB aligned: KV pages
  kWeights,    // the same on large pages of the system where it has them: packed weights
};

class Backend;

// Owner of device memory. Move-only; frees on destruction. `data()` is a device pointer, aligned to at least 64 bytes.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<Backend> backend, void* data, uint64_t bytes, MemoryUse use)
      : backend_(std::move(backend)), data_(data), bytes_(bytes), use_(use) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { release(); }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void release();
  std::shared_ptr<Backend> backend_;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
  MemoryUse use_ = MemoryUse::kWorkspace;
};

// A weight on the device. `memory` owns it, or is empty where the backend uses the host's bytes as they are (mapped).
struct DeviceWeight {
  tensor::WeightView view;
  Buffer memory;
};

// An ordered list of work. Calls may return before the work is done; wait() returns when all of it is, with the first
// failure.
class Queue {
 public:
  virtual ~Queue() = default;
  // The host memory must stay valid until wait().
  virtual Status copy_to_device(void* device, const void* host, uint64_t bytes) = 0;
  virtual Status copy_to_host(void* host, const void* device, uint64_t bytes) = 0;
  virtual Status copy(void* to_device, const void* from_device, uint64_t bytes) = 0;  // regions do not overlap
  virtual Status wait() = 0;

  // The op table: one function an op.
#define DSV41_OP(name, Args) virtual Status name(const kernels::Args& args) = 0;
#include "kernels/op_list.inc"
#undef DSV41_OP
};

class Backend : public std::enable_shared_from_this<Backend> {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;  // "cpu", "ref"
  // Backend, target and version of the order of sums: results with equal classes are bit-identical ("cpu/avx512/1").
  virtual const std::string& numeric_class() const = 0;
  virtual int n_threads() const = 0;
  // Device memory is host memory, upload() takes bytes where they lie, and a step's experts may run in parts: weights can be
  // served from disk while a step runs.
  virtual bool can_stream_weights() const { return false; }

  // NO_DEVICE_MEMORY (NO_MEMORY on CPUs) when it cannot. Contents are undefined; arenas start as zeros.
  virtual Result<Buffer> allocate(uint64_t bytes, MemoryUse use) = 0;
  // Takes a weight over. The host memory must stay valid as long as the result (the model keeps its checkpoint mapped).
  virtual Result<DeviceWeight> upload(const HostWeight& weight) = 0;
  // Bytes of a packed copy, a multiple of 64; 0: this backend has no other layout for the weight than upload()'s.
  virtual uint64_t packed_bytes(const HostWeight& weight) const = 0;
  // As upload(), with a copy in the order in which products read it in [to, to + packed_bytes) of a buffer, 64-byte aligned;
  // the same results, bit for bit. packed_bytes is not 0. The host memory may go when this returns. Not while another call
  // packs.
  virtual tensor::WeightView upload_packed(const HostWeight& weight, std::byte* to) = 0;
  virtual Result<std::unique_ptr<Queue>> create_queue() = 0;
  // The contents of [data, data + bytes), inside an arena, are not needed any more: the memory may go back to the system
  // as far as its pages lie inside. What is read there later is undefined until it is written. A hint.
  virtual void discard(void* data, uint64_t bytes) = 0;

 protected:
  friend class Buffer;
  virtual void free(void* data, uint64_t bytes, MemoryUse use) = 0;
};

}  // namespace dsv41::backend
