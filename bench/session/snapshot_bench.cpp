// Snapshots at the released model's geometry: 890 bytes of KV a token, 2.9 MB of window rows. The records are those of
// normal values, quantised group by group: scales and codes as plausible as random data can be, and no more compressible
// (bench.md section 3.1; nothing is known about the entropy of real KV). Sessions of that model do not fit here: what is
// timed is their files' sections, their pages in a pool, and the chain of their tokens. BM_ResumeExact is a session of nano.
//
// Each line runs its reference in turn with it (paired_rounds.h):
//
//   BM_SnapshotSave     pages to a file past the page cache; the same number of bytes written so in pieces of 4 MiB
//   BM_SnapshotEncode   pages to memory; the same bytes copied (ratio), and zstd 1 over whole records (ratio_zstd_rows)
//   BM_SnapshotRestore  a file to pages in the pool's tree, tokens checked against their chain. cold: nothing of it in the page
//                       cache; the same file read past the cache in pieces of 4 MiB. warm: all of it there; as many bytes copied
//   BM_SnapshotRatio    stored sizes against what an order-0 coder of whole records could reach
//   BM_ResumeExact      a full file of nano in memory to the next token; a decode in a live session
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "backend/registry.h"
#include "kernels/quant/act_quant.h"
#include "kernels/quant/fp4_quant.h"
#include "paired_rounds.h"
#include "session/page_restore.h"
#include "session/session_snapshot.h"
#include "session/snapshot_planes.h"

namespace dsv41::bench {
namespace {

using kv::kPageTokens;
using snapshot::SectionType;

constexpr int64_t kMaxTokens = int64_t{1} << 20;
constexpr int64_t kEncoderLayers = 20;
constexpr int64_t kRounds = 8;  // however short the time that a line is given
constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr std::align_val_t kPieceAlignment{4096};

// ---- Records

// Groups of quantised normal values, to fill records with: a code group and its scale each.
struct Groups {
  size_t code_bytes = 0;
  std::vector<uint8_t> codes, scales;
  size_t size() const { return scales.size(); }
};

constexpr int64_t kGroups = 1 << 16;

std::vector<uint16_t> normal_bf16(size_t n) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(n);
  for (uint16_t& value : values) {
    const float drawn = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &drawn, sizeof bits);
    value = static_cast<uint16_t>(bits >> 16);
  }
  return values;
}

Groups fp4_groups(kernels::Fp4Format format, int64_t group) {
  constexpr int64_t kDim = 512;
  const int64_t n_rows = kGroups * group / kDim;
  const std::vector<uint16_t> values = normal_bf16(static_cast<size_t>(kGroups * group));
  Groups groups{static_cast<size_t>(group / 2), std::vector<uint8_t>(static_cast<size_t>(kGroups * group / 2)),
                std::vector<uint8_t>(kGroups)};
  kernels::fp4_quant_ref(
      {format, values.data(), kDim, groups.codes.data(), kDim / 2, groups.scales.data(), kDim / group, n_rows, kDim});
  return groups;
}

Groups fp8_groups() {
  constexpr int64_t kDim = 512, kGroup = 32;
  const std::vector<uint16_t> values = normal_bf16(static_cast<size_t>(kGroups * kGroup));
  Groups groups{kGroup, std::vector<uint8_t>(static_cast<size_t>(kGroups * kGroup)), std::vector<uint8_t>(kGroups)};
  kernels::act_quant_ref({values.data(), kDim, groups.codes.data(), kDim, groups.scales.data(), kDim / kGroup,
                          kGroups * kGroup / kDim, kDim});
  return groups;
}

void fill(const Groups& groups, std::byte* codes, std::byte* scales, size_t n_groups, std::mt19937_64& random) {
  for (size_t i = 0; i < n_groups; ++i) {
    const size_t g = random() % groups.size();
    std::memcpy(codes + i * groups.code_bytes, groups.codes.data() + g * groups.code_bytes, groups.code_bytes);
    scales[i] = static_cast<std::byte>(groups.scales[g]);
  }
}

// ---- A session's memory

