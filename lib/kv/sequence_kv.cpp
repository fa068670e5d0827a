#include "kv/sequence_kv.h"

#include <algorithm>

namespace dsv41::kv {
namespace {

int64_t pages_for(int64_t n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace

Result<std::unique_ptr<SequenceKv>> SequenceKv::create(PagePool& pool, int64_t max_tokens, backend::Queue& queue) {
  std::unique_ptr<SequenceKv> kv(new SequenceKv(pool));
  const PageGeometry& geometry = pool.geometry();
  const size_t max_pages = static_cast<size_t>(std::max<int64_t>(1, pages_for(max_tokens)));
  kv->offsets_.assign(max_pages, 0);
  kv->pages_.reserve(max_pages);
  DSV41_TRY_ASSIGN(kv->table_, pool.backend().allocate(max_pages * sizeof(uint64_t), backend::MemoryUse::kWorkspace));
  const size_t n_window_pages = static_cast<size_t>(geometry.pages_per_window_slot());
  DSV41_TRY_ASSIGN(kv->window_table_,
                   pool.backend().allocate(n_window_pages * sizeof(uint64_t), backend::MemoryUse::kWorkspace));
  int n_open = 0;
  for (const KvSource& source : geometry.shape().sources) kv->open_slot_.push_back(source.ratio == 2 ? n_open++ : -1);
  const uint64_t row_floats = kernels::kOpenRowSlots * 2 * static_cast<uint64_t>(geometry.shape().head_dim);
  DSV41_TRY_ASSIGN(kv->open_rows_, pool.backend().allocate(static_cast<uint64_t>(n_open) * row_floats * sizeof(float),
                                                           backend::MemoryUse::kWorkspace));
  kv->window_pages_.reserve(n_window_pages);
  kv->window_offsets_.reserve(n_window_pages);
  DSV41_TRY(pool.take_window_slot(&kv->window_pages_));
  for (PageId page : kv->window_pages_) kv->window_offsets_.push_back(pool.page_offset(page));
  DSV41_TRY(
      queue.copy_to_device(kv->window_table_.data(), kv->window_offsets_.data(), n_window_pages * sizeof(uint64_t)));
  return kv;
}

SequenceKv::~SequenceKv() {
  pool_.give_back(pages_);
  pool_.give_back(window_pages_);
}

Status SequenceKv::reserve_tokens(int64_t n_tokens, backend::Queue& queue) {
  const size_t have = pages_.size(), want = static_cast<size_t>(pages_for(n_tokens));
  if (want <= have) return Status();
  if (want > offsets_.size()) return Status(Code::kCONTEXT_FULL, "more tokens than the session's limit");
  DSV41_TRY(pool_.take_global_pages(want - have, &pages_));
  for (size_t i = have; i < want; ++i) offsets_[i] = pool_.page_offset(pages_[i]);
  Status copied =
      queue.copy_to_device(table_.as<uint64_t>() + have, offsets_.data() + have, (want - have) * sizeof(uint64_t));
  if (!copied.ok()) release_beyond(static_cast<int64_t>(have) * kPageTokens);
  return copied;
}

void SequenceKv::release_beyond(int64_t n_tokens) {
  const size_t keep = static_cast<size_t>(pages_for(n_tokens));
  if (keep >= pages_.size()) return;
  pool_.give_back(std::span(pages_).subspan(keep));
  pages_.resize(keep);
}

tensor::PagedField SequenceKv::main(int source) const {
  const PageGeometry& geometry = pool_.geometry();
  return geometry.view(geometry.main_field(source), pool_.arena(), table_.as<const uint64_t>());
}

tensor::PagedField SequenceKv::index(int source) const {
  const PageGeometry& geometry = pool_.geometry();
  return geometry.view(geometry.index_field(source), pool_.arena(), table_.as<const uint64_t>());
}

tensor::WindowRing SequenceKv::ring(int64_t layer) const {
  return pool_.geometry().ring(layer, pool_.arena(), window_table_.as<const uint64_t>());
}

float* SequenceKv::open_rows(int source) const {
  const int slot = open_slot_[static_cast<size_t>(source)];
  if (slot < 0) return nullptr;
  return open_rows_.as<float>() + slot * kernels::kOpenRowSlots * 2 * pool_.geometry().shape().head_dim;
}

}  // namespace dsv41::kv
