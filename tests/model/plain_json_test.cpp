#include "model/plain_json.h"

#include <doctest/doctest.h>

#include <string>

#include "model/safetensors.h"
#include "model/shard_writer.h"

namespace dsv41::test {
namespace {

using model::PlainJson;
using model::StoredTensor;

std::string shown(const Result<std::vector<StoredTensor>>& parsed) {
  if (!parsed.ok()) return std::string(parsed.status().message());
  std::string text;
  for (const StoredTensor& tensor : parsed.value()) {
    text += tensor.name + ": " + describe(tensor.dtype, tensor.shape) + " = " +
            std::string(reinterpret_cast<const char*>(tensor.data), tensor.bytes) + "; ";
  }
  return text;
}

TEST_SUITE("model/plain_json") {
  TEST_CASE("a string is plain when it holds printable ASCII and no escape") {
    const std::pair<std::string, bool> rows[] = {
        {R"("")", true},        {R"("a b~")", true},     {R"( "a")", true},   {R"("a\n")", false},
        {R"("\u0061")", false}, {"\"\xc3\xa9\"", false}, {"\"\x7f\"", false}, {"\"a\tb\"", false},
        {R"("a)", false},       {R"(a")", false},        {"", false},         {std::string("\"\0\"", 3), false},
    };
    for (const auto& [text, plain] : rows) {
      CAPTURE(text);
      std::string_view out;
      CHECK(PlainJson(text).take_string(&out) == plain);
    }
    std::string_view out;
    PlainJson in(R"( "key" : "value" )");
    CHECK(in.take_key("key"));
    CHECK(in.take_string(&out));
    CHECK(out == "value");
    CHECK(in.at_end());
  }

  TEST_CASE("a size is plain when it has at most 18 digits and no zero in front") {
    const std::pair<const char*, bool> rows[] = {{"0", true},
                                                 {" 7", true},
                                                 {"999999999999999999", true},
                                                 {"1000000000000000000", false},
                                                 {"99999999999999999999999999", false},
                                                 {"00", false},
                                                 {"01", false},
                                                 {"-1", false},
                                                 {"+1", false},
                                                 {"", false},
                                                 {"x", false}};
    for (const auto& [text, plain] : rows) {
      CAPTURE(text);
      uint64_t out = 0;
      CHECK(PlainJson(text).take_size(&out) == plain);
      if (plain) CHECK(out == std::stoull(text));
    }
    uint64_t out = 0;
    for (const char* text : {"1.5", "1e3", "1 2"}) {
      PlainJson in(text);
      CHECK(in.take_size(&out));
      CHECK_FALSE(in.at_end());
    }
  }

  TEST_CASE("a list ends with its bracket, not with a comma") {
    const std::pair<const char*, bool> rows[] = {
        {"[]", true},  {"[ ]", true},    {"[1]", true},    {"[ 1 , 2 ]", true}, {"[1,]", false}, {"[,1]", false},
        {"[1", false}, {"[1 2]", false}, {"[1,2}", false}, {"[1,,2]", false},   {"[", false},    {"", false}};
    for (const auto& [text, plain] : rows) {
      CAPTURE(text);
      PlainJson in(text);
      uint64_t out = 0;
      CHECK(in.take_list('[', ']', [&] { return in.take_size(&out); }) == plain);
    }
  }

  TEST_CASE("a header gives the same tensors, or the same complaint, in whatever form it is written") {
    const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
    const std::string wanted = "a: F32 [1] = 0123; b: BF16 [3, 1] = 456789; ";
    const std::pair<std::string, std::string> rows[] = {
        {"{" + a + R"(,"b":{"dtype":"BF16","shape":[3,1],"data_offsets":[4,10]}})", wanted},
        {"{ " + a + "\n, \"b\" : {\"dtype\" : \"BF16\" ,\"shape\":[ 3, 1 ],\"data_offsets\" :[ 4 ,10] } } \r\n",
         wanted},
        {"{" + a + R"(,"b":{"shape":[3,1],"dtype":"BF16","data_offsets":[4,10]}})", wanted},
        {"{" + a + R"(,"\u0062":{"dtype":"BF16","shape":[3,1],"data_offsets":[4,10]}})", wanted},
        {"{" + a + R"(,"b":{"dtype":"BF16","shape":[3,1],"data_offsets":[4,10]},"__metadata__":{}})", wanted},
        {R"({"__metadata__":{"x":"1","y":"2"},)" + a + R"(,"b":{"dtype":"BF16","shape":[3,1],"data_offsets":[4,10]}})",
         wanted},
        {"{" + a + R"(,"b":{"dtype":"BF16","shape":[3,1],"data_offsets":[4,11]}})",
         "tensor \"b\": ends at byte 11 of a payload of 10: the file is truncated"},
        {"{" + a + R"(,"b":{"shape":[3,1],"dtype":"BF16","data_offsets":[4,11]}})",
         "tensor \"b\": ends at byte 11 of a payload of 10: the file is truncated"},
        {"{" + a + "," + a + "}", R"(header: JSON duplicate key "a")"},
        {R"({"__metadata__":{"x":"1"},"__metadata__":{"x":"1"},)" + a + "}",
         R"(header: JSON duplicate key "__metadata__")"},
        {R"({"__metadata__":{"x":1},)" + a + "}", "__metadata__ is not an object of strings"},
    };
    for (const auto& [header, outcome] : rows) {
      CAPTURE(header);
      const std::string file = shard_bytes(header, "0123456789");
      CHECK(shown(parse_bytes(file)) == outcome);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
