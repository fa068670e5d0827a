#include "base/file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/checked.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST_SUITE("base/file") {
  TEST_CASE("a file is read and mapped with the bytes that were written") {
    TempFolder folder;
    for (const std::string& content : {std::string(), std::string("a\0b", 3), std::string(100000, 'x')}) {
      const std::string path = folder.write("f", content);
      Result<std::string> read = read_file(path, content.size());
      REQUIRE(read.ok());
      CHECK(read.value() == content);
      Result<MappedFile> mapped = MappedFile::open(path);
      REQUIRE(mapped.ok());
      CHECK(text_of(mapped.value()) == content);
      mapped->advise_random(0, content.size());
    }
  }

  TEST_CASE("released pages leave this process's memory and come back with their bytes") {
    const auto file_kilobytes = [] {
      const std::string text = read_system_file("/proc/self/status", 1 << 20).value();
      const size_t at = text.find("RssFile:");
      return at == text.npos ? -1L : std::stol(text.substr(at + 8));
    };
    if (file_kilobytes() < 0) return;  // a system that does not count them
    const TempFolder folder;
    const std::string content(8 << 20, 'x');
    const MappedFile mapped = MappedFile::open(folder.write("f", content)).value();
    CHECK(text_of(mapped) == content);
    const long before = file_kilobytes();
    mapped.release_pages(100, content.size() - 100);
    CHECK(file_kilobytes() < before - 7000);
    CHECK(text_of(mapped) == content);
  }

  TEST_CASE("files without a size are read to their end") {
    const Result<std::string> text = read_system_file("/proc/self/status", 1 << 20);
    REQUIRE(text.ok());
    CHECK(text->find("Name:") == 0);
    CHECK(text->find("VmRSS:") != std::string::npos);
    const TempFolder folder;
    const std::string content(10000, 'x');
    CHECK(read_system_file(folder.write("f", content), 10000).value() == content);
    CHECK(read_system_file(folder.write("f", content), 9999).status().code() == Code::kLIMIT);
    CHECK(read_system_file(folder.write("f", ""), 0).value().empty());
    CHECK(read_system_file(folder.file("none"), 10).status().code() == Code::kNOT_FOUND);
    CHECK(read_system_file(folder.path(), 10).status().code() == Code::kIO);
  }

  TEST_CASE("a moved mapping keeps its address and the old object is empty") {
    TempFolder folder;
    MappedFile first = MappedFile::open(folder.write("f", "hello")).value();
    const std::byte* data = first.bytes().data();
    MappedFile second = std::move(first);
    CHECK(second.bytes().data() == data);
    CHECK(text_of(second) == "hello");
    MappedFile third = MappedFile::open(folder.write("g", "other")).value();
    third = std::move(second);
    CHECK(text_of(third) == "hello");
  }

  TEST_CASE("what cannot be opened is named with its reason and OS error") {
    TempFolder folder;
    folder.write("file", "x");
    const std::string fifo = folder.file("fifo");
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    struct Row {
      std::string path;
      Code code;
      int64_t os_error;
    };
    const Row rows[] = {
        {folder.file("absent"), Code::kNOT_FOUND, ENOENT},
        {folder.file("file/below"), Code::kNOT_FOUND, ENOTDIR},
        {folder.path(), Code::kIO, EISDIR},
        {fifo, Code::kIO, 0},
        {folder.file(std::string_view("file\0x", 6)), Code::kINVALID_ARG, 0},
    };
    for (const Row& row : rows) {
      CAPTURE(row.path);
      for (const Status& status : {read_file(row.path, 10).status(), MappedFile::open(row.path).status()}) {
        CHECK(status.code() == row.code);
        CHECK(status.os_error() == row.os_error);
        if (row.code != Code::kINVALID_ARG) CHECK(status.message().starts_with(row.path));
      }
    }
    CHECK(check_folder(folder.path()).ok());
    CHECK(check_folder(folder.file("absent")).code() == Code::kNOT_FOUND);
    CHECK(check_folder(folder.file("file")).code() == Code::kINVALID_ARG);
  }

  TEST_CASE("a file above the limit is refused before it is read") {
    TempFolder folder;
    const std::string path = folder.write("f", "12345");
    CHECK(read_file(path, 4).status().code() == Code::kLIMIT);
    CHECK(read_file(path, 5).ok());
    // Sparse: 1 TiB that nobody could allocate.
    REQUIRE(::truncate(path.c_str(), off_t{1} << 40) == 0);
    CHECK(read_file(path, 1 << 20).status().code() == Code::kLIMIT);
  }
}

TEST_SUITE("base/checked") {
  TEST_CASE("sums and products that do not fit are refused and leave the output alone") {
    uint64_t out = 7;
    CHECK_FALSE(checked_add(UINT64_MAX, 1, &out));
    CHECK_FALSE(checked_mul(uint64_t{1} << 32, uint64_t{1} << 32, &out));
    CHECK(out == 7);
    CHECK(checked_add(UINT64_MAX - 1, 1, &out));
    CHECK(out == UINT64_MAX);
    CHECK(checked_mul(uint64_t{1} << 32, (uint64_t{1} << 32) - 1, &out));
    CHECK(out == 0xffffffff00000000u);
  }
}

}  // namespace
}  // namespace dsv41::test
