#include "base/byte_stream.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "support/crash_file_system.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kPieceBytes = 1 << 20;  // what the sink collects before its thread writes

Bytes random_bytes(size_t n) {
  std::mt19937 random(static_cast<uint32_t>(n));
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Writes in pieces of at most `most` bytes and commits.
Status save(FileSystem& files, const std::string& path, const Bytes& bytes, Durability durability = Durability::kFull,
            size_t most = SIZE_MAX) {
  DSV41_TRY_ASSIGN(const std::unique_ptr<ByteSink> sink, create_file_sink(files, path, durability));
  for (size_t done = 0; done < bytes.size();) {
    const size_t n = std::min(most, bytes.size() - done);
    DSV41_TRY(sink->write(std::span(bytes).subspan(done, n)));
    done += n;
  }
  return sink->commit();
}

TEST_SUITE("base/byte_stream") {
  TEST_CASE("a file sink's bytes are in the file, however they were cut, and nothing else is left") {
    for (const size_t n : {size_t{0}, size_t{1}, kPieceBytes - 1, kPieceBytes, kPieceBytes + 1, 2 * kPieceBytes + 777,
                           19 * kPieceBytes + 1}) {
      const Bytes bytes = random_bytes(n);
      for (const size_t most : {size_t{100003}, kPieceBytes, SIZE_MAX}) {
        CAPTURE(n);
        CAPTURE(most);
        CrashFileSystem files;
        CHECK(save(files, "a", bytes, Durability::kNone, most).ok());
        CHECK(files.file("a") == bytes);
        CHECK(files.paths() == std::vector<std::string>{"a"});
      }
    }
  }

  TEST_CASE("the machine's own files hold what was written, past the page cache or not") {
    const TempFolder folder;
    FileSystem& files = system_file_system();
    for (const size_t n : {size_t{0}, size_t{5000}, kPieceBytes, kPieceBytes + 123, 2 * kPieceBytes + 70000}) {
      CAPTURE(n);
      const Bytes bytes = random_bytes(n);
      CHECK(save(files, folder.file("f"), bytes).ok());  // the one before is replaced
      CHECK(files.list(folder.path()).value().size() == 1);
      const std::unique_ptr<ByteSource> source = open_file_source(files, folder.file("f")).value();
      REQUIRE(source->size() == n);
      Bytes back(n);
      CHECK(source->read_at(0, back).ok());
      CHECK(back == bytes);
    }
  }

  TEST_CASE("the temporary file lies beside the path and has a name of its own") {
    CrashFileSystem files;
    CHECK(files.create_folder("d").ok());
    const std::unique_ptr<ByteSink> first = create_file_sink(files, "d/a", Durability::kFull).value();
    const std::unique_ptr<ByteSink> second = create_file_sink(files, "d/a", Durability::kFull).value();
    const std::vector<std::string> paths = files.paths();
    REQUIRE(paths.size() == 2);
    for (const std::string& path : paths) {
      CAPTURE(path);
      CHECK(path.starts_with("d/a.tmp-"));
      CHECK(path.size() == std::string("d/a.tmp-").size() + 16);
      CHECK(path.find_first_not_of("0123456789abcdef", 8) == std::string::npos);
    }
  }

  TEST_CASE("a temporary name that is taken is drawn again, but not for ever") {
    CrashFileSystem files;
    files.fail_after({.code = Code::kEXISTS, .kinds = CrashFileSystem::kCreate});
    CHECK(save(files, "a", random_bytes(10)).ok());
    files.fail_after({.code = Code::kEXISTS, .kinds = CrashFileSystem::kCreate, .for_good = true});
    CHECK(save(files, "b", random_bytes(10)).code() == Code::kEXISTS);
    CHECK(files.paths() == std::vector<std::string>{"a"});
  }

  TEST_CASE("a sink that is abandoned or dropped leaves nothing") {
    CrashFileSystem files;
    files.put("a", random_bytes(5));
    {
      const std::unique_ptr<ByteSink> sink = create_file_sink(files, "a", Durability::kFull).value();
      CHECK(sink->write(random_bytes(kPieceBytes + 1)).ok());
      sink->abandon();
      CHECK(files.paths() == std::vector<std::string>{"a"});
    }
    {
      const std::unique_ptr<ByteSink> sink = create_file_sink(files, "a", Durability::kFull).value();
      CHECK(sink->write(random_bytes(100)).ok());
    }
    CHECK(files.paths() == std::vector<std::string>{"a"});
    CHECK(files.file("a") == random_bytes(5));
  }

  TEST_CASE("after a power cut at any moment the file is the old or the new one, and after a commit the new one") {
    const Bytes old = random_bytes(700), fresh = random_bytes(1300);
    for (const bool had_old : {false, true}) {
      for (uint64_t n = 1;; ++n) {
        CAPTURE(had_old);
        CAPTURE(n);
        CrashFileSystem files;
        if (had_old) files.put("a", old);
        files.power_off_at(n);
        const bool committed = save(files, "a", fresh).ok();
        CHECK(committed == !files.struck());
        for_each_crash(files, 0, [&](const CrashFileSystem& after) {
          const std::optional<Bytes> content = after.file("a");
          const bool is_old = had_old ? content == old : !content.has_value();
          CHECK((content == fresh || (is_old && !committed)));
          CHECK(after.paths().size() <= 2);
        });
        if (committed) break;
        REQUIRE(n < 20);
      }
    }
  }

  TEST_CASE("without durability no process sees a half file, and nothing waits for the disk") {
    CrashFileSystem files;
    files.put("a", random_bytes(10));
    CHECK(save(files, "a", random_bytes(1000), Durability::kNone).ok());
    CHECK(files.file("a") == random_bytes(1000));
    CHECK(files.n_operations(CrashFileSystem::kSync | CrashFileSystem::kSyncFolder) == 0);
  }

  TEST_CASE("whichever operation fails, the old file stays and no other is left, but for the sync of the folder") {
    const Bytes old = random_bytes(10), fresh = random_bytes(12 * kPieceBytes + 5);
    for (const Code code : {Code::kIO, Code::kNO_SPACE, Code::kPERMISSION}) {
      for (uint64_t n = 1;; ++n) {
        CAPTURE(code_name(code));
        CAPTURE(n);
        CrashFileSystem files;
        files.put("a", old);
        files.fail_after({.n = n, .code = code});
        const Status status = save(files, "a", fresh);
        if (!files.struck()) break;
        CHECK(status.code() == code);
        CHECK(files.paths() == std::vector<std::string>{"a"});
        const bool in_folder_sync = files.n_operations(CrashFileSystem::kSyncFolder) > 0;
        CHECK(files.file("a") == (in_folder_sync ? fresh : old));
      }
    }
  }

  TEST_CASE("the failure of a piece comes out of a later call, and nothing is written behind it") {
    for (const uint64_t n : {uint64_t{1}, uint64_t{2}, uint64_t{20}}) {
      CAPTURE(n);
      CrashFileSystem files;
      const std::unique_ptr<ByteSink> sink = create_file_sink(files, "a", Durability::kFull).value();
      files.fail_after({.n = n, .code = Code::kNO_SPACE, .kinds = CrashFileSystem::kWrite});
      const Bytes piece = random_bytes(kPieceBytes);
      uint64_t n_taken = 0;
      while (sink->write(piece).ok()) REQUIRE(++n_taken < n + 10);
      CHECK(files.n_operations(CrashFileSystem::kWrite) == n);
      sink->abandon();
      CHECK(files.paths().empty());
    }
    CrashFileSystem files;
    const std::unique_ptr<ByteSink> sink = create_file_sink(files, "a", Durability::kFull).value();
    files.fail_after({.kinds = CrashFileSystem::kWrite});
    Status status = sink->write(random_bytes(kPieceBytes));
    if (status.ok()) status = sink->commit();  // it did not know yet
    CHECK(status.code() == Code::kIO);
    CHECK(files.n_operations(CrashFileSystem::kRename) == 0);
  }

  TEST_CASE("a disk that is full at any byte keeps the old file and no other") {
    const Bytes fresh = random_bytes(kPieceBytes + 1000);
    for (const size_t n_free : {size_t{0}, size_t{1}, size_t{511}, size_t{512}, kPieceBytes - 1, kPieceBytes,
                                kPieceBytes + 1, kPieceBytes + 999, kPieceBytes + 1000}) {
      CAPTURE(n_free);
      CrashFileSystem files;
      files.put("a", random_bytes(10));
      files.limit_space(10 + n_free);
      const Status status = save(files, "a", fresh, Durability::kFull, 1 << 20);
      CHECK(status.code() == (n_free < fresh.size() ? Code::kNO_SPACE : Code::kOK));
      CHECK(files.paths() == std::vector<std::string>{"a"});
      CHECK(files.file("a") == (status.ok() ? fresh : random_bytes(10)));
    }
  }

  TEST_CASE("a file source gives bytes at any place inside and refuses the others") {
    CrashFileSystem files;
    const Bytes bytes = random_bytes(100);
    files.put("a", bytes);
    const std::unique_ptr<ByteSource> source = open_file_source(files, "a").value();
    CHECK(source->size() == 100);
    Bytes out(40);
    CHECK(source->read_at(60, out).ok());
    CHECK(std::equal(out.begin(), out.end(), bytes.begin() + 60));
    for (const uint64_t offset : {uint64_t{61}, uint64_t{100}, uint64_t{101}, UINT64_MAX - 10, UINT64_MAX}) {
      CAPTURE(offset);
      CHECK(source->read_at(offset, out).code() == Code::kIO_SHORT);
    }
    CHECK(source->read_at(100, {}).ok());
    files.shorten_read(1);
    const Status cut = source->read_at(0, out);
    CHECK(cut.code() == Code::kIO_SHORT);
    CHECK(cut.message().starts_with("a: "));
    files.fail_after({});
    CHECK(source->read_at(0, out).code() == Code::kIO);
    CHECK(open_file_source(files, "b").status().code() == Code::kNOT_FOUND);
  }

  TEST_CASE("a fetch gives the bytes of a read, from any place and into memory that is used again") {
    CrashFileSystem files;
    const Bytes bytes = random_bytes(3 * 4096 + 100);
    files.put("a", bytes);
    const std::unique_ptr<ByteSource> file = open_file_source(files, "a").value();
    SpanSource span(bytes);
    CHECK(file->reads_at_once());
    CHECK(span.reads_at_once());
    FetchMemory memory;
    for (ByteSource* const source : {file.get(), static_cast<ByteSource*>(&span)}) {
      for (const size_t offset : {size_t{0}, size_t{1}, size_t{4096}, size_t{8000}, bytes.size()}) {
        for (const size_t n : {size_t{0}, size_t{1}, size_t{4096}, size_t{5000}, bytes.size() - offset}) {
          CAPTURE(offset);
          CAPTURE(n);
          const Result<std::span<const std::byte>> fetched = source->fetch(offset, n, memory);
          REQUIRE(fetched.ok() == (n <= bytes.size() - offset));
          if (!fetched.ok()) {
            CHECK(fetched.status().code() == Code::kIO_SHORT);
            continue;
          }
          CHECK(std::ranges::equal(fetched.value(), std::span(bytes).subspan(offset, n)));
        }
      }
      CHECK(source->fetch(UINT64_MAX, 2, memory).status().code() == Code::kIO_SHORT);
    }
    CHECK(span.fetch(5, 3, memory).value().data() == bytes.data() + 5);  // where they lie
    files.shorten_read(1);
    CHECK(file->fetch(0, 100, memory).ok());  // it asks for more than it needs
    files.shorten_read(1);
    CHECK(file->fetch(8000, 1000, memory).status().code() == Code::kIO_SHORT);
    files.fail_after({});
    CHECK(file->fetch(0, 100, memory).status().code() == Code::kIO);
  }

  TEST_CASE("a span sink fails where its memory ends, and counts on") {
    Bytes memory(10, std::byte{1});
    SpanSink sink(std::span<std::byte>(memory).first(9));
    CHECK(sink.write(Bytes(4, std::byte{2})).ok());
    CHECK(sink.write({}).ok());
    CHECK(sink.write(Bytes(5, std::byte{3})).ok());
    CHECK(sink.write(Bytes(1, std::byte{4})).code() == Code::kBUFFER_TOO_SMALL);
    CHECK(sink.write(Bytes(20, std::byte{5})).code() == Code::kBUFFER_TOO_SMALL);
    CHECK(sink.n_written() == 30);
    CHECK(memory[3] == std::byte{2});
    CHECK(memory[8] == std::byte{3});
    CHECK(memory[9] == std::byte{1});
    SpanSink empty({});
    CHECK(empty.write({}).ok());
    CHECK(empty.write(Bytes(1)).code() == Code::kBUFFER_TOO_SMALL);
  }

  TEST_CASE("a vector sink keeps the bytes, a counting sink their number") {
    VectorSink vector;
    CountingSink counting;
    for (ByteSink* sink : {static_cast<ByteSink*>(&vector), static_cast<ByteSink*>(&counting)}) {
      CHECK(sink->write(Bytes(3, std::byte{7})).ok());
      CHECK(sink->write({}).ok());
      CHECK(sink->write(Bytes(2, std::byte{8})).ok());
      CHECK(sink->commit().ok());
    }
    CHECK(vector.bytes() == Bytes{std::byte{7}, std::byte{7}, std::byte{7}, std::byte{8}, std::byte{8}});
    CHECK(counting.n_written() == 5);
    vector.abandon();
    CHECK(vector.bytes().empty());
  }

  TEST_CASE("a span source gives bytes at any place inside and refuses the others") {
    const Bytes bytes = random_bytes(10);
    SpanSource source(bytes);
    CHECK(source.size() == 10);
    Bytes out(4);
    CHECK(source.read_at(6, out).ok());
    CHECK(std::equal(out.begin(), out.end(), bytes.begin() + 6));
    for (const uint64_t offset : {uint64_t{7}, uint64_t{11}, UINT64_MAX - 2}) {
      CAPTURE(offset);
      CHECK(source.read_at(offset, out).code() == Code::kIO_SHORT);
    }
    CHECK(source.read_at(10, {}).ok());
    CHECK(SpanSource({}).read_at(0, {}).ok());
  }
}

}  // namespace
}  // namespace dsv41::test
