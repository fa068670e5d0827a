// Sizes and offsets of every struct, as they were published (tests/abi/layout_pins.inc), against the compiler's and
// against the layout table that the library gives to bindings.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "abi/public_header.h"
#include "dsv41/dsv41.h"

namespace dsv41::test {
namespace {

#if UINTPTR_MAX == 0xffffffffffffffffu
#define DSV41_PIN_STRUCT(type, size) static_assert(sizeof(type) == size, #type);
#define DSV41_PIN_FIELD(type, field, offset, size) \
  static_assert(offsetof(type, field) == offset && sizeof(type::field) == size, #type "." #field);
#include "abi/layout_pins.inc"
#undef DSV41_PIN_STRUCT
#undef DSV41_PIN_FIELD

struct Pin {
  std::string type, field;
  uint32_t offset, size;
};
const std::vector<Pin> kPins = {
#define DSV41_PIN_STRUCT(type, size) {#type, "", 0, size},
#define DSV41_PIN_FIELD(type, field, offset, size) {#type, #field, offset, size},
#include "abi/layout_pins.inc"
#undef DSV41_PIN_STRUCT
#undef DSV41_PIN_FIELD
};
#endif

std::vector<dsv41_layout_entry> library_table() {
  const dsv41_layout_entry* entries = nullptr;
  size_t n = 0;
  REQUIRE(dsv41_layout_table(&entries, &n, nullptr) == DSV41_OK);
  return {entries, entries + n};
}

TEST_SUITE("abi/layout") {
  TEST_CASE("the layout table has every struct and field of the header, in its order") {
    std::vector<std::string> want, got;
    for (const HeaderStruct& record : PublicHeader::read().structs()) {
      if (record.name == "dsv41_api") continue;
      want.push_back(record.name + ".");
      for (const std::string& field : record.fields) want.push_back(record.name + "." + declared_name(field));
    }
    for (const dsv41_layout_entry& entry : library_table()) {
      got.push_back(std::string(entry.struct_name) + "." + entry.field_name);
    }
    CHECK(want.size() > 150);
    CHECK(want == got);
  }

  TEST_CASE("fields follow each other without overlap and fill their struct") {
    uint32_t end = 0, struct_size = 0;
    for (const dsv41_layout_entry& entry : library_table()) {
      CAPTURE(entry.struct_name);
      CAPTURE(entry.field_name);
      if (entry.field_name[0] == '\0') {
        CHECK(end <= struct_size);
        struct_size = entry.size_bytes;
        end = 0;
        continue;
      }
      // No padding: what a binding spells out field by field has the same layout in every language.
      CHECK(entry.offset_bytes == end);
      end = entry.offset_bytes + entry.size_bytes;
      CHECK(end <= struct_size);
    }
  }

#if UINTPTR_MAX == 0xffffffffffffffffu
  TEST_CASE("the layout table tells the published sizes and offsets") {
    const std::vector<dsv41_layout_entry> table = library_table();
    for (const Pin& pin : kPins) {
      CAPTURE(pin.type);
      CAPTURE(pin.field);
      const auto entry = std::ranges::find_if(
          table, [&](const dsv41_layout_entry& e) { return pin.type == e.struct_name && pin.field == e.field_name; });
      REQUIRE(entry != table.end());
      CHECK(entry->offset_bytes == pin.offset);
      CHECK(entry->size_bytes == pin.size);
    }
    CHECK(kPins.size() == table.size());
  }
#endif
}

}  // namespace
}  // namespace dsv41::test
