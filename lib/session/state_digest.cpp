// Digests of a session's state: what is valid, in the order of tokens, wherever it lies in the arena.
#include <algorithm>

#include "session/session.h"

namespace dsv41::session {
namespace {

// Hashes device memory through a piece of host memory.
class DeviceHash {
 public:
  DeviceHash(const kv::SequenceKv& kv, backend::Queue& queue) : kv_(kv), pool_(kv.pool()), queue_(queue) {}

  Status add(const std::byte* device, uint64_t bytes) {
    buffer_.resize(bytes);
    DSV41_TRY(queue_.copy_to_host(buffer_.data(), device, bytes));
    DSV41_TRY(queue_.wait());
    hash_.update(buffer_);
    return Status();
  }
  template <class T>
  void add_value(T value) {
    hash_.update(std::as_bytes(std::span(&value, 1)));
  }
  void add_host(std::span<const std::byte> bytes) { hash_.update(bytes); }

  // The records of the first n_entries of a field: per page the codes, then the scales.
  Status add_field(const kv::PageField& field, int64_t n_entries) {
    for (int64_t first = 0; first < n_entries; first += field.entries) {
      const uint64_t n = static_cast<uint64_t>(std::min<int64_t>(field.entries, n_entries - first));
      const kv::PageId page = kv_.pages()[static_cast<size_t>(first / field.entries)];
      const std::byte* codes = pool_.arena() + pool_.page_offset(page) + field.offset;
      DSV41_TRY(add(codes, n * field.code_bytes));
      DSV41_TRY(add(codes + uint64_t{field.entries} * field.code_bytes, n * field.scale_bytes));
    }
    return Status();
  }
  Status add_window_rows(int64_t layer, int64_t begin, int64_t end) {
    const kv::PageGeometry& geometry = pool_.geometry();
    for (int64_t position = begin; position < end; ++position) {
      const uint64_t row = static_cast<uint64_t>(layer * geometry.window_rows() + position % geometry.window_rows());
      const uint64_t per_page = geometry.window_rows_per_page();
      const kv::PageId page = kv_.window_pages()[row / per_page];
      DSV41_TRY(add(pool_.arena() + pool_.page_offset(page) + row % per_page * geometry.window_row_bytes(),
                    geometry.window_row_bytes()));
    }
    return Status();
  }
  Sha256Digest finish() { return hash_.finish(); }

 private:
  const kv::SequenceKv& kv_;
  const kv::PagePool& pool_;
  backend::Queue& queue_;
  Sha256 hash_;
  std::vector<std::byte> buffer_;
};

}  // namespace

Result<Sha256Digest> Session::digest(uint32_t parts) const {
  if (parts & ~uint32_t{kDigestAll}) return Status(Code::kINVALID_ARG, "unknown parts of a digest");
  const kv::PageGeometry& geometry = pool_->pages().geometry();
  DSV41_TRY_ASSIGN(const std::unique_ptr<backend::Queue> queue, pool_->pages().backend().create_queue());
  DeviceHash hash(*kv_, *queue);
  hash.add_value(parts);
  hash.add_value(position_);
  if (parts & kDigestTokens) {
    const std::vector<int32_t> all = tokens();
    hash.add_host(std::as_bytes(std::span(all)));
  }
  if (parts & kDigestGlobalKv) {
    for (const kv::PageField& field : geometry.fields()) {
      const int ratio = geometry.shape().sources[static_cast<size_t>(field.source)].ratio;
      DSV41_TRY(hash.add_field(field, position_ / ratio));
    }
  }
  for (const bool decoder : {false, true}) {
    if (!(parts & (decoder ? kDigestDecoderWindows : kDigestEncoderWindows))) continue;
    const kv::WindowRows& half = decoder ? decoder_ : encoder_;
    const bool intact = covers(half, position_);
    hash.add_value(intact);
    if (!intact) continue;
    const int64_t n_encoder = pool_->shape().n_encoder_layers;
    const int64_t begin = std::max(half.floor, position_ - pool_->shape().window + 1);
    hash.add_value(begin);
    for (int64_t layer = decoder ? n_encoder : 0; layer < (decoder ? config().num_hidden_layers : n_encoder); ++layer) {
      DSV41_TRY(hash.add_window_rows(layer, begin, position_));
    }
  }
  if ((parts & kDigestOpenRows) && position_ % 2 == 1 && covers(encoder_, position_) && has_open_row(position_)) {
    const int64_t row_floats = 2 * geometry.shape().head_dim, slot = (position_ - 1) / 2 % kernels::kOpenRowSlots;
    for (size_t source = 0; source < geometry.shape().sources.size(); ++source) {
      const float* rows = kv_->open_rows(static_cast<int>(source));
      if (!rows) continue;
      DSV41_TRY(hash.add(reinterpret_cast<const std::byte*>(rows + slot * row_floats),
                         static_cast<uint64_t>(row_floats) * sizeof(float)));
    }
  }
  if (parts & kDigestLogits) {
    hash.add_value(has_logits());
    if (has_logits()) hash.add_host(std::as_bytes(std::span(*logits_)));
  }
  return hash.finish();
}

}  // namespace dsv41::session
