#include "session/codec_totals.h"

#include "session/snapshot_planes.h"
#include "store/record.h"

namespace dsv41::bench {
namespace {

constexpr size_t kPageIds = static_cast<size_t>(kv::kPageTokens);

Status write_file(const DataSet& set, const TriedPlanes& tried, Totals* totals) {
  CountingSink sink;
  DSV41_TRY_ASSIGN(snapshot::SnapshotWriter writer, snapshot::SnapshotWriter::begin(sink, {}));
  const auto options = [](snapshot::SectionType type, uint64_t unit_bytes) {
    return session::section_options(type, unit_bytes, true, kDefaultZstdLevel);
  };
  session::SnapshotIdentity identity;
  identity.n_tokens = static_cast<int64_t>(set.tokens.size());
  identity.numeric_class = "cpu/avx512/1";
  identity.writer_version = "0.1.0";
  const std::vector<std::byte> encoded_identity = session::encode_identity(identity);
  DSV41_TRY(writer.add_section(options(snapshot::SectionType::kIdentity, 0), encoded_identity));
  DSV41_TRY(writer.add_section(options(snapshot::SectionType::kTokens, 0), std::as_bytes(std::span(set.tokens))));
  totals->ids = static_cast<double>(writer.sections().back().stored_bytes);
  const std::vector<Sha256Digest> chain = session::token_chain({}, set.tokens);
  DSV41_TRY(writer.add_section(options(snapshot::SectionType::kTokenChain, 0), std::as_bytes(std::span(chain))));
  for (size_t kind = 0; kind < kPageKinds; ++kind) {
    const Plane& plane = set.planes[kind];
    snapshot::SectionOptions section = options(session::kPlaneSections[kind], plane.piece_bytes());
    section.try_zstd = tried[kind];
    DSV41_TRY(writer.begin_section(section));
    for (const std::vector<std::byte>& piece : plane.pieces) DSV41_TRY(writer.write(piece));
    DSV41_TRY(writer.end_section());
    const snapshot::Section& written = writer.sections().back();
    totals->file_share[kind] = static_cast<double>(written.stored_bytes) / static_cast<double>(written.raw_bytes);
  }
  session::ProvenanceRange all;
  all.end = identity.n_tokens;
  const std::vector<std::byte> provenance = session::encode_provenance(std::span(&all, 1));
  DSV41_TRY(writer.add_section(options(snapshot::SectionType::kProvenance, 0), provenance));
  DSV41_TRY(writer.finish());
  totals->file = static_cast<double>(writer.n_written());
  return Status();
}

// The record's bytes in a segment; adds what each plane takes in it to `stored`.
Result<uint64_t> write_record(const DataSet& set, size_t page, const TriedPlanes& tried, ChunkCodec& codec,
                              std::array<uint64_t, kPageKinds>* stored) {
  store::RecordDraft draft;
  draft.head.numeric_class = "cpu/avx512/1";
  const auto first_id = set.tokens.begin() + static_cast<ptrdiff_t>(page * kPageIds);
  draft.ids.assign(first_id, first_id + static_cast<ptrdiff_t>(kPageIds));
  for (size_t kind = 0; kind < kPageKinds; ++kind) {
    const std::vector<std::byte>& piece = set.planes[kind].pieces[page];
    draft.planes.push_back({piece.size(), tried[kind]});
    draft.raw.insert(draft.raw.end(), piece.begin(), piece.end());
    DSV41_TRY_ASSIGN(const ChunkCodec::Encoded encoded, codec.encode(piece, tried[kind]));
    (*stored)[kind] += encoded.bytes.size();
  }
  DSV41_TRY_ASSIGN(const std::vector<std::byte> record, store::encode_record(&draft, 0, kDefaultZstdLevel, codec));
  const uint64_t index_bytes = sizeof(uint64_t) + store::kRecordHeadBytes;
  return (record.size() + store::kRecordAlignment - 1) / store::kRecordAlignment * store::kRecordAlignment +
         index_bytes;
}

}  // namespace

Result<Totals> totals_of(const DataSet& set, const TriedPlanes& tried) {
  Totals totals;
  DSV41_TRY(write_file(set, tried, &totals));
  ChunkCodec codec;
  std::array<uint64_t, kPageKinds> stored = {};
  for (size_t page = 0; page < set.n_pages(); ++page) {
    DSV41_TRY_ASSIGN(const uint64_t bytes, write_record(set, page, tried, codec, &stored));
    totals.record += static_cast<double>(bytes);
  }
  const double n_tokens = static_cast<double>(set.tokens.size());
  totals.file /= n_tokens;
  totals.ids /= n_tokens;
  totals.record /= n_tokens;
  for (size_t kind = 0; kind < kPageKinds; ++kind) {
    totals.record_share[kind] =
        static_cast<double>(stored[kind]) / (set.bytes_per_token(static_cast<PlaneKind>(kind)) * n_tokens);
  }
  return totals;
}

}  // namespace dsv41::bench