// A pool with a chain of kMaxTokens tokens, and a second one to restore into; window rows in a sequence of their own.
struct World {
  std::unique_ptr<kv::PagePool> pool, target;
  std::unique_ptr<backend::Queue> queue;
  std::vector<kv::PageId> pages;
  std::vector<int32_t> ids;
  kv::KvRef windows;  // of kPageTokens * 2 - 1 tokens
  std::string fault;

  World() {
    const Status status = make();
    if (!status.ok()) fault = status.message();
  }

  const kv::PageGeometry& geometry() const { return pool->geometry(); }
  std::span<const kv::PageId> pages_of(int64_t n_tokens) const {
    return std::span(pages).first(static_cast<size_t>(n_tokens / kPageTokens));
  }

 private:
  Status make() {
    const kv::KvShape released = {{{2, 2}, {8, 2}, {14, 2}, {20, 1}}, 512, 128, 40, 128};
    DSV41_TRY_ASSIGN(const kv::PageGeometry geometry, kv::PageGeometry::compute(released));
    DSV41_TRY_ASSIGN(const std::shared_ptr<backend::Backend> backend, backend::create_backend("cpu", {}));
    kv::PagePoolOptions options;
    options.n_global_pages = kMaxTokens / kPageTokens + 4;
    options.n_window_slots = 2;
    DSV41_TRY_ASSIGN(pool, kv::PagePool::create(backend, geometry, options));
    DSV41_TRY_ASSIGN(target, kv::PagePool::create(backend, geometry, options));
    // Memory that the system has given already: what a pool's first use costs is not a restore's.
    std::memset(target->arena(), 0, target->stats().arena_bytes);
    DSV41_TRY_ASSIGN(queue, backend->create_queue());
    ids.resize(kMaxTokens);
    std::mt19937_64 random(2);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 129280);
    DSV41_TRY_ASSIGN(kv::Reservation reserved, pool->reserve(kMaxTokens / kPageTokens, 0));
    reserved.take_pages(&pages);
    const Groups main = fp4_groups(kernels::Fp4Format::kMain, 16), index = fp4_groups(kernels::Fp4Format::kIndex, 32);
    for (kv::PageId page : pages) {
      for (const kv::PageField& field : geometry.fields()) {
        std::byte* const codes = pool->arena() + pool->page_offset(page) + field.offset;
        const size_t n_codes = size_t{field.entries} * field.code_bytes;
        fill(field.is_index ? index : main, codes, codes + n_codes, size_t{field.entries} * field.scale_bytes, random);
      }
    }
    return make_windows(random);
  }
  Status make_windows(std::mt19937_64& random) {
    constexpr int64_t kEnd = 2 * kPageTokens - 1;
    windows = kv::KvRef::create(*pool, pool->root({}), kEnd);
    DSV41_TRY(windows.make_writable({0, kEnd}, *queue));
    const Groups fp8 = fp8_groups();
    const std::vector<uint64_t> offsets = kv::window_page_offsets(*windows);
    for (int64_t layer = 0; layer < geometry().shape().n_window_layers; ++layer) {
      const tensor::WindowRing ring = geometry().ring(layer, pool->arena(), offsets.data());
      for (int64_t position = 0; position < ring.capacity; ++position) {
        fill(fp8, ring.row(position), ring.row(position) + 512, 16, random);
      }
    }
    std::memset(windows->all_open_rows(), 0, windows->open_rows_bytes());
    return Status();
  }
};

World& world() {
  static World world;
  return world;
}

// ---- Writing a file of n tokens: what SavePlan writes, without the session

session::SnapshotIdentity identity_of(int64_t n_tokens, const Sha256Digest& chain) {
  session::SnapshotIdentity identity;
  identity.kind = session::SnapshotKind::kFull;
  identity.n_tokens = n_tokens;
  identity.chain = chain;
  identity.numeric_class = "cpu";
  return identity;
}

