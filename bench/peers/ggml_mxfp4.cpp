// The few functions of ggml's C interface that a product takes, by name; the structs and constants are those of ggml.h of the
// version that llama-cpp-python 0.3.36 has (ggml 0.25).
#include "peers/ggml_mxfp4.h"

#include <dlfcn.h>

#include <cstdlib>
#include <random>
#include <vector>

namespace dsv41::bench {
namespace {

struct Context;
struct Tensor;
struct Graph;
struct Engine;
struct BufferType;
struct MemoryBuffer;

struct InitParams {
  size_t mem_size;
  void* mem_buffer;
  bool no_alloc;
};
constexpr int kF32 = 0, kMxfp4 = 39;

struct Api {
  void (*cpu_init)();
  Engine* (*engine_init)();
  void (*engine_free)(Engine*);
  void (*set_n_threads)(Engine*, int);
  int (*compute)(Engine*, Graph*);
  BufferType* (*plain_buffers)();
  BufferType* (*repacked_buffers)();
  MemoryBuffer* (*allocate_tensors)(Context*, BufferType*);
  void (*free_buffer)(MemoryBuffer*);
  Context* (*init)(InitParams);
  void (*free_context)(Context*);
  Tensor* (*new_tensor_2d)(Context*, int, int64_t, int64_t);
  Tensor* (*mul_mat)(Context*, Tensor*, Tensor*);
  Graph* (*new_graph)(Context*);
  void (*expand)(Graph*, Tensor*);
  void (*set)(Tensor*, const void*, size_t, size_t);
  size_t (*n_bytes)(const Tensor*);
};

template <class F>
bool find(void* library, const char* name, F* to) {
  *to = reinterpret_cast<F>(dlsym(library, name));
  return *to != nullptr;
}

// Null and a reason: the libraries are not there.
const Api* load(std::string* why) {
  static std::string error;
  static const Api* const loaded = []() -> const Api* {
    static Api api;
    const char* const folder = std::getenv("DSV41_GGML");
    if (!folder) {
      error = "no DSV41_GGML";
      return nullptr;
    }
    const auto open = [&](const char* name) {
      return dlopen((std::string(folder) + "/" + name).c_str(), RTLD_NOW | RTLD_GLOBAL);
    };
    void* const base = open("libggml-base.so");
    void* const cpu = base ? open("libggml-cpu.so") : nullptr;
    if (!cpu) {
      error = dlerror();
      return nullptr;
    }
    const bool complete =
        find(cpu, "ggml_cpu_init", &api.cpu_init) && find(cpu, "ggml_backend_cpu_init", &api.engine_init) &&
        find(base, "ggml_backend_free", &api.engine_free) &&
        find(cpu, "ggml_backend_cpu_set_n_threads", &api.set_n_threads) &&
        find(base, "ggml_backend_graph_compute", &api.compute) &&
        find(base, "ggml_backend_cpu_buffer_type", &api.plain_buffers) &&
        find(cpu, "_Z35ggml_backend_cpu_repack_buffer_typev", &api.repacked_buffers) &&
        find(base, "ggml_backend_alloc_ctx_tensors_from_buft", &api.allocate_tensors) &&
        find(base, "ggml_backend_buffer_free", &api.free_buffer) && find(base, "ggml_init", &api.init) &&
        find(base, "ggml_free", &api.free_context) && find(base, "ggml_new_tensor_2d", &api.new_tensor_2d) &&
        find(base, "ggml_mul_mat", &api.mul_mat) && find(base, "ggml_new_graph", &api.new_graph) &&
        find(base, "ggml_build_forward_expand", &api.expand) && find(base, "ggml_backend_tensor_set", &api.set) &&
        find(base, "ggml_nbytes", &api.n_bytes);
    if (!complete) {
      error = "its version lacks a function";
      return nullptr;
    }
    api.cpu_init();
    return &api;
  }();
  *why = error;
  return loaded;
}

class Matrices final : public GgmlMatrices {
 public:
  explicit Matrices(const Api& api) : api_(api), engine_(api.engine_init()) {}
  ~Matrices() override {
    for (MemoryBuffer* buffer : {weights_memory_, values_memory_}) {
      if (buffer) api_.free_buffer(buffer);
    }
    for (Context* context : {weights_, values_}) {
      if (context) api_.free_context(context);
    }
    if (engine_) api_.engine_free(engine_);
  }

  bool build(int64_t rows, int64_t cols, int64_t n_tokens, int n_copies, bool repacked) {
    constexpr size_t kBookkeeping = size_t{8} << 20;
    weights_ = api_.init({kBookkeeping, nullptr, true});
    values_ = api_.init({kBookkeeping, nullptr, true});
    if (!engine_ || !weights_ || !values_) return false;
    std::vector<Tensor*> matrices;
    for (int i = 0; i < n_copies; ++i) matrices.push_back(api_.new_tensor_2d(weights_, kMxfp4, cols, rows));
    Tensor* const x = api_.new_tensor_2d(values_, kF32, cols, n_tokens);
    graph_ = api_.new_graph(values_);
    // The buffers of weights come first: a product looks at them to choose its kernel.
    weights_memory_ = api_.allocate_tensors(weights_, repacked ? api_.repacked_buffers() : api_.plain_buffers());
    if (!weights_memory_) return false;
    for (Tensor* matrix : matrices) api_.expand(graph_, api_.mul_mat(values_, matrix, x));
    values_memory_ = api_.allocate_tensors(values_, api_.plain_buffers());
    if (!values_memory_) return false;
    fill(matrices, x, cols * n_tokens);
    return true;
  }

  void multiply(int n_threads) override {
    api_.set_n_threads(engine_, n_threads);
    static_cast<void>(api_.compute(engine_, graph_));
  }

 private:
  // Blocks of 32 values: a scale near 1/16, then 16 bytes of codes.
  void fill(const std::vector<Tensor*>& matrices, Tensor* x, int64_t n_values) {
    std::mt19937_64 random(1);
    std::vector<uint8_t> blocks(static_cast<size_t>(api_.n_bytes(matrices[0])));
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i] = static_cast<uint8_t>(i % 17 == 0 ? 120 + random() % 6 : random());
    }
    for (Tensor* matrix : matrices) api_.set(matrix, blocks.data(), 0, blocks.size());
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(n_values));
    for (float& value : values) value = normal(random);
    api_.set(x, values.data(), 0, values.size() * sizeof(float));
  }

  const Api& api_;
  Engine* engine_;
  Context *weights_ = nullptr, *values_ = nullptr;
  MemoryBuffer *weights_memory_ = nullptr, *values_memory_ = nullptr;
  Graph* graph_ = nullptr;
};

}  // namespace

std::unique_ptr<GgmlMatrices> GgmlMatrices::create(int64_t rows, int64_t cols, int64_t n_tokens, int n_copies,
                                                   bool repacked, std::string* why) {
  const Api* const api = load(why);
  if (!api) return nullptr;
  auto matrices = std::make_unique<Matrices>(*api);
  if (matrices->build(rows, cols, n_tokens, n_copies, repacked)) return matrices;
  *why = "no memory, or no such form";
  return nullptr;
}

}  // namespace dsv41::bench
