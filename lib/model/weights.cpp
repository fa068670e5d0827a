#include "model/weights.h"

#include <array>
#include <optional>

#include "base/memory_limit.h"
#include "model/checkpoint_files.h"

namespace dsv41::model {
namespace {

using backend::HostWeight;
using tensor::WeightFormat;
using tensor::WeightView;

constexpr int64_t kExpertsPerReport = 16;

uint64_t round_up(uint64_t bytes) { return (bytes + kReadAlignment - 1) / kReadAlignment * kReadAlignment; }

// Uploads tensors by name and remembers the first failure, so that the list of names below reads as a list. Before it runs
// over that list in earnest it runs over it once to measure. Weights that are to be copied as they lie in their files are read
// past the page cache, one while the one before arrives.
class Uploader {
 public:
  Uploader(const Checkpoint& checkpoint, backend::Backend& backend, const OpenOptions& options)
      : checkpoint_(checkpoint), backend_(backend), options_(options) {}
  ~Uploader() {
    for (ReadBatch& batch : batches_) {
      if (reader_) reader_->drop(batch);
    }
  }

  WeightView f32(const std::string& name) { return upload(plain(name, WeightFormat::kF32)); }
  WeightView bf16(const std::string& name) { return upload(plain(name, WeightFormat::kBf16)); }
  WeightView bf16_matrix(const std::string& name) { return upload(matrix(plain(name, WeightFormat::kBf16))); }
  WeightView fp8(const std::string& stem) { return upload(matrix(scaled(stem, WeightFormat::kFp8Tile32))); }
  WeightView engram_rows(const std::string& stem) {
    return upload(scaled(stem, WeightFormat::kFp8Row32), options_.engram);
  }
  WeightView expert(const std::string& stem) {
    return upload(matrix(scaled(stem, WeightFormat::kFp4Row32)), options_.experts);
  }
  const Status& status() const { return status_; }

  bool measures() const { return measures_; }
  bool experts_on_disk() const { return options_.experts == Placement::kDisk; }
  uint64_t packed_bytes() const { return packed_bytes_; }
  // Of weights that are copied as they are, beside packed ones or not.
  uint64_t copied_bytes(bool packed) const { return copied_rows_bytes_ + (packed ? 0 : copied_matrix_bytes_); }
  // From here on uploads; `packed` empty: mapped.
  void start(backend::Buffer packed, backend::Buffer copies, AsyncReader* reader) {
    measures_ = false;
    next_ = packed.data();
    next_copy_ = copies.data();
    reader_ = reader;
    if (reader) files_.emplace(checkpoint_, *reader);
    if (packed) memory_.push_back(std::move(packed));
    if (copies) memory_.push_back(std::move(copies));
  }
  // What is being read is there.
  Status finish() {
    for (ReadBatch& batch : batches_) {
      if (reader_) DSV41_TRY(reader_->wait(batch, options_.cancel));
    }
    return {};
  }
  Status report(double fraction) const {
    if (measures_ || !options_.progress || options_.progress(fraction)) return {};
    return Status(Code::kCANCELLED, "opening the model was cancelled by its progress callback");
  }
  std::vector<backend::Buffer> take_memory() { return std::move(memory_); }

 private:
  struct Stored {
    HostWeight weight;
    const StoredTensor* tensors[2] = {};  // codes, scales
  };

  Stored plain(const std::string& name, WeightFormat format) {
    Stored stored;
    HostWeight& weight = stored.weight;
    weight.format = format;
    if (const StoredTensor* tensor = stored.tensors[0] = find(name)) {
      weight.cols = tensor->shape.back();
      weight.rows = tensor->shape.size() == 1 ? 1 : tensor->shape.front();
      weight.codes = tensor->data;
    }
    return stored;
  }

  Stored scaled(const std::string& stem, WeightFormat format) {
    Stored stored = plain(stem + ".weight", format);
    if (format == WeightFormat::kFp4Row32) stored.weight.cols *= 2;
    if (const StoredTensor* scale = stored.tensors[1] = find(stem + ".scale")) stored.weight.scales = scale->data;
    return stored;
  }

