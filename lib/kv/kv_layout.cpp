#include "kv/kv_layout.h"

#include <algorithm>
#include <string>

#include "backend/backend.h"
#include "base/checked.h"

namespace dsv41::kv {
namespace {

// Adds a field of one more layer to the list: to the field of the same kind and ratio, if there is one.
void add_layer(const LayoutField& field, std::vector<LayoutField>* fields) {
  const auto same = std::find_if(fields->begin(), fields->end(), [&](const LayoutField& other) {
    return other.kind == field.kind && other.ratio == field.ratio;
  });
  if (same == fields->end()) return fields->push_back(field);
  same->n_layers += field.n_layers;
  same->stored_bytes += field.stored_bytes;
}

// The bytes from the start of each field to the start of the next one.
std::vector<LayoutField> page_fields(const PageGeometry& geometry) {
  std::vector<LayoutField> list;
  const std::vector<PageField>& fields = geometry.fields();
  for (size_t i = 0; i < fields.size(); ++i) {
    const uint64_t end = i + 1 < fields.size() ? fields[i + 1].offset : geometry.page_bytes();
    LayoutField field;
    field.kind = fields[i].is_index ? FieldKind::kIndex : FieldKind::kMain;
    field.ratio = geometry.shape().sources[static_cast<size_t>(fields[i].source)].ratio;
    field.n_layers = 1;
    field.entries = fields[i].entries;
    field.entry_bytes = uint64_t{fields[i].code_bytes} + fields[i].scale_bytes;
    field.stored_bytes = end - fields[i].offset;
    add_layer(field, &list);
  }
  return list;
}

LayoutField window_field(const PageGeometry& geometry, FieldKind kind, int64_t n_layers, uint64_t n_pages) {
  LayoutField field;
  field.kind = kind;
  field.n_layers = static_cast<uint64_t>(n_layers);
  field.entries = static_cast<uint64_t>(geometry.window_rows());
  field.entry_bytes = geometry.window_row_bytes();
  field.stored_bytes = n_pages * geometry.page_bytes();
  return field;
}

bool add_product(uint64_t a, uint64_t b, uint64_t* sum) {
  uint64_t product = 0;
  return checked_mul(a, b, &product) && checked_add(*sum, product, sum);
}

// Everything but the total; false when a number passes 2^64.
bool multiply_out(const KvLayout& layout, uint64_t n_sessions, uint64_t n_tokens, KvPlan* plan) {
  plan->pages_per_session = n_tokens / layout.page_tokens + (n_tokens % layout.page_tokens != 0);
  uint64_t payload = 0;  // of one session
  for (const LayoutField& field : layout.page_fields) {
    const uint64_t entries = n_tokens / static_cast<uint64_t>(field.ratio);
    if (!add_product(entries, field.n_layers * field.entry_bytes, &payload)) return false;
  }
  uint64_t n_pages = 0;
  if (!checked_mul(plan->pages_per_session, n_sessions, &n_pages)) return false;
  const auto slots = [&](FieldKind kind, uint64_t* sum) {
    return add_product(layout.slot_stored_bytes(kind), n_sessions, sum);
  };
  return checked_mul(payload, n_sessions, &plan->token_payload_bytes) &&
         checked_mul(n_pages, layout.page_bytes, &plan->token_page_bytes) &&
         slots(FieldKind::kWindow, &plan->window_bytes) && slots(FieldKind::kDraftWindow, &plan->draft_window_bytes) &&
         slots(FieldKind::kState, &plan->state_bytes) && slots(FieldKind::kIndexState, &plan->state_bytes);
}

}  // namespace

uint64_t KvLayout::page_payload_bytes() const {
  uint64_t sum = 0;
  for (const LayoutField& field : page_fields) sum += field.payload_bytes();
  return sum;
}

double KvLayout::bytes_per_token() const {
  return static_cast<double>(page_payload_bytes()) / static_cast<double>(page_tokens);
}

double KvLayout::padding_share() const {
  return static_cast<double>(page_bytes - page_payload_bytes()) / static_cast<double>(page_bytes);
}

uint64_t KvLayout::slot_payload_bytes(FieldKind kind) const {
  uint64_t sum = 0;
  for (const LayoutField& field : slot_fields) sum += field.kind == kind ? field.payload_bytes() : 0;
  return sum;
}

uint64_t KvLayout::slot_stored_bytes(FieldKind kind) const {
  uint64_t sum = 0;
  for (const LayoutField& field : slot_fields) sum += field.kind == kind ? field.stored_bytes : 0;
  return sum;
}

uint64_t KvLayout::slot_bytes() const {
  uint64_t sum = 0;
  for (const LayoutField& field : slot_fields) sum += field.stored_bytes;
  return sum;
}

Result<KvLayout> layout_of(const KvShape& shape, int64_t n_draft_layers) {
  DSV41_TRY_ASSIGN(const PageGeometry geometry, PageGeometry::compute(shape));
  KvLayout layout;
  layout.page_tokens = kPageTokens;
  layout.page_bytes = geometry.page_bytes();
  layout.page_fields = page_fields(geometry);
  layout.window_page_bytes = geometry.page_bytes();
  layout.window_pages_per_session = static_cast<uint64_t>(geometry.pages_per_window_slot());

  // The rings of all layers lie behind each other, so drafts take the pages that the slot has beyond the others' need.
  KvShape main = shape;
  main.n_window_layers -= n_draft_layers;
  DSV41_TRY_ASSIGN(const PageGeometry without_drafts, PageGeometry::compute(main));
  const uint64_t n_main_pages = static_cast<uint64_t>(without_drafts.pages_per_window_slot());
  layout.slot_fields.push_back(window_field(geometry, FieldKind::kWindow, main.n_window_layers, n_main_pages));
  if (n_draft_layers > 0) {
    layout.slot_fields.push_back(window_field(geometry, FieldKind::kDraftWindow, n_draft_layers,
                                              layout.window_pages_per_session - n_main_pages));
  }

  // A source of ratio 1 has no open rows: each token completes a record.
  for (const KvSource& source : shape.sources) {
    if (source.ratio == 1) continue;
    LayoutField open;
    open.kind = FieldKind::kState;
    open.ratio = source.ratio;
    open.n_layers = 1;
    open.entries = static_cast<uint64_t>(kernels::kOpenRowSlots);
    open.entry_bytes = 2 * static_cast<uint64_t>(shape.head_dim) * sizeof(float);  // key-value and score
    open.stored_bytes = open.payload_bytes();
    add_layer(open, &layout.slot_fields);
  }
  return layout;
}

Result<KvPlan> plan_sessions(const KvLayout& layout, uint64_t n_sessions, uint64_t n_tokens) {
  KvPlan plan;
  uint64_t total = 0;
  if (!multiply_out(layout, n_sessions, n_tokens, &plan) || !checked_add(total, plan.token_page_bytes, &total) ||
      !checked_add(total, plan.window_bytes, &total) || !checked_add(total, plan.draft_window_bytes, &total) ||
      !checked_add(total, plan.state_bytes, &total)) {
    return Status(Code::kLIMIT, std::to_string(n_sessions) + " sessions of " + std::to_string(n_tokens) +
                                    " tokens take more than 2^64 bytes");
  }
  plan.total_bytes = total;
  return plan;
}

}  // namespace dsv41::kv