Status write_file(ByteSink& sink, int64_t n_tokens, std::vector<snapshot::Section>* sections) {
  World& w = world();
  const auto options = [](SectionType type) { return session::section_options(type, 0, true, kDefaultZstdLevel); };
  const std::span<const int32_t> ids = std::span(w.ids).first(static_cast<size_t>(n_tokens));
  const std::vector<Sha256Digest> chain = session::token_chain({}, ids);
  DSV41_TRY_ASSIGN(snapshot::SnapshotWriter writer, snapshot::SnapshotWriter::begin(sink, w.geometry().layout_id()));
  DSV41_TRY(writer.add_section(options(SectionType::kIdentity),
                               session::encode_identity(identity_of(n_tokens, chain.back()))));
  DSV41_TRY(writer.add_section(options(SectionType::kTokens), std::as_bytes(ids)));
  DSV41_TRY(writer.add_section(options(SectionType::kTokenChain), std::as_bytes(std::span(chain))));
  DSV41_TRY(session::write_pages(writer, *w.pool, w.pages_of(n_tokens), n_tokens, {}, *w.queue));
  const int64_t end = 2 * kPageTokens - 1, low = end - w.geometry().window_rows();
  DSV41_TRY(
      session::write_window_rows(writer, session::kEncoderRows, *w.windows, 0, kEncoderLayers, low, end, {}, *w.queue));
  DSV41_TRY(session::write_window_rows(writer, session::kDecoderRows, *w.windows, kEncoderLayers, 2 * kEncoderLayers,
                                       low, end, {}, *w.queue));
  DSV41_TRY(session::write_open_rows(writer, *w.windows, session::first_open_row(0, end), end, {}, *w.queue));
  DSV41_TRY(writer.finish());
  if (sections) sections->assign(writer.sections().begin(), writer.sections().end());
  return Status();
}

// A file in the folder for temporary ones, gone at the end.
struct TemporaryFile {
  explicit TemporaryFile(const char* name) : path("/tmp/dsv41-bench-" + std::to_string(::getpid()) + "-" + name) {}
  ~TemporaryFile() { ::unlink(path.c_str()); }
  const std::string path;
};

Status save_file(const std::string& path, int64_t n_tokens) {
  DSV41_TRY_ASSIGN(const std::unique_ptr<ByteSink> sink,
                   create_file_sink(system_file_system(), path, Durability::kNone));
  DSV41_TRY(write_file(*sink, n_tokens, nullptr));
  return sink->commit();
}

// ---- References: the same bytes, past the page cache, 4 MiB at a time

struct Piece {
  Piece() : bytes(static_cast<std::byte*>(::operator new(kPieceBytes, kPieceAlignment))) {
    std::memset(bytes, 7, kPieceBytes);
  }
  ~Piece() { ::operator delete(bytes, kPieceAlignment); }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  std::byte* const bytes;
};

bool raw_write(const std::string& path, uint64_t n_bytes, const Piece& piece) {
  ::unlink(path.c_str());
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
  if (file < 0) return false;
  bool ok = ::posix_fallocate(file, 0, static_cast<off_t>(n_bytes)) == 0;
  for (uint64_t at = 0; ok && at < n_bytes; at += kPieceBytes) {
    const size_t n = std::min<uint64_t>(kPieceBytes, (n_bytes - at + 4095) / 4096 * 4096);
    ok = ::pwrite(file, piece.bytes, n, static_cast<off_t>(at)) == static_cast<ssize_t>(n);
  }
  ::close(file);
  return ok;
}

bool raw_read(const std::string& path, uint64_t n_bytes, const Piece& piece) {
  const int file = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (file < 0) return false;
  bool ok = true;
  for (uint64_t at = 0; ok && at < n_bytes; at += kPieceBytes) {
    ok = ::pread(file, piece.bytes, kPieceBytes, static_cast<off_t>(at)) > 0;
  }
  ::close(file);
  return ok;
}

uint64_t file_bytes(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
}

void drop_from_cache(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  ::fsync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

// A restore does not do it by itself: it reads past the cache what that lacks.
bool fill_cache(const std::string& path, const Piece& piece) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ssize_t n = file < 0 ? -1 : 1;
  while (n > 0) n = ::read(file, piece.bytes, kPieceBytes);
  if (file >= 0) ::close(file);
  return n == 0;
}

