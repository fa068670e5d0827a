#include "session/page_stream.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "session/snapshot_planes.h"
#include "support/crash_file_system.h"
#include "support/kv_pool_fixture.h"
#include "support/snapshot_files.h"

namespace dsv41::test {
namespace {

using kv::kPageTokens;
using session::kPlaneSections;
using session::PageStream;
using snapshot::SnapshotReader;
using snapshot::SnapshotWriter;

const kv::PageGeometry& geometry() {
  static const KvPool kv({.n_global_pages = 1, .n_window_slots = 1});
  return kv.pool->geometry();
}

// Full pages, then a part of one. Some bytes repeat, so that zstd has its chunks too.
std::vector<FileBytes> images_of(int64_t n_tokens) {
  std::mt19937 random(static_cast<uint32_t>(n_tokens));
  std::vector<FileBytes> images;
  for (int64_t first = 0; first < n_tokens; first += kPageTokens) {
    FileBytes& image = images.emplace_back(kv::image_bytes(geometry(), std::min(kPageTokens, n_tokens - first)));
    for (std::byte& b : image) b = static_cast<std::byte>(images.size() % 2 ? random() : random() % 3);
  }
  return images;
}

// A file of these pages alone, cut into chunks of that size.
FileBytes file_of(std::span<const FileBytes> images, int64_t n_tokens, uint32_t chunk_bytes) {
  VectorSink sink;
  SnapshotWriter writer = SnapshotWriter::begin(sink, {}).value();
  for (size_t plane = 0; plane < kPlaneSections.size(); ++plane) {
    must_succeed(writer.begin_section({.type = kPlaneSections[plane], .chunk_bytes = chunk_bytes, .try_zstd = true}));
    for (size_t i = 0; i < images.size(); ++i) {
      const int64_t n = std::min(kPageTokens, n_tokens - static_cast<int64_t>(i) * kPageTokens);
      must_succeed(writer.write(kv::parts_of_image(geometry(), n, images[i])[plane]));
    }
    must_succeed(writer.end_section());
  }
  must_succeed(writer.finish());
  return std::move(sink.bytes());
}

Status check_pages(SnapshotReader& reader, std::span<const FileBytes> images, int64_t n_tokens, uint64_t batch_bytes) {
  DSV41_TRY_ASSIGN(PageStream stream, PageStream::open(reader, geometry(), n_tokens, batch_bytes));
  for (size_t i = 0; i < images.size(); ++i) {
    CAPTURE(i);
    const int64_t n = std::min(kPageTokens, n_tokens - static_cast<int64_t>(i) * kPageTokens);
    DSV41_TRY_ASSIGN(const kv::PageParts parts, stream.next(n));
    const kv::PageParts expected = kv::parts_of_image(geometry(), n, images[i]);
    for (size_t plane = 0; plane < parts.size(); ++plane) CHECK(std::ranges::equal(parts[plane], expected[plane]));
  }
  CHECK(stream.next(0).ok());
  return Status();
}

// From memory, from a file that a second thread reads, from something that only reads.
std::vector<std::shared_ptr<ByteSource>> sources_of(CrashFileSystem& files, const FileBytes& file) {
  files.put("f", file);
  return {std::make_shared<SpanSource>(file), open_file_source(files, "f").value(),
          std::make_shared<BytesSource>(file)};
}

TEST_SUITE("session/page_stream") {
  TEST_CASE("pages come back whatever the chunks, the batches and the source are") {
    const uint64_t image = kv::image_bytes(geometry(), kPageTokens);
    for (const int64_t n_tokens : {int64_t{0}, int64_t{5}, kPageTokens, 7 * kPageTokens + 3}) {
      const std::vector<FileBytes> images = images_of(n_tokens);
      const uint32_t codes = static_cast<uint32_t>(kv::plane_bytes(geometry(), kPageTokens)[0]);
      for (const uint32_t chunk_bytes : {uint32_t{61}, codes - 1, codes, codes + 1, 3 * codes, uint32_t{1} << 20}) {
        const FileBytes file = file_of(images, n_tokens, chunk_bytes);
        CrashFileSystem files;
        for (const std::shared_ptr<ByteSource>& source : sources_of(files, file)) {
          SnapshotReader reader = SnapshotReader::open(source).value();
          for (const uint64_t batch_bytes : {uint64_t{1}, 2 * image, 100 * image}) {
            CAPTURE(n_tokens);
            CAPTURE(chunk_bytes);
            CAPTURE(batch_bytes);
            CHECK(check_pages(reader, images, n_tokens, batch_bytes).ok());
          }
        }
      }
    }
  }

  TEST_CASE("chunks that are mostly padding are not all fetched at once") {
    const int64_t n_tokens = 40 * kPageTokens;
    const std::vector<FileBytes> images = images_of(n_tokens);
    const FileBytes file = file_of(images, n_tokens, 1);
    REQUIRE(file.size() > session::kBatchBytes + snapshot::kMaxChunkBytes);
    SnapshotReader reader = SnapshotReader::open(std::make_shared<BytesSource>(file)).value();
    CHECK(check_pages(reader, images, n_tokens, session::kBatchBytes).ok());
  }

  TEST_CASE("every read that fails is told of, and so is every damaged byte") {
    const int64_t n_tokens = 6 * kPageTokens;
    const std::vector<FileBytes> images = images_of(n_tokens);
    const FileBytes file = file_of(images, n_tokens, 5000);
    const uint64_t batch_bytes = 2 * kv::image_bytes(geometry(), kPageTokens);
    for (uint64_t n = 1;; ++n) {
      CAPTURE(n);
      CrashFileSystem files;
      files.put("f", file);
      SnapshotReader reader = SnapshotReader::open(open_file_source(files, "f").value()).value();
      files.fail_after({.n = n, .kinds = CrashFileSystem::kRead});
      const Status status = check_pages(reader, images, n_tokens, batch_bytes);
      CHECK(status.ok() == !files.struck());
      if (!files.struck()) break;
      CHECK(status.code() == Code::kIO);
      REQUIRE(n < 100);
    }
    const SnapshotReader whole = SnapshotReader::open(std::make_shared<BytesSource>(file)).value();
    for (const snapshot::Section& section : whole.sections()) {
      for (uint32_t chunk = 0; chunk < section.n_chunks; ++chunk) {
        CAPTURE(chunk);
        CrashFileSystem files;
        files.put("f", file);
        const SnapshotReader::Place place = whole.place_of(section, chunk);
        files.flip_bit("f", 8 * place.offset + 3);
        SnapshotReader reader = SnapshotReader::open(open_file_source(files, "f").value()).value();
        CHECK(check_pages(reader, images, n_tokens, batch_bytes).code() == Code::kCHECKSUM);
      }
    }
  }

  TEST_CASE("a stream that is left in the middle waits for what it fetches") {
    const int64_t n_tokens = 6 * kPageTokens;
    const std::vector<FileBytes> images = images_of(n_tokens);
    CrashFileSystem files;
    files.put("f", file_of(images, n_tokens, 5000));
    SnapshotReader reader = SnapshotReader::open(open_file_source(files, "f").value()).value();
    for (int64_t n_pages = 0; n_pages < 6; ++n_pages) {
      CAPTURE(n_pages);
      PageStream stream = PageStream::open(reader, geometry(), n_tokens, 1).value();
      for (int64_t page = 0; page < n_pages; ++page) REQUIRE(stream.next(kPageTokens).ok());
      stream = PageStream();
    }
  }
}

}  // namespace
}  // namespace dsv41::test
