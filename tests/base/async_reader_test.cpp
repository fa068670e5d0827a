#include "base/async_reader.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/host_mapping.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

constexpr uint64_t kFileBytes = (uint64_t{3} << 20) + 1234;  // ends inside a page

std::string random_text(uint64_t n_bytes) {
  std::mt19937_64 random(7);
  std::string text(n_bytes, '\0');
  for (size_t i = 0; i + 8 <= text.size(); i += 8) {
    const uint64_t value = random();
    std::memcpy(text.data() + i, &value, 8);
  }
  return text;
}

// A file and a reader of it.
struct Fixture {
  explicit Fixture(ReaderOptions options) : content(random_text(kFileBytes)) {
    path = folder.write("file", content);
    reader = AsyncReader::create(options).value();
    file = reader->add_file(path, kFileBytes).value();
  }
  bool holds(const ReadPiece& piece) const {
    return std::memcmp(piece.to, content.data() + piece.offset, piece.bytes) == 0;
  }

  TempFolder folder;
  std::string content, path;
  std::unique_ptr<AsyncReader> reader;
  int file = -1;
};

// With both engines, past the page cache and through it.
template <class Body>
void for_each_reader(const Body& body) {
  for (const ReadEngine engine : {ReadEngine::kAuto, ReadEngine::kThreads}) {
    for (const bool direct : {true, false}) {
      CAPTURE(static_cast<int>(engine));
      CAPTURE(direct);
      ReaderOptions options;
      options.engine = engine;
      options.direct = direct;
      options.depth = 4;
      body(options);
    }
  }
}

// Pieces of a page or less at random places, the last bytes of the file among them, into `memory`.
std::vector<ReadPiece> small_pieces(const Fixture& f, size_t n, std::vector<std::byte>* memory) {
  std::mt19937_64 random(8);
  memory->assign(n * kReadAlignment, std::byte{0});
  std::vector<ReadPiece> pieces;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t bytes = 1 + random() % kReadAlignment;
    pieces.push_back({f.file, random() % (kFileBytes - bytes), bytes, memory->data() + i * kReadAlignment, false});
  }
  pieces.front().offset = kFileBytes - pieces.front().bytes;
  return pieces;
}

