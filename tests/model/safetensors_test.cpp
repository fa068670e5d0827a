#include "model/safetensors.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "model/shard_writer.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using model::Dtype;
using model::StoredTensor;

// Two tensors of 4 and 6 bytes.
const std::string kHeader = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                            R"("b":{"dtype":"BF16","shape":[3,1],"data_offsets":[4,10]}})";
const std::string kPayload = "0123456789";

std::string text_of(const StoredTensor& tensor) { return {reinterpret_cast<const char*>(tensor.data), tensor.bytes}; }

// A header with one tensor "t" whose description is `json`, over a payload of 16 bytes.
Status status_of(const std::string& json) {
  return parse_bytes(shard_bytes("{\"t\":" + json + "}", std::string(16, 'x'))).status();
}

TEST_SUITE("model/safetensors") {
  TEST_CASE("tensors come out in payload order with dtype, shape and bytes") {
    const std::string file = shard_bytes(kHeader + "   ", kPayload);
    const Result<std::vector<StoredTensor>> parsed = parse_bytes(file);
    REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
    REQUIRE(parsed->size() == 2);
    const StoredTensor& a = parsed.value()[0];
    const StoredTensor& b = parsed.value()[1];
    CHECK(a.name == "a");
    CHECK(describe(a.dtype, a.shape) == "F32 [1]");
    CHECK(text_of(a) == "0123");
    CHECK(describe(b.dtype, b.shape) == "BF16 [3, 1]");
    CHECK(text_of(b) == "456789");
  }

  TEST_CASE("scalars, empty tensors and files without tensors are fine") {
    const std::string file = shard_bytes({{"scalar", "I64", {}, "12345678"}, {"none", "F32", {0, 5}, ""}});
    const Result<std::vector<StoredTensor>> parsed = parse_bytes(file);
    REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
    CHECK(parsed->size() == 2);
    CHECK(parse_bytes(shard_bytes("{}", ""))->empty());
  }

  TEST_CASE("every dtype of the format has its name and size") {
    const std::pair<const char*, uint64_t> rows[] = {
        {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
        {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
    for (const auto& [name, bytes] : rows) {
      CAPTURE(name);
      const std::string file = shard_bytes({{"t", name, {3}, std::string(3 * bytes, 'x')}});
      const Result<std::vector<StoredTensor>> parsed = parse_bytes(file);
      REQUIRE(parsed.ok());
      CHECK(std::string(dtype_name(parsed.value()[0].dtype)) == name);
      CHECK(dtype_bytes(parsed.value()[0].dtype) == bytes);
    }
  }

  TEST_CASE("hostile descriptions of a tensor are refused by name") {
    const std::string rows[] = {
        R"({"dtype":"F32","shape":[4],"data_offsets":[0,15]})",
        R"({"dtype":"F32","shape":[5],"data_offsets":[0,20]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[-16,0]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[0,1e300]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[0.0,16.0]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[0]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[0,16,16]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":"0-16"})",
        R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})",
        R"({"dtype":"F32","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":4,"data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":["4"],"data_offsets":[0,16]})",
        R"({"dtype":"F33","shape":[4],"data_offsets":[0,16]})",
        R"({"dtype":32,"shape":[4],"data_offsets":[0,16]})",
        R"({"shape":[4],"data_offsets":[0,16]})",
        R"({"dtype":"F32","data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":[4]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[0,16],"more":1})",
        R"([])",
        R"(null)",
    };
    for (const std::string& row : rows) {
      CAPTURE(row);
      const Status status = status_of(row);
      CHECK(status.code() == Code::kCHECKPOINT);
      CHECK(status.message().starts_with("tensor \"t\": "));
    }
    CHECK(status_of(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})").ok());
  }

  TEST_CASE("overlaps, holes and trailing bytes are refused") {
    const auto two = [](int a0, int a1, int b0, int b1) {
      const auto one = [](const char* name, int from, int to) {
        return "\"" + std::string(name) + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(to - from) +
               "],\"data_offsets\":[" + std::to_string(from) + "," + std::to_string(to) + "]}";
      };
      return parse_bytes(shard_bytes("{" + one("a", a0, a1) + "," + one("b", b0, b1) + "}", std::string(16, 'x')))
          .status();
    };
    CHECK(two(0, 8, 8, 16).ok());
    CHECK(two(8, 16, 0, 8).ok());
    CHECK(two(0, 16, 16, 16).ok());
    CHECK(two(0, 9, 8, 16).message() == "tensor \"b\" overlaps another one");
    CHECK(two(0, 16, 0, 16).message().find("overlaps") != std::string_view::npos);
    CHECK(two(0, 16, 4, 8).message().find("overlaps") != std::string_view::npos);
    CHECK(two(0, 7, 8, 16).message() == "1 unused bytes before tensor \"b\"");
    CHECK(two(1, 8, 8, 16).message() == "1 unused bytes before tensor \"a\"");
    CHECK(two(0, 8, 8, 15).message() == "1 unused bytes at the end");
  }

  TEST_CASE("headers that are no header are refused") {
    const std::string deep = "{\"t\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
    std::string wide = "{\"t\":[0";
    for (int i = 0; i < 2'000'001; ++i) wide += ",0";
    const std::string rows[] = {
        "",
        " {}",
        "[]",
        "{",
        "{}x",
        "{\"t\":}",
        deep,
        wide + "]}",
        "{\"t\xff\":1}",
        std::string("{\0}", 3),
        R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
        R"({"__metadata__":{"format":7}})",
        R"({"__metadata__":"pt"})",
    };
    for (const std::string& row : rows) {
      CAPTURE(row.substr(0, 100));
      const Status status = parse_bytes(shard_bytes(row, "")).status();
      CHECK(status.code() == Code::kCHECKPOINT);
      CHECK(status.message().size() < 500);
    }
  }

  TEST_CASE("a header length beyond the file or the format's limit is refused without allocating it") {
    std::string file = shard_bytes(kHeader, kPayload);
    for (uint64_t length : {uint64_t{0}, kHeader.size() + kPayload.size() + 1, uint64_t{100'000'001}, uint64_t{1} << 40,
                            uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 7}) {
      CAPTURE(length);
      std::memcpy(file.data(), &length, sizeof(length));
      CHECK(parse_bytes(file).status().code() == Code::kCHECKPOINT);
    }
  }

  TEST_CASE("a file cut anywhere is refused") {
    const std::string file = shard_bytes(kHeader, kPayload);
    for (size_t length = 0; length < file.size(); ++length) {
      CAPTURE(length);
      CHECK(parse_bytes(file.substr(0, length)).status().code() == Code::kCHECKPOINT);
    }
  }

  TEST_CASE("any changed byte of length or header is refused or leaves every tensor inside the file") {
    const std::string file = shard_bytes(kHeader, kPayload);
    int n_accepted = 0;
    for (size_t at = 0; at < file.size() - kPayload.size(); ++at) {
      for (int value = 0; value < 256; ++value) {
        std::string changed = file;
        changed[at] = static_cast<char>(value);
        const Result<std::vector<StoredTensor>> parsed = parse_bytes(changed);
        if (!parsed.ok()) {
          CHECK(parsed.status().code() == Code::kCHECKPOINT);
          continue;
        }
        ++n_accepted;  // another name or metadata text, or another dtype or shape of the same size
        uint64_t covered = 0;
        for (const StoredTensor& tensor : parsed.value()) {
          CHECK(text_of(tensor) == kPayload.substr(covered, tensor.bytes));
          covered += tensor.bytes;
        }
        CHECK(covered == kPayload.size());
      }
    }
    CHECK(n_accepted > 256);
  }

  TEST_CASE("an opened file names itself in every failure and keeps its tensors when moved") {
    TempFolder folder;
    const std::string path = folder.write("s.safetensors", shard_bytes({{"t", "U8", {3}, "abc"}}));
    Result<model::SafetensorsFile> opened = model::SafetensorsFile::open(path);
    REQUIRE(opened.ok());
    const model::SafetensorsFile moved = std::move(opened).value();
    CHECK(text_of(moved.tensors[0]) == "abc");

    REQUIRE(::truncate(path.c_str(), 60) == 0);
    CHECK(model::SafetensorsFile::open(path).status().message().starts_with(path + ": "));
    CHECK(model::SafetensorsFile::open(folder.file("absent")).status().code() == Code::kNOT_FOUND);
  }
}

}  // namespace
}  // namespace dsv41::test