// Of all threads: a save has two.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// ---- Save

void BM_SnapshotSave(benchmark::State& state) {
  if (!world().fault.empty()) return state.SkipWithError(world().fault.c_str());
  const TemporaryFile saved("save"), raw("raw");
  const Piece piece;
  if (!save_file(saved.path, state.range(0)).ok()) return state.SkipWithError("cannot save");
  const uint64_t n_bytes = file_bytes(saved.path);
  PairedRounds rounds;
  bool ok = true;
  double cpu = 0;
  for (auto _ : state) {
    rounds.run(
        state, [&] { ok = ok && raw_write(raw.path, n_bytes, piece); },
        [&] {
          const double before = cpu_seconds();
          ok = ok && save_file(saved.path, state.range(0)).ok();
          cpu += cpu_seconds() - before;
        });
  }
  if (!ok) return state.SkipWithError("cannot write to /tmp past the page cache");
  rounds.report(state, 0.9);
  state.counters["cpu_s_per_GB"] = cpu / static_cast<double>(state.iterations()) / static_cast<double>(n_bytes) * 1e9;
  state.SetBytesProcessed(static_cast<int64_t>(n_bytes) * state.iterations());
}
BENCHMARK(BM_SnapshotSave)->Arg(131072)->Iterations(kRounds)->UseManualTime()->Unit(benchmark::kMillisecond);

// ---- Encode

// Into memory that is there already.
class MemorySink final : public ByteSink {
 public:
  explicit MemorySink(std::vector<std::byte>& memory) : memory_(memory) {}
  Status write(std::span<const std::byte> bytes) override {
    std::memcpy(memory_.data() + at_, bytes.data(), bytes.size());
    at_ += bytes.size();
    return Status();
  }
  Status commit() override { return Status(); }
  void abandon() override {}

 private:
  std::vector<std::byte>& memory_;
  size_t at_ = 0;
};

void BM_SnapshotEncode(benchmark::State& state) {
  World& w = world();
  if (!w.fault.empty()) return state.SkipWithError(w.fault.c_str());
  const int64_t n_tokens = state.range(0);
  const uint64_t raw_bytes = static_cast<uint64_t>(n_tokens / kPageTokens) * w.geometry().payload_bytes();
  std::vector<std::byte> memory(raw_bytes + (raw_bytes >> 4) + (1 << 20)), copy(raw_bytes);
  // Whole records behind each other, as engines that compress their KV without regard to its planes have them.
  std::vector<std::byte> rows;
  rows.reserve(raw_bytes);
  for (kv::PageId page : w.pages_of(n_tokens)) {
    const uint64_t offset = w.pool->page_offset(page);
    for (const kv::PageField& field : w.geometry().fields()) {
      const tensor::PagedField view = w.geometry().view(field, w.pool->arena(), &offset);
      for (int64_t entry = 0; entry < field.entries; ++entry) {
        rows.insert(rows.end(), view.codes(entry), view.codes(entry) + view.code_bytes);
        rows.insert(rows.end(), view.scales(entry), view.scales(entry) + view.scale_bytes);
      }
    }
  }
  bool ok = true;
  const auto encode = [&] {
    MemorySink sink(memory);
    auto writer = snapshot::SnapshotWriter::begin(sink, {});
    ok = ok && writer.ok() &&
         session::write_pages(writer.value(), *w.pool, w.pages_of(n_tokens), n_tokens, {}, *w.queue).ok() &&
         writer.value().finish().ok();
  };
  ChunkCodec codec;
  const auto zstd_rows = [&] {
    constexpr size_t kChunk = 256 << 10;
    for (size_t at = 0; at < rows.size(); at += kChunk) {
      const auto chunk = std::span(rows).subspan(at, std::min(kChunk, rows.size() - at));
      ok = ok && codec.encode(chunk, true).ok();
    }
  };
  PairedRounds against_copy, against_zstd;
  for (auto _ : state) {
    against_zstd.run(state, zstd_rows, encode);
    against_copy.run(
        state,
        [&] {
          for (size_t i = 0; i < w.pages_of(n_tokens).size(); ++i) {
            std::memcpy(copy.data() + i * w.geometry().payload_bytes(),
                        w.pool->arena() + w.pool->page_offset(w.pages[i]), w.geometry().payload_bytes());
          }
          benchmark::ClobberMemory();
        },
        encode);
  }
  if (!ok) return state.SkipWithError("cannot encode");
  against_zstd.report(state, 3);
  state.counters["ratio_zstd_rows"] = state.counters["ratio"];
  state.counters["target_zstd_rows"] = 3;
  against_copy.report(state, 0.25);
  state.SetBytesProcessed(static_cast<int64_t>(raw_bytes) * state.iterations());
}
BENCHMARK(BM_SnapshotEncode)->Arg(131072)->Iterations(kRounds)->UseManualTime()->Unit(benchmark::kMillisecond);

