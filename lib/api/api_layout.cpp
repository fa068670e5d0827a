// The layout table that bindings compare with their own structs at start, and the sizes that must never change by
// accident.
#include <cstddef>

#include "api/call.h"
#include "api/structs.h"

namespace dsv41::api {
namespace {

constexpr dsv41_layout_entry kEntries[] = {
#define DSV41_STRUCT(type) {#type, "", 0, static_cast<uint32_t>(sizeof(type))},
#define DSV41_FIELD(type, field) \
  {#type, #field, static_cast<uint32_t>(offsetof(type, field)), static_cast<uint32_t>(sizeof(type::field))},
#include "api/struct_fields.inc"
#undef DSV41_STRUCT
#undef DSV41_FIELD
};

}  // namespace
}  // namespace dsv41::api

extern "C" dsv41_status dsv41_layout_table(const dsv41_layout_entry** out, size_t* n, dsv41_error* error) {
  using namespace dsv41;
  using namespace dsv41::api;
  return run_call("dsv41_layout_table", error, [&]() -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    DSV41_TRY(check_pointer(n, "n"));
    *out = kEntries;
    *n = std::size(kEntries);
    return {};
  });
}