  static Stored matrix(Stored stored) {
    stored.weight.is_matrix = true;
    return stored;
  }

  // The checkpoint has every tensor of the inventory, so a missing one is our own bug.
  const StoredTensor* find(const std::string& name) {
    const StoredTensor* tensor = checkpoint_.find(name);
    if (!tensor && status_.ok()) status_ = Status(Code::kINTERNAL, "tensor " + name + " is not in the inventory");
    return tensor;
  }

  WeightView upload(const Stored& stored, Placement placement = Placement::kAuto) {
    if (status_.ok() && options_.cancel && options_.cancel->triggered()) {
      status_ = Status(Code::kCANCELLED, "opening the model was cancelled");
    }
    if (!status_.ok()) return {};
    if (placement == Placement::kDisk) return {stored.weight.format, stored.weight.rows, stored.weight.cols};
    const uint64_t packed_bytes = placement == Placement::kMapped ? 0 : backend_.packed_bytes(stored.weight);
    if (measures_) {
      packed_bytes_ += packed_bytes;
      if (placement == Placement::kMemory)
        (packed_bytes ? copied_matrix_bytes_ : copied_rows_bytes_) += copy_bytes(stored);
      return {};
    }
    if (next_ && packed_bytes != 0) return pack(stored, packed_bytes);
    return placement == Placement::kMemory ? copy(stored) : map(stored.weight);
  }

  // A page more for each tensor: it keeps the place inside a page that it has in its file.
  static uint64_t copy_bytes(const Stored& stored) {
    uint64_t bytes = 0;
    for (const StoredTensor* tensor : stored.tensors) bytes += tensor ? round_up(tensor->bytes) + kReadAlignment : 0;
    return bytes;
  }

  WeightView copy(const Stored& stored) {
    std::array<ReadPiece, 2> pieces;
    HostWeight weight = stored.weight;
    for (size_t i = 0; i < pieces.size(); ++i) {
      ReadPiece& piece = pieces[i];
      status_ = files_->find(stored.tensors[i]->name, &piece.file, &piece.offset);
      if (!status_.ok()) return {};
      piece.bytes = stored.tensors[i]->bytes;
      piece.to = next_copy_ + piece.offset % kReadAlignment;
      piece.in_place = true;
      next_copy_ += round_up(piece.bytes) + kReadAlignment;
      (i == 0 ? weight.codes : weight.scales) = piece.to;
    }
    ReadBatch& batch = batches_[n_copies_++ % batches_.size()];
    status_ = reader_->wait(batch, options_.cancel);
    if (!status_.ok()) return {};
    reader_->start(pieces, &batch);
    return map(weight);
  }

  WeightView pack(const Stored& stored, uint64_t bytes) {
    const WeightView view = backend_.upload_packed(stored.weight, next_);
    next_ += bytes;
    for (const StoredTensor* tensor : stored.tensors) {
      if (tensor) checkpoint_.release_pages(*tensor);
    }
    return view;
  }

  WeightView map(const HostWeight& weight) {
    Result<backend::DeviceWeight> uploaded = backend_.upload(weight);
    if (!uploaded.ok()) {
      status_ = std::move(uploaded).status();
      return {};
    }
    if (uploaded->memory) memory_.push_back(std::move(uploaded->memory));
    return uploaded->view;
  }

