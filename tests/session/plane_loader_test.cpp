#include "session/plane_loader.h"

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
using session::PlaneLoader;
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

// The planes of the pages, as they are taken. How often each byte came is counted.
class ImageTaker final : public session::PlaneTaker {
 public:
  ImageTaker(std::vector<FileBytes>& images, std::vector<FileBytes>& counts, int64_t n_tokens)
      : images_(images), counts_(counts), n_tokens_(n_tokens) {}
  Status take(int64_t page, int plane, uint64_t offset, std::span<const std::byte> bytes) override {
    const int64_t n = std::min(kPageTokens, n_tokens_ - page * kPageTokens);
    const kv::PlaneBytes sizes = kv::plane_bytes(geometry(), n);
    for (int before = 0; before < plane; ++before) offset += sizes[static_cast<size_t>(before)];
    waiting_.push_back({images_[static_cast<size_t>(page)].data() + offset, bytes});
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::byte& count = counts_[static_cast<size_t>(page)][offset + i];
      count = static_cast<std::byte>(static_cast<int>(count) + 1);
    }
    return Status();
  }
  // Only now: the bytes must still be there.
  Status wait() override {
    for (const auto& [to, bytes] : waiting_) std::ranges::copy(bytes, to);
    waiting_.clear();
    return Status();
  }

 private:
  struct Part {
    std::byte* to;
    std::span<const std::byte> bytes;
  };
  std::vector<FileBytes>&images_, &counts_;
  const int64_t n_tokens_;
  std::vector<Part> waiting_;
};

// Loads pages [first, end): they come once and are those of the file, and no others come.
Status check_pages(SnapshotReader& reader, std::span<const FileBytes> images, int64_t n_tokens, uint64_t piece_bytes,
                   int64_t first, int64_t end) {
  DSV41_TRY_ASSIGN(PlaneLoader loader, PlaneLoader::open(reader, geometry(), n_tokens, piece_bytes));
  std::vector<FileBytes> loaded, counts;
  for (const FileBytes& image : images) {
    loaded.emplace_back(image.size());
    counts.emplace_back(image.size());
  }
  const auto make = [&]() -> Result<std::unique_ptr<session::PlaneTaker>> {
    return std::unique_ptr<session::PlaneTaker>(new ImageTaker(loaded, counts, n_tokens));
  };
  DSV41_TRY(loader.load(first, end, make, nullptr));
  for (size_t i = 0; i < images.size(); ++i) {
    CAPTURE(i);
    const bool wanted = static_cast<int64_t>(i) >= first && static_cast<int64_t>(i) < end;
    if (wanted) CHECK(loaded[i] == images[i]);
    CHECK(std::ranges::all_of(counts[i], [&](std::byte n) { return n == std::byte{wanted}; }));
  }
  return Status();
}
Status check_pages(SnapshotReader& reader, std::span<const FileBytes> images, int64_t n_tokens, uint64_t piece_bytes) {
  return check_pages(reader, images, n_tokens, piece_bytes, 0, static_cast<int64_t>(images.size()));
}

// From memory, from a file, from something that only one thread may read.
std::vector<std::shared_ptr<ByteSource>> sources_of(CrashFileSystem& files, const FileBytes& file) {
  files.put("f", file);
  return {std::make_shared<SpanSource>(file), open_file_source(files, "f").value(),
          std::make_shared<BytesSource>(file)};
}