TEST_SUITE("base/async_reader") {
  TEST_CASE("scattered pieces arrive as they lie in the file") {
    for_each_reader([](const ReaderOptions& options) {
      Fixture f(options);
      std::vector<std::byte> memory;
      const std::vector<ReadPiece> pieces = small_pieces(f, 200, &memory);
      ReadBatch batch;
      for (int again = 0; again < 2; ++again) {
        std::fill(memory.begin(), memory.end(), std::byte{0});
        f.reader->start(pieces, &batch);
        REQUIRE(f.reader->wait(batch, nullptr).ok());
        CHECK(f.reader->is_done(batch));
        for (const ReadPiece& piece : pieces) CHECK(f.holds(piece));
      }
      CHECK(f.reader->stats().reads == 400);
    });
  }

  TEST_CASE("a large piece is read in place, in parts, and nothing beyond its pages is written") {
    for_each_reader([](const ReaderOptions& options) {
      Fixture f(options);
      HostMapping memory = HostMapping::create(kFileBytes + 4 * kReadAlignment).value();
      std::memset(memory.data(), 0x5a, memory.size());
      std::byte* const base = memory.data() + kReadAlignment;  // of file offset 0
      const ReadPiece piece{f.file, 5000, kFileBytes - 5000, base + 5000, true};
      ReadBatch batch;
      f.reader->start({&piece, 1}, &batch);
      REQUIRE(f.reader->wait(batch, nullptr).ok());
      CHECK(f.holds(piece));
      CHECK(std::all_of(memory.data(), base + kReadAlignment, [](std::byte b) { return b == std::byte{0x5a}; }));
      const std::byte* const behind = base + (kFileBytes + kReadAlignment - 1) / kReadAlignment * kReadAlignment;
      CHECK(std::all_of(behind, behind + kReadAlignment, [](std::byte b) { return b == std::byte{0x5a}; }));
      CHECK(f.reader->stats().reads == 3);
    });
  }

  TEST_CASE("short answers are continued, an end of file and an error of the disk are told with the path") {
    for_each_reader([](ReaderOptions options) {
      std::atomic<int64_t> bytes_more{-1}, error{0};
      options.change_answer = [&](uint64_t, int64_t answer) -> int64_t {
        if (error != 0) return error;
        return bytes_more >= 0 ? std::min<int64_t>(answer, bytes_more) : answer;
      };
      Fixture f(options);
      std::vector<std::byte> memory;
      const std::vector<ReadPiece> pieces = small_pieces(f, 20, &memory);
      ReadBatch batch;
      bytes_more = 700;
      f.reader->start(pieces, &batch);
      REQUIRE(f.reader->wait(batch, nullptr).ok());
      for (const ReadPiece& piece : pieces) CHECK(f.holds(piece));

      bytes_more = 0;
      f.reader->start(pieces, &batch);
      Status failure = f.reader->wait(batch, nullptr);
      CHECK(failure.code() == Code::kIO_SHORT);
      CHECK(failure.message().starts_with(f.path));

      error = -EIO;
      f.reader->start(pieces, &batch);
      failure = f.reader->wait(batch, nullptr);
      CHECK(failure.code() == Code::kIO);
      CHECK(failure.os_error() == EIO);

      // The next batch knows nothing of it.
      error = 0;
      bytes_more = -1;
      f.reader->start(pieces, &batch);
      CHECK(f.reader->wait(batch, nullptr).ok());
    });
  }

  TEST_CASE("a file system that refuses to read past the page cache is read through it") {
    for (const ReadEngine engine : {ReadEngine::kAuto, ReadEngine::kThreads}) {
      ReaderOptions options;
      options.engine = engine;
      std::atomic<int> n_refused{0};
      // Once, and to reads of whole pages only: those are the ones past the page cache.
      options.change_answer = [&](uint64_t offset, int64_t answer) -> int64_t {
        const bool refuse = offset % kReadAlignment == 0 && answer >= 0 && n_refused == 0;
        if (refuse) ++n_refused;
        return refuse ? -EINVAL : answer;
      };
      Fixture f(options);
      std::vector<std::byte> memory(100);
      const ReadPiece piece{f.file, 4096 + 77, 100, memory.data(), false};
      ReadBatch batch;
      for (int i = 0; i < 2; ++i) {
        f.reader->start({&piece, 1}, &batch);
        REQUIRE(f.reader->wait(batch, nullptr).ok());
        CHECK(f.holds(piece));
      }
      const ReadStats stats = f.reader->stats();
      CHECK(stats.bytes_read == (n_refused == 1 ? 200 : 8192));  // a temp folder without such reads never asks
    }
  }

  TEST_CASE("a file of another size than it had is refused, and so is what is no file") {
    Fixture f({});
    CHECK(f.reader->add_file(f.path, kFileBytes + 1).status().code() == Code::kCHECKPOINT);
    CHECK(f.reader->add_file(f.folder.path(), 4096).status().code() == Code::kCHECKPOINT);
    CHECK(f.reader->add_file(f.folder.file("none"), 1).status().code() == Code::kNOT_FOUND);
  }

  TEST_CASE("a file cut off after it was opened gives a failure") {
    for_each_reader([](const ReaderOptions& options) {
      Fixture f(options);
      std::filesystem::resize_file(f.path, 8192);
      std::vector<std::byte> memory(100);
      const ReadPiece there{f.file, 8000, 100, memory.data(), false}, gone{f.file, 8192, 100, memory.data(), false};
      ReadBatch batch;
      f.reader->start({&there, 1}, &batch);
      CHECK(f.reader->wait(batch, nullptr).ok());
      f.reader->start({&gone, 1}, &batch);
      CHECK(f.reader->wait(batch, nullptr).code() == Code::kIO_SHORT);
    });
  }

  TEST_CASE("without a ring of the kernel threads read, or the caller is told") {
    ReaderOptions options;
    options.refuse_ring = true;
    CHECK_FALSE(AsyncReader::create(options).value()->uses_ring());
    options.engine = ReadEngine::kRing;
    CHECK(AsyncReader::create(options).status().code() == Code::kUNSUPPORTED);
  }

  TEST_CASE("a wait ends when it is cancelled, and what nobody has begun to read can be left out") {
    for_each_reader([](ReaderOptions options) {
      std::atomic<bool> hold{true};
      std::atomic<int> n_answers{0};
      options.depth = 1;
      options.change_answer = [&](uint64_t, int64_t answer) {
        while (hold) std::this_thread::yield();
        ++n_answers;
        return answer;
      };
      Fixture f(options);
      std::vector<std::byte> memory;
      const std::vector<ReadPiece> pieces = small_pieces(f, 50, &memory);
      ReadBatch batch;
      f.reader->start(pieces, &batch);
      CancelFlag cancel;
      cancel.trigger();
      CHECK(f.reader->wait(batch, &cancel).code() == Code::kCANCELLED);
      std::thread release([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        hold = false;
      });
      f.reader->drop(batch);
      release.join();
      CHECK(f.reader->is_done(batch));
      CHECK(n_answers <= 1);
      f.reader->start(pieces, &batch);
      CHECK(f.reader->wait(batch, nullptr).ok());
      for (const ReadPiece& piece : pieces) CHECK(f.holds(piece));
    });
  }

  TEST_CASE("threads that read at the same time get their own bytes") {
    for_each_reader([](const ReaderOptions& options) {
      Fixture f(options);
      std::atomic<int> n_wrong{0};
      const auto work = [&] {
        std::vector<std::byte> memory;
        const std::vector<ReadPiece> pieces = small_pieces(f, 30, &memory);
        for (int i = 0; i < 5; ++i) {
          ReadBatch batch;
          f.reader->start(pieces, &batch);
          if (!f.reader->wait(batch, nullptr).ok()) ++n_wrong;
          for (const ReadPiece& piece : pieces) n_wrong += !f.holds(piece);
        }
      };
      std::thread first(work), second(work), third(work);
      first.join();
      second.join();
      third.join();
      CHECK(n_wrong == 0);
    });
  }
}

}  // namespace
}  // namespace dsv41::test
