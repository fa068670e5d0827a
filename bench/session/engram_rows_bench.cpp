// Engram rows from disk and from memory. The disk: rows of 264 bytes at random places of a file of 2 GB, read past the page
// cache, decoded and gathered; two reads a row, codes and scale. The reference: as many random pages of 4 KiB of the same file
// by a bare ring with 8 reads in flight. Memory: the same gather from tables of 0.5 GB on large pages, rows of both tables of a
// token; the reference copies the rows as they are.
//
//   DSV41_BENCH_DISK=FOLDER build/bin/bench_real_size --benchmark_filter=EngramGather
//
// Without the variable, or without liburing, the line of the disk says n/a. The file is made there and removed.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#ifdef DSV41_HAS_LIBURING
#include <liburing.h>
#endif

#include "base/host_mapping.h"
#include "base/os_file.h"
#include "kernels/common/cpu_features.h"
#include "kernels/engram/engram_gather.h"
#include "model/engram_rows.h"
#include "paired_rounds.h"

namespace dsv41::bench {
namespace {

constexpr uint64_t kRowCodes = 256, kRows = uint64_t{7} << 20, kScalesAt = kRows * kRowCodes;
constexpr uint64_t kFileBytes = kScalesAt + kRows * kRowCodes / 32;
constexpr int64_t kColumns = 24, kTokens = 64;  // of one table; a token asks two tables
constexpr size_t kIds = static_cast<size_t>(kTokens * kColumns);

// Random bytes on disk, none of them in the page cache; removed with the object.
class RowFile {
 public:
  explicit RowFile(const std::string& folder) : path_(folder + "/dsv41_bench_rows") {
    const FileDescriptor file(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    std::vector<uint64_t> piece(1 << 17);
    std::mt19937_64 random(1);
    for (uint64_t done = 0; file.is_open() && done < kFileBytes; done += piece.size() * 8) {
      for (uint64_t& word : piece) word = random();
      const size_t bytes = std::min<uint64_t>(piece.size() * 8, kFileBytes - done);
      if (::pwrite(file.get(), piece.data(), bytes, static_cast<off_t>(done)) != static_cast<ssize_t>(bytes)) return;
    }
    is_whole_ =
        file.is_open() && ::fdatasync(file.get()) == 0 && ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED) == 0;
  }
  ~RowFile() { ::unlink(path_.c_str()); }
  bool is_whole() const { return is_whole_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool is_whole_ = false;
};

std::vector<int64_t> random_rows(std::mt19937_64& random) {
  std::vector<int64_t> ids(kIds);
  for (int64_t& id : ids) id = static_cast<int64_t>(random() % kRows);
  return ids;
}

#ifdef DSV41_HAS_LIBURING

constexpr unsigned kRawDepth = 8;

// n random pages with kRawDepth reads in flight; false: one failed.
bool read_pages(io_uring* ring, int fd, std::byte* buffers, std::mt19937_64& random, size_t n) {
  size_t n_begun = 0, n_done = 0;
  const auto begin = [&](uint64_t buffer) {
    io_uring_sqe* entry = io_uring_get_sqe(ring);
    io_uring_prep_read(entry, fd, buffers + buffer * 4096, 4096, random() % (kFileBytes / 4096) * 4096);
    io_uring_sqe_set_data(entry, reinterpret_cast<void*>(buffer));
    ++n_begun;
  };
  for (uint64_t buffer = 0; buffer < kRawDepth; ++buffer) begin(buffer);
  while (n_done < n) {
    if (io_uring_submit_and_wait(ring, 1) < 0) return false;
    io_uring_cqe* entry = nullptr;
    while (n_done < n && io_uring_peek_cqe(ring, &entry) == 0) {
      const auto buffer = reinterpret_cast<uint64_t>(io_uring_cqe_get_data(entry));
      const bool whole = entry->res == 4096;
      io_uring_cqe_seen(ring, entry);
      if (!whole) return false;
      ++n_done;
      if (n_begun < n) begin(buffer);
    }
  }
  return true;
}

void gather_from_disk(benchmark::State& state) {
  const char* const folder = std::getenv("DSV41_BENCH_DISK");
  if (!folder) return state.SkipWithError("n/a: DSV41_BENCH_DISK names no folder");
  const RowFile file(folder);
  const FileDescriptor direct(::open(file.path().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  io_uring ring{};
  if (!file.is_whole() || !direct.is_open() || io_uring_queue_init(kRawDepth, &ring, 0) < 0)
    return state.SkipWithError("n/a: no file past the page cache, or no ring");
  Result<std::unique_ptr<AsyncReader>> reader = AsyncReader::create({});
  const int number = reader.value()->add_file(file.path(), kFileBytes).value();
  const auto rows =
      model::EngramRows::create(std::move(reader).value(), {{number, number, 0, kScalesAt, kRows}}, kRowCodes,
                                /*cache_bytes=*/1)
          .value();
  std::vector<uint8_t> codes(kIds * kRowCodes), scales(codes.size() / 32);
  std::vector<uint16_t> e(codes.size());
  HostMapping raw = HostMapping::create(kRawDepth * 4096).value();
  std::mt19937_64 random(2);
  SerialParallel serial;
  model::EngramFetch fetch(*rows, 0);
  PairedRounds rounds;
  bool read = true;
  for (auto _ : state) {
    std::vector<int64_t> ids = random_rows(random);
    rounds.run(
        state, [&] { read = read && read_pages(&ring, direct.get(), raw.data(), random, 2 * kIds); },
        [&] {
          fetch.begin(ids, codes.data(), scales.data());
          read = read && fetch.finish(nullptr).ok();
          kernels::engram_gather_cpu(
              {{tensor::WeightFormat::kFp8Row32, kTokens * kColumns, kRowCodes, codes.data(), scales.data()},
               ids.data(),
               e.data(),
               kTokens,
               kColumns},
              {kernels::best_cpu_target(), &serial});
        });
  }
  io_uring_queue_exit(&ring);
  if (!read) return state.SkipWithError("a read failed");
  state.counters["reads_s"] =
      benchmark::Counter(static_cast<double>(2 * kIds), benchmark::Counter::kIsIterationInvariantRate);
  rounds.report(state, 0.8);
  state.counters["best_us_a_token"] = state.counters["best_ms"] * 1e3 * 2 / static_cast<double>(kTokens);  // two tables
}

#else

void gather_from_disk(benchmark::State& state) { state.SkipWithError("n/a: built without liburing"); }

#endif

constexpr uint64_t kRamRows = uint64_t{2} << 20;

void gather_from_ram(benchmark::State& state) {
  HostMapping codes = HostMapping::create(kRamRows * kRowCodes).value();
  HostMapping scales = HostMapping::create(kRamRows * kRowCodes / 32).value();
  std::mt19937_64 random(3);
  for (uint64_t i = 0; i < codes.size(); i += 8) {
    const uint64_t word = random() & 0x7777777777777777u;  // no NaN
    std::memcpy(codes.data() + i, &word, 8);
  }
  std::memset(scales.data(), 127, scales.size());
  constexpr size_t kIdsOfTokens = 2 * kIds;
  std::vector<int64_t> ids(kIdsOfTokens);
  std::vector<uint16_t> e(kIdsOfTokens * kRowCodes);
  std::vector<std::byte> copy(kIdsOfTokens * (kRowCodes + kRowCodes / 32));
  SerialParallel serial;
  PairedRounds rounds;
  for (auto _ : state) {
    for (int64_t& id : ids) id = static_cast<int64_t>(random() % kRamRows);
    const std::vector<int64_t> others = [&] {
      std::vector<int64_t> rows(kIdsOfTokens);
      for (int64_t& id : rows) id = static_cast<int64_t>(random() % kRamRows);
      return rows;
    }();
    rounds.run(
        state,
        [&] {
          std::byte* to = copy.data();
          for (const int64_t id : others) {
            std::memcpy(to, codes.data() + static_cast<uint64_t>(id) * kRowCodes, kRowCodes);
            std::memcpy(to + kRowCodes, scales.data() + static_cast<uint64_t>(id) * (kRowCodes / 32), kRowCodes / 32);
            to += kRowCodes + kRowCodes / 32;
          }
          benchmark::ClobberMemory();
        },
        [&] {
          kernels::engram_gather_cpu({{tensor::WeightFormat::kFp8Row32, static_cast<int64_t>(kRamRows), kRowCodes,
                                       codes.data(), scales.data()},
                                      ids.data(),
                                      e.data(),
                                      2 * kTokens,
                                      kColumns},
                                     {kernels::best_cpu_target(), &serial});
          benchmark::ClobberMemory();
        });
  }
  rounds.report(state, 0.5);
  state.counters["best_ns_a_token"] = state.counters["best_ms"] * 1e6 / static_cast<double>(kTokens);
}
BENCHMARK(gather_from_ram)
    ->Name("BM_EngramGather/ram")
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(200);

BENCHMARK(gather_from_disk)
    ->Name("BM_EngramGather/disk")
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(30);

}  // namespace
}  // namespace dsv41::bench