// ---- Restore

// What Restore does, without the session: tokens, chain, pages, window rows. Under another root each time, so that the pages
// of the rounds before are evicted for it.
Status restore_file(const std::string& path, uint64_t round) {
  World& w = world();
  DSV41_TRY_ASSIGN(std::unique_ptr<ByteSource> source, open_file_source(system_file_system(), path));
  DSV41_TRY_ASSIGN(snapshot::SnapshotReader reader, snapshot::SnapshotReader::open(std::move(source)));
  const snapshot::Section* const head = reader.find(SectionType::kIdentity);
  DSV41_TRY_ASSIGN(const std::vector<std::byte> identity_bytes, reader.read_any(*head, session::kMaxIdentityBytes));
  DSV41_TRY_ASSIGN(const session::SnapshotIdentity identity, session::decode_identity(identity_bytes));
  const uint64_t n_tokens = static_cast<uint64_t>(identity.n_tokens);
  std::vector<int32_t> ids(n_tokens);
  DSV41_TRY_ASSIGN(session::SectionStream tokens,
                   session::SectionStream::open(reader, SectionType::kTokens, n_tokens * sizeof(int32_t)));
  DSV41_TRY(tokens.read(std::as_writable_bytes(std::span(ids))));
  if (session::token_chain({}, ids).back() != identity.chain) return Status(Code::kCORRUPT, "other tokens");
  const kv::PrefixRootRef root = w.target->root({{}, {}, std::as_bytes(std::span(&round, 1))});
  DSV41_TRY_ASSIGN(session::PlaneLoader planes, session::PlaneLoader::open(reader, w.geometry(), identity.n_tokens));
  DSV41_TRY_ASSIGN(session::ChainLoader loader, session::ChainLoader::create(*w.target, root, {}, ids));
  const session::ProvenanceRange exact{0, identity.n_tokens, nullptr};
  DSV41_TRY(session::restore_pages(planes, loader, {&exact, 1}, {}, nullptr));
  std::vector<std::byte> rows(static_cast<size_t>(kEncoderLayers * w.geometry().window_rows()) *
                              w.geometry().window_row_bytes());
  for (session::RowSections half : {session::kEncoderRows, session::kDecoderRows}) {
    DSV41_TRY(session::read_window_rows(reader, half, w.geometry(), kEncoderLayers, w.geometry().window_rows(), rows));
  }
  return Status();
}

void restore(benchmark::State& state, bool cold) {
  World& w = world();
  if (!w.fault.empty()) return state.SkipWithError(w.fault.c_str());
  const TemporaryFile file("restore");
  const Piece piece;
  if (!save_file(file.path, state.range(0)).ok()) return state.SkipWithError("cannot save");
  const uint64_t n_bytes = file_bytes(file.path);
  std::vector<std::byte> from(cold ? 0 : n_bytes, std::byte{3}), to(cold ? 0 : n_bytes, std::byte{4});
  static uint64_t round = 0;
  bool ok = restore_file(file.path, ++round).ok() && (cold || fill_cache(file.path, piece));
  PairedRounds rounds;
  for (auto _ : state) {
    if (cold) drop_from_cache(file.path);
    rounds.run(
        state,
        [&] {
          if (cold) {
            ok = ok && raw_read(file.path, n_bytes, piece);
          } else {
            std::memcpy(to.data(), from.data(), n_bytes);
            benchmark::ClobberMemory();
          }
        },
        [&] { ok = ok && restore_file(file.path, ++round).ok(); });
  }
  if (!ok) return state.SkipWithError("cannot restore");
  rounds.report(state, cold ? 0.9 : 0.5);
  state.SetBytesProcessed(static_cast<int64_t>(n_bytes) * state.iterations());
}
BENCHMARK_CAPTURE(restore, cold, true)
    ->Name("BM_SnapshotRestore/cold")
    ->Arg(131072)
    ->Arg(kMaxTokens)
    ->Iterations(kRounds)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(restore, warm, false)
    ->Name("BM_SnapshotRestore/warm")
    ->Arg(131072)
    ->Arg(kMaxTokens)
    ->Iterations(kRounds)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