  const Checkpoint& checkpoint_;
  backend::Backend& backend_;
  const OpenOptions& options_;
  bool measures_ = true;
  uint64_t packed_bytes_ = 0;
  uint64_t copied_rows_bytes_ = 0, copied_matrix_bytes_ = 0;
  std::byte* next_ = nullptr;  // where the next packed matrix goes; null: mapped
  std::byte* next_copy_ = nullptr;
  AsyncReader* reader_ = nullptr;
  std::optional<CheckpointFiles> files_;
  std::array<ReadBatch, 2> batches_;
  size_t n_copies_ = 0;
  std::vector<backend::Buffer> memory_;
  Status status_;
};

MhcSite upload_site(Uploader& up, const std::string& prefix) {
  return {up.f32(prefix + "_fn"), up.f32(prefix + "_base"), up.f32(prefix + "_scale")};
}

void upload_attention(Uploader& up, const ModelConfig& config, int64_t layer, const std::string& p, LayerWeights* w) {
  w->attn_sink = up.f32(p + "attn_sink");
  w->wq_a = up.fp8(p + "wq_a");
  w->q_norm = up.bf16(p + "q_norm.weight");
  w->wq_b = up.fp8(p + "wq_b");
  w->wkv = up.fp8(p + "wkv");
  w->kv_norm = up.bf16(p + "kv_norm.weight");
  w->wo_a = up.fp8(p + "wo_a");
  w->wo_b = up.fp8(p + "wo_b");
  if (config.owns_kv(layer)) {
    w->compressor.wkv = up.bf16_matrix(p + "compressor.wkv.weight");
    if (config.compress_ratio(layer) > 1) w->compressor.wgate = up.bf16_matrix(p + "compressor.wgate.weight");
    w->compressor.norm = up.bf16(p + "compressor.norm.weight");
    w->indexer.wk = up.bf16_matrix(p + "indexer.wk.weight");
    w->indexer.k_norm = up.bf16(p + "indexer.k_norm.weight");
  }
  if (config.owns_index(layer)) {
    w->indexer.wq_b = up.fp8(p + "indexer.wq_b");
    w->indexer.weights_proj = up.bf16_matrix(p + "indexer.weights_proj.weight");
  }
}

// `report` is told the part of the experts that is done.
Status upload_experts(Uploader& up, backend::Backend& backend, int64_t n_experts, const std::string& p, LayerWeights* w,
                      const std::function<Status(double)>& report) {
  std::vector<tensor::ExpertView> experts;
  experts.reserve(static_cast<size_t>(n_experts));
  for (int64_t e = 0; e < n_experts; ++e) {
    const std::string stem = p + "experts." + std::to_string(e) + ".";
    experts.push_back({up.expert(stem + "w1"), up.expert(stem + "w2"), up.expert(stem + "w3")});
    DSV41_TRY(up.status());
    if ((e + 1) % kExpertsPerReport != 0) continue;
    DSV41_TRY(report(static_cast<double>(e + 1) / static_cast<double>(n_experts)));
  }
  if (up.measures() || up.experts_on_disk()) return {};
  const uint64_t bytes = experts.size() * sizeof(tensor::ExpertView);
  DSV41_TRY_ASSIGN(w->experts, backend.allocate(bytes, backend::MemoryUse::kWorkspace));
  DSV41_TRY_ASSIGN(std::unique_ptr<backend::Queue> queue, backend.create_queue());
  DSV41_TRY(queue->copy_to_device(w->experts.data(), experts.data(), bytes));
  return queue->wait();
}

Status upload_layer(Uploader& up, const ModelConfig& config, backend::Backend& backend, int64_t layer,
                    LayerWeights* w) {
  const std::string p = "layers." + std::to_string(layer) + ".";
  w->attn_norm = up.bf16(p + "attn_norm.weight");
  w->ffn_norm = up.bf16(p + "ffn_norm.weight");
  w->hc_attn = upload_site(up, p + "hc_attn");
  w->hc_ffn = upload_site(up, p + "hc_ffn");
  upload_attention(up, config, layer, p + "attn.", w);
  if (config.engram_index(layer) >= 0) {
    w->engram.table = up.engram_rows(p + "engram.embed");
    w->engram.wkv = up.fp8(p + "engram.wkv");
    w->engram.q_weight = up.bf16(p + "engram.q_weight");
    w->engram.k_weight = up.bf16(p + "engram.k_weight");
  }
  w->gate = up.bf16_matrix(p + "ffn.gate.weight");
  w->gate_bias = up.f32(p + "ffn.gate.bias");
  w->shared_w1 = up.fp8(p + "ffn.shared_experts.w1");
  w->shared_w2 = up.fp8(p + "ffn.shared_experts.w2");
  w->shared_w3 = up.fp8(p + "ffn.shared_experts.w3");
  return upload_experts(up, backend, config.n_routed_experts, p + "ffn.", w, [&](double part) {
    return up.report((static_cast<double>(layer) + part) / static_cast<double>(config.num_hidden_layers));
  });
}

Status upload_all(Uploader& up, const ModelConfig& config, backend::Backend& backend, Weights* weights) {
  weights->embed = up.bf16("embed.weight");
  weights->head = up.bf16_matrix("head.weight");
  weights->norm = up.bf16("norm.weight");
  weights->layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    DSV41_TRY(upload_layer(up, config, backend, layer, &weights->layers[static_cast<size_t>(layer)]));
    DSV41_TRY(up.report(static_cast<double>(layer + 1) / static_cast<double>(config.num_hidden_layers)));
  }
  return up.status();
}

}  // namespace