TEST_SUITE("session/plane_loader") {
  TEST_CASE("pages come back whatever the chunks, the pieces and the source are") {
    const uint64_t image = kv::image_bytes(geometry(), kPageTokens);
    for (const int64_t n_tokens : {int64_t{0}, int64_t{5}, kPageTokens, 7 * kPageTokens + 3}) {
      const std::vector<FileBytes> images = images_of(n_tokens);
      const uint32_t codes = static_cast<uint32_t>(kv::plane_bytes(geometry(), kPageTokens)[0]);
      for (const uint32_t chunk_bytes : {uint32_t{61}, codes - 1, codes, codes + 1, 3 * codes, uint32_t{1} << 20}) {
        const FileBytes file = file_of(images, n_tokens, chunk_bytes);
        CrashFileSystem files;
        for (const std::shared_ptr<ByteSource>& source : sources_of(files, file)) {
          SnapshotReader reader = SnapshotReader::open(source).value();
          for (const uint64_t piece_bytes : {uint64_t{1}, 2 * image, 100 * image}) {
            CAPTURE(n_tokens);
            CAPTURE(chunk_bytes);
            CAPTURE(piece_bytes);
            CHECK(check_pages(reader, images, n_tokens, piece_bytes).ok());
          }
        }
      }
    }
  }

  TEST_CASE("a part of the pages comes without those around it") {
    const int64_t n_tokens = 7 * kPageTokens + 3;
    const std::vector<FileBytes> images = images_of(n_tokens);
    const FileBytes file = file_of(images, n_tokens, 5000);
    SnapshotReader reader = SnapshotReader::open(std::make_shared<SpanSource>(file)).value();
    for (int64_t first = 0; first <= 8; ++first) {
      for (int64_t end = first; end <= 8; ++end) {
        CAPTURE(first);
        CAPTURE(end);
        CHECK(check_pages(reader, images, n_tokens, 9000, first, end).ok());
      }
    }
  }

  TEST_CASE("every read that fails is told of, and so is every damaged byte") {
    const int64_t n_tokens = 6 * kPageTokens;
    const std::vector<FileBytes> images = images_of(n_tokens);
    const FileBytes file = file_of(images, n_tokens, 5000);
    for (uint64_t n = 1;; ++n) {
      CAPTURE(n);
      CrashFileSystem files;
      files.put("f", file);
      SnapshotReader reader = SnapshotReader::open(open_file_source(files, "f").value()).value();
      files.fail_after({.n = n, .kinds = CrashFileSystem::kRead});
      const Status status = check_pages(reader, images, n_tokens, 9000);
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
        CHECK(check_pages(reader, images, n_tokens, 9000).code() == Code::kCHECKSUM);
      }
    }
  }

  TEST_CASE("what a taker says, a cancel, and memory that is missing end a load") {
    class Refusing final : public session::PlaneTaker {
     public:
      explicit Refusing(bool throws) : throws_(throws) {}
      Status take(int64_t, int, uint64_t, std::span<const std::byte>) override {
        if (throws_) throw std::bad_alloc();
        return Status(Code::kPOOL_FULL, "no more");
      }
      Status wait() override { return Status(); }

     private:
      const bool throws_;
    };
    const auto refusing = [](bool throws) {
      return [throws]() -> Result<std::unique_ptr<session::PlaneTaker>> {
        return std::unique_ptr<session::PlaneTaker>(new Refusing(throws));
      };
    };
    const int64_t n_tokens = 6 * kPageTokens;
    const std::vector<FileBytes> images = images_of(n_tokens);
    const FileBytes file = file_of(images, n_tokens, 5000);
    SnapshotReader reader = SnapshotReader::open(std::make_shared<SpanSource>(file)).value();
    PlaneLoader loader = PlaneLoader::open(reader, geometry(), n_tokens, 9000).value();
    CHECK(loader.load(0, 6, refusing(false), nullptr).code() == Code::kPOOL_FULL);
    CHECK_THROWS_AS((void)loader.load(0, 6, refusing(true), nullptr), std::bad_alloc);
    const auto none = []() -> Result<std::unique_ptr<session::PlaneTaker>> { return Status(Code::kNO_MEMORY, "none"); };
    CHECK(loader.load(0, 6, none, nullptr).code() == Code::kNO_MEMORY);
    CancelFlag cancel;
    cancel.trigger();
    CHECK(loader.load(0, 6, refusing(false), &cancel).code() == Code::kCANCELLED);
  }
}

}  // namespace
}  // namespace dsv41::test
