#include "base/status.h"

namespace dsv41 {
namespace {

struct Entry {
  int32_t number;
  const char* name;
  const char* text;
};

constexpr Entry kEntries[] = {
#define DSV41_CODE(name, number, text) {number, #name, text},
#include "base/status_codes.inc"
#undef DSV41_CODE
};

const Entry* find(Code code) {
  for (const Entry& entry : kEntries) {
    if (entry.number == static_cast<int32_t>(code)) return &entry;
  }
  return nullptr;
}

}  // namespace

const char* code_name(Code code) {
  const Entry* entry = find(code);
  return entry ? entry->name : "UNKNOWN";
}

const char* code_text(Code code) {
  const Entry* entry = find(code);
  return entry ? entry->text : "unknown status code";
}

}  // namespace dsv41
