// libFuzzer entry: any bytes as a snapshot end in a failure of the format's codes, or in sections that can be written again
// and then read as they were. Each input is used three times: as it is; with its checksums made to hold; and with the
// sizes of its tail and its magics made to fit as well, so that the fuzzer meets the checks behind them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "snapshot/snapshot_reader.h"
#include "snapshot/snapshot_surgery.h"
#include "snapshot/snapshot_writer.h"

namespace {

using namespace dsv41;
using snapshot::Section;
using snapshot::SnapshotReader;
using snapshot::SnapshotWriter;
using snapshot::VerifyLevel;
using snapshot::VerifyReport;
using Sections = std::vector<std::vector<std::byte>>;

// A few kilobytes of zstd may stand for 16 MiB a chunk: the fuzzer's time is better spent on others.
constexpr uint64_t kMaxRawBytes = 4 << 20;

void require(bool holds) {
  if (!holds) std::abort();
}

bool is_of_the_format(Code code) {
  return code == Code::kNOT_SNAPSHOT || code == Code::kFORMAT_VERSION || code == Code::kIO_SHORT ||
         code == Code::kCHECKSUM || code == Code::kCORRUPT || code == Code::kCODEC_UNAVAILABLE;
}

// Every chunk once, those that are damaged too: 0 is none of them.
uint64_t n_unreadable(SnapshotReader& reader, Sections* raw) {
  uint64_t n = 0;
  for (const Section& section : reader.sections()) {
    raw->emplace_back(section.raw_bytes);
    std::span<std::byte> rest = raw->back();
    for (uint32_t i = 0; i < section.n_chunks; ++i) {
      const uint64_t size = reader.chunk_raw_bytes(section, i);
      const Status read = reader.read_chunk(section, i, rest.first(size));
      require(read.ok() || read.code() == Code::kCHECKSUM || read.code() == Code::kCORRUPT);
      n += !read.ok();
      rest = rest.subspan(size);
    }
    require(rest.empty());
  }
  return n;
}

std::vector<std::byte> written_again(const SnapshotReader& reader, const Sections& raw) {
  VectorSink sink;
  Result<SnapshotWriter> writer = SnapshotWriter::begin(sink, reader.layout_id());
  require(writer.ok());
  for (size_t i = 0; i < raw.size(); ++i) {
    const Section& section = reader.sections()[i];
    snapshot::SectionOptions options;
    options.type = section.type;
    options.id = section.id;
    options.critical = section.critical;
    options.chunk_bytes = section.chunk_bytes;
    options.try_zstd = section.codec == Codec::kZstd;
    require(writer->add_section(options, raw[i]).ok());
  }
  require(writer->finish().ok());
  return std::move(sink.bytes());
}

void use(std::span<const std::byte> file) {
  Result<SnapshotReader> reader = SnapshotReader::open(std::make_shared<SpanSource>(file));
  if (!reader.ok()) {
    require(is_of_the_format(reader.status().code()));
    return;
  }
  require(reader->total_bytes() == file.size());
  uint64_t raw_bytes = 0;
  for (const Section& section : reader->sections()) raw_bytes += section.raw_bytes;
  const Result<VerifyReport> chunks = reader->verify(VerifyLevel::kChunks);
  require(chunks.ok());
  if (raw_bytes > kMaxRawBytes) return;
  Sections raw;
  const uint64_t n_bad = n_unreadable(reader.value(), &raw);
  const Result<VerifyReport> report = reader->verify(VerifyLevel::kDecode);
  require(report.ok());
  require(report->n_bad_chunks >= chunks->n_bad_chunks && report->n_bad_padding == chunks->n_bad_padding);
  require((n_bad == 0) == (report->n_bad_chunks == 0 && report->n_bad_padding == 0));
  if (n_bad != 0) return;
  const std::vector<std::byte> again = written_again(reader.value(), raw);
  Result<SnapshotReader> copy = SnapshotReader::open(std::make_shared<SpanSource>(again));
  require(copy.ok());
  require(copy->verify(VerifyLevel::kDecode).value().ok());
  require(copy->sections().size() == raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    Result<std::vector<std::byte>> section = copy->read_section(copy->sections()[i], raw[i].size());
    require(section.ok() && section.value() == raw[i]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> given = std::as_bytes(std::span(data, size));
  use(given);
  std::vector<std::byte> file(given.begin(), given.end());
  test::repair(file);
  use(file);
  file.assign(given.begin(), given.end());
  test::fit_sizes(file);
  test::repair(file);
  use(file);
  return 0;
}