// ---- Sizes

// Bits of a symbol by its frequency.
double entropy(std::span<const uint64_t> counts) {
  double total = 0, bits = 0;
  for (uint64_t n : counts) total += static_cast<double>(n);
  for (uint64_t n : counts) {
    if (n) bits -= static_cast<double>(n) * std::log2(static_cast<double>(n) / total);
  }
  return bits / total;
}

// Bytes that an order-0 coder takes for codes (nibbles or bytes) and scales, each by itself.
class Order0 {
 public:
  explicit Order0(bool nibbles) : nibbles_(nibbles) {}
  void add_codes(const std::byte* bytes, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const uint8_t byte = static_cast<uint8_t>(bytes[i]);
      if (nibbles_) {
        ++codes_[byte & 15];
        ++codes_[byte >> 4];
      } else {
        ++codes_[byte];
      }
    }
    n_codes_ += nibbles_ ? 2 * n : n;
  }
  void add_scales(const std::byte* bytes, size_t n) {
    for (size_t i = 0; i < n; ++i) ++scales_[static_cast<uint8_t>(bytes[i])];
    n_scales_ += n;
  }
  double limit_bytes() const {
    return (static_cast<double>(n_codes_) * entropy(codes_) + static_cast<double>(n_scales_) * entropy(scales_)) / 8;
  }

 private:
  const bool nibbles_;
  std::array<uint64_t, 256> codes_ = {}, scales_ = {};
  size_t n_codes_ = 0, n_scales_ = 0;
};

void BM_SnapshotRatio(benchmark::State& state) {
  World& w = world();
  if (!w.fault.empty()) return state.SkipWithError(w.fault.c_str());
  const int64_t n_tokens = state.range(0);
  CountingSink sink;
  std::vector<snapshot::Section> sections;
  for (auto _ : state) {
    sink = CountingSink();
    if (!write_file(sink, n_tokens, &sections).ok()) return state.SkipWithError("cannot write");
  }
  Order0 main(true), index(true), window(false);
  for (kv::PageId page : w.pages_of(n_tokens)) {
    for (const kv::PageField& field : w.geometry().fields()) {
      const std::byte* const codes = w.pool->arena() + w.pool->page_offset(page) + field.offset;
      const size_t n_codes = size_t{field.entries} * field.code_bytes;
      (field.is_index ? index : main).add_codes(codes, n_codes);
      (field.is_index ? index : main).add_scales(codes + n_codes, size_t{field.entries} * field.scale_bytes);
    }
  }
  const std::vector<uint64_t> offsets = kv::window_page_offsets(*w.windows);
  for (int64_t layer = 0; layer < w.geometry().shape().n_window_layers; ++layer) {
    const tensor::WindowRing ring = w.geometry().ring(layer, w.pool->arena(), offsets.data());
    for (int64_t position = 0; position < ring.capacity; ++position) {
      window.add_codes(ring.row(position), 512);
      window.add_scales(ring.row(position) + 512, 16);
    }
  }
  const auto stored = [&](std::initializer_list<SectionType> types) {
    double bytes = 0;
    for (const snapshot::Section& section : sections) {
      if (std::ranges::find(types, section.type) != types.end()) bytes += static_cast<double>(section.stored_bytes);
    }
    return bytes;
  };
  state.counters["main_of_limit"] = main.limit_bytes() / stored({SectionType::kMainCodes, SectionType::kMainScales});
  state.counters["index_of_limit"] =
      index.limit_bytes() / stored({SectionType::kIndexCodes, SectionType::kIndexScales});
  state.counters["window_of_limit"] =
      window.limit_bytes() / stored({SectionType::kEncoderCodes, SectionType::kEncoderScales,
                                     SectionType::kDecoderCodes, SectionType::kDecoderScales});
  state.counters["target_main"] = 0.98;
  state.counters["target_index"] = 0.94;
  state.counters["target_window"] = 0.97;
  state.counters["bytes_per_token"] =
      stored({SectionType::kTokens, SectionType::kTokenChain, SectionType::kMainCodes, SectionType::kMainScales,
              SectionType::kIndexCodes, SectionType::kIndexScales}) /
      static_cast<double>(n_tokens);
}
BENCHMARK(BM_SnapshotRatio)->Arg(131072)->Iterations(1)->Unit(benchmark::kMillisecond);