Result<bool> choose_packed(LayoutChoice choice, uint64_t packed_bytes, uint64_t memory_bytes) {
  if (packed_bytes == 0 || choice == LayoutChoice::kMapped) return false;
  if (choice == LayoutChoice::kAuto) return packed_bytes <= memory_bytes / 2;
  if (memory_bytes == 0 || packed_bytes <= memory_bytes) return true;
  return Status(Code::kNO_MEMORY, "packed weights take " + std::to_string(packed_bytes) + " bytes, the machine has " +
                                      std::to_string(memory_bytes) + ": use mapped weights");
}

namespace {

Status check_placements(const backend::Backend& backend, const OpenOptions& options) {
  for (const Placement placement : {options.experts, options.engram}) {
    if ((placement == Placement::kMemory || placement == Placement::kDisk) && !backend.can_stream_weights()) {
      return Status(Code::kUNSUPPORTED,
                    std::string("backend ") + backend.name() + " only maps experts and Engram tables");
    }
  }
  return {};
}

Result<backend::Buffer> allocate(backend::Backend& backend, uint64_t bytes, const char* what) {
  if (bytes == 0) return backend::Buffer();
  Result<backend::Buffer> allocated = backend.allocate(bytes, backend::MemoryUse::kWeights);
  if (!allocated.ok()) return std::move(allocated).status().with_context(what);
  return allocated;
}

}  // namespace

Result<Weights> upload_weights(const Checkpoint& checkpoint, backend::Backend& backend, const OpenOptions& options) {
  DSV41_TRY(check_placements(backend, options));
  Weights weights;
  std::unique_ptr<AsyncReader> reader;
  Uploader up(checkpoint, backend, options);
  DSV41_TRY(upload_all(up, checkpoint.config(), backend, &weights));
  const uint64_t memory_bytes = options.memory_bytes ? options.memory_bytes : usable_memory_bytes();
  DSV41_TRY_ASSIGN(const bool packed, choose_packed(options.layout, up.packed_bytes(), memory_bytes));
  weights.packed_bytes = packed ? up.packed_bytes() : 0;
  weights.copied_bytes = up.copied_bytes(packed);
  if (weights.copied_bytes && memory_bytes && weights.copied_bytes > memory_bytes - weights.packed_bytes) {
    return Status(Code::kNO_MEMORY, "weights take " + std::to_string(weights.packed_bytes + weights.copied_bytes) +
                                        " bytes of memory, the machine has " + std::to_string(memory_bytes) +
                                        ": leave experts or Engram tables mapped or on disk");
  }
  DSV41_TRY_ASSIGN(backend::Buffer memory, allocate(backend, weights.packed_bytes, "packed weights"));
  DSV41_TRY_ASSIGN(backend::Buffer copies, allocate(backend, weights.copied_bytes, "copies of weights"));
  if (copies) {
    DSV41_TRY_ASSIGN(reader, AsyncReader::create(options.reader));
  }
  up.start(std::move(memory), std::move(copies), reader.get());
  DSV41_TRY(upload_all(up, checkpoint.config(), backend, &weights));
  DSV41_TRY(up.finish());
  weights.memory = up.take_memory();
  return weights;
}

}  // namespace dsv41::model