// ---- The first token behind a restore

void BM_ResumeExact(benchmark::State& state) {
  const auto fail = [&](const Status& status) { state.SkipWithError(std::string(status.message()).c_str()); };
  Result<std::shared_ptr<backend::Backend>> backend = backend::create_backend("cpu", {});
  if (!backend.ok()) return fail(backend.status());
  session::ModelOptions model_options;
  model_options.folder = DSV41_SOURCE_DIR "/samples/nano";
  model_options.backend = backend.value();
  const auto model = session::LoadedModel::open(model_options);
  if (!model.ok()) return fail(model.status());
  session::PoolOptions pool_options;
  pool_options.tokens = 16384;
  pool_options.prefix_cache = pool_options.window_cache = false;
  const auto pool = session::Pool::create(model.value(), pool_options);
  if (!pool.ok()) return fail(pool.status());
  session::RestoreOptions options;
  options.session.max_tokens = 16384;
  auto live = session::Session::create(pool.value(), options.session);
  std::mt19937 random(1);
  std::vector<int32_t> ids(static_cast<size_t>(state.range(0)));
  for (int32_t& id : ids) id = static_cast<int32_t>(300 + random() % 3000);
  const Status filled = live.value()->prefill(ids, {}, nullptr);
  if (!filled.ok()) return fail(filled);
  VectorSink file;
  session::SnapshotOptions save_options;
  save_options.kind = session::SnapshotKind::kFull;
  const Status saved = session::save_snapshot(*live.value(), file, save_options, nullptr);
  if (!saved.ok()) return fail(saved);
  PairedRounds rounds;
  bool ok = true;
  std::unique_ptr<session::Session> restored;
  uint64_t restore_ns = UINT64_MAX;  // the best: what is not the decode behind it
  for (auto _ : state) {
    rounds.run(
        state, [&] { ok = ok && live.value()->decode(301, {}, nullptr).ok(); },
        [&] {
          const uint64_t begin_ns = monotonic_ns();
          auto opened = session::SessionSnapshot::open(std::make_shared<SpanSource>(file.bytes()));
          if (!opened.ok()) {
            ok = false;
            return;
          }
          auto session = opened.value()->restore(pool.value(), options, nullptr);
          restore_ns = std::min(restore_ns, monotonic_ns() - begin_ns);
          ok = ok && session.ok() && session.value()->decode(301, {}, nullptr).ok();
          if (ok) restored = std::move(session).value();
        });
    if (live.value()->position() > 4 * state.range(0)) (void)live.value()->truncate(state.range(0));
  }
  if (!ok) return state.SkipWithError("cannot restore or decode");
  rounds.report(state, 1 / 1.3);
  state.counters["steps"] = 1 / state.counters["ratio"];
  state.counters["target_steps"] = 1.3;
  state.counters["restore_ms"] = static_cast<double>(restore_ns) * 1e-6;
}
BENCHMARK(BM_ResumeExact)->Arg(1000)->Iterations(10 * kRounds)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsv41::bench
