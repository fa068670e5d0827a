#include "session/snapshot_sections.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "base/wire.h"
#include "session/snapshot_planes.h"
#include "support/kv_pool_fixture.h"

namespace dsv41::test {
namespace {

using session::ProvenanceRange;
using session::SnapshotIdentity;
using session::SnapshotKind;
using session::SnapshotWindows;
using snapshot::SectionType;

using Bytes = std::vector<std::byte>;

SnapshotIdentity identity_of(int64_t n_tokens) {
  SnapshotIdentity identity;
  identity.kind = SnapshotKind::kFull;
  identity.n_tokens = n_tokens;
  identity.fingerprint.fill(1);
  identity.salt_digest.fill(2);
  identity.chain.fill(3);
  identity.saved_unix_ns = 1234567890;
  identity.numeric_class = "cpu/avx512/1";
  identity.writer_version = "0.1.0";
  return identity;
}

SnapshotWindows windows_of() {
  SnapshotWindows windows;
  windows.encoder = {40, 172, true};
  windows.decoder = {170, 180, true};
  windows.open_low = 294;
  windows.provenance = hits({128, 300});
  return windows;
}

template <class T>
Bytes changed(Bytes bytes, size_t at, T value) {
  REQUIRE(at + sizeof value <= bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

// Cut at every byte, and one byte longer.
template <class Decode>
void check_sizes_refused(const Bytes& bytes, Decode decode) {
  REQUIRE(decode(bytes) == Code::kOK);
  for (size_t n = 0; n < bytes.size(); ++n) {
    CAPTURE(n);
    CHECK(decode(Bytes(bytes.begin(), bytes.begin() + static_cast<int64_t>(n))) == Code::kCORRUPT);
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  CHECK(decode(longer) == Code::kCORRUPT);
}

TEST_SUITE("session/snapshot_sections") {
  TEST_CASE("an identity comes back as it was") {
    const SnapshotIdentity want = identity_of(300);
    const SnapshotIdentity got = session::decode_identity(session::encode_identity(want)).value();
    CHECK(got.kind == want.kind);
    CHECK(got.n_tokens == want.n_tokens);
    CHECK(got.fingerprint == want.fingerprint);
    CHECK(got.salt_digest == want.salt_digest);
    CHECK(got.chain == want.chain);
    CHECK(got.saved_unix_ns == want.saved_unix_ns);
    CHECK(got.numeric_class == want.numeric_class);
    CHECK(got.writer_version == want.writer_version);
  }

  TEST_CASE("identities that cannot be are refused") {
    const Bytes bytes = session::encode_identity(identity_of(300));
    const auto code = [](const Bytes& of) { return session::decode_identity(of).status().code(); };
    check_sizes_refused(bytes, code);
    CHECK(code(changed(bytes, 0, uint32_t{0})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 0, uint32_t{4})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 4, uint32_t{64})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 8, int64_t{-1})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 8, session::kMaxSnapshotTokens + 1)) == Code::kLIMIT);
    CHECK(code(changed(bytes, 120, uint32_t{0xffffffff})) == Code::kCORRUPT);
  }

  TEST_CASE("the head of window rows comes back as it was; an absent half has no rows") {
    const SnapshotWindows want = windows_of();
    const SnapshotWindows got = session::decode_windows(session::encode_windows(want, 301), 301).value();
    CHECK(got.encoder.floor == 40);
    CHECK(got.encoder.low == 172);
    CHECK(got.decoder.present);
    CHECK(got.decoder.low == 180);
    CHECK(got.open_low == 294);
    CHECK(kv::equal(got.provenance, want.provenance));
    SnapshotWindows half = want;
    half.decoder.present = false;
    half.provenance = nullptr;
    const SnapshotWindows alone = session::decode_windows(session::encode_windows(half, 301), 301).value();
    CHECK(!alone.decoder.present);
    CHECK(alone.decoder.floor == 0);
    CHECK(alone.decoder.low == 0);
    CHECK(kv::is_exact(alone.provenance));
  }

  TEST_CASE("open rows at or above the end are none") {
    SnapshotWindows windows = windows_of();
    windows.encoder = windows.decoder = {0, 0, true};
    windows.provenance = nullptr;
    windows.open_low = 20;
    for (int64_t n : {0, 1, 2, 9, 10}) {
      CAPTURE(n);
      CHECK(session::decode_windows(session::encode_windows(windows, n), n).value().open_low == n / 2 * 2);
    }
    CHECK(session::first_open_row(0, 0) >= 0);
    CHECK(session::first_open_row(0, 1) == 0);
    CHECK(session::first_open_row(0, 16) == 0);
    CHECK(session::first_open_row(0, 17) == 2);
    CHECK(session::first_open_row(10, 17) == 10);
  }

  TEST_CASE("heads of window rows that cannot be are refused") {
    const Bytes bytes = session::encode_windows(windows_of(), 301);
    const auto code = [](const Bytes& of) { return session::decode_windows(of, 301).status().code(); };
    check_sizes_refused(bytes, code);
    CHECK(session::decode_windows(bytes, 300).status().code() == Code::kCORRUPT);
    struct Row {
      const char* name;
      Bytes bytes;
    };
    const Row rows[] = {
        {"unknown flag", changed(bytes, 8, uint32_t{3})},
        {"no encoder", changed(changed(changed(bytes, 8, uint32_t{0}), 16, int64_t{0}), 24, int64_t{0})},
        {"negative floor", changed(bytes, 16, int64_t{-1})},
        {"floor above low", changed(bytes, 16, int64_t{173})},
        {"low above the end", changed(bytes, 24, int64_t{302})},
        {"rows of an absent decoder", changed(bytes, 12, uint32_t{0})},
        {"negative open row", changed(bytes, 48, int64_t{-2})},
        {"odd open row", changed(bytes, 48, int64_t{293})},
        {"open row above the end", changed(bytes, 48, int64_t{302})},
        {"more hits than bytes", changed(bytes, 56, uint32_t{0xffffffff})},
        {"hits that do not ascend", changed(bytes, 60, int64_t{300})},
        {"a hit at 0", changed(bytes, 60, int64_t{0})},
        {"a hit above the end", changed(bytes, 68, int64_t{302})},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      CHECK(code(row.bytes) == Code::kCORRUPT);
    }
    CHECK(code(changed(bytes, 68, int64_t{301})) == Code::kOK);
  }

  TEST_CASE("ranges of provenance come back as they were") {
    const std::vector<ProvenanceRange> want = {
        {0, 256, nullptr}, {256, 300, hits({250})}, {300, 301, hits({250, 300})}};
    const auto got = session::decode_provenance(session::encode_provenance(want), SnapshotKind::kFull, 301).value();
    REQUIRE(got.size() == 3);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(got[i].first == want[i].first);
      CHECK(got[i].end == want[i].end);
      CHECK(kv::equal(got[i].provenance, want[i].provenance));
    }
    CHECK(session::decode_provenance(session::encode_provenance({}), SnapshotKind::kPrefix, 0).value().empty());
  }

  TEST_CASE("a state may begin with its partly filled page") {
    const auto decode = [](const std::vector<ProvenanceRange>& ranges, SnapshotKind kind, int64_t n) {
      return session::decode_provenance(session::encode_provenance(ranges), kind, n).status().code();
    };
    CHECK(decode({{256, 301, nullptr}}, SnapshotKind::kState, 301) == Code::kOK);
    CHECK(decode({{0, 301, nullptr}}, SnapshotKind::kState, 301) == Code::kOK);
    CHECK(decode({}, SnapshotKind::kState, 256) == Code::kOK);
    CHECK(decode({}, SnapshotKind::kState, 301) == Code::kCORRUPT);
    CHECK(decode({{128, 301, nullptr}}, SnapshotKind::kState, 301) == Code::kCORRUPT);
    CHECK(decode({{256, 301, nullptr}}, SnapshotKind::kFull, 301) == Code::kCORRUPT);
    CHECK(decode({}, SnapshotKind::kFull, 256) == Code::kCORRUPT);
    CHECK(decode({}, SnapshotKind::kFull, 0) == Code::kOK);
    CHECK(decode({{0, 1, nullptr}}, SnapshotKind::kPrefix, 0) == Code::kCORRUPT);
  }

  TEST_CASE("ranges that cannot be are refused") {
    const Bytes bytes = session::encode_provenance(
        std::vector<ProvenanceRange>{{0, 256, nullptr}, {256, 300, hits({250})}, {300, 301, hits({250, 300})}});
    const auto code = [](const Bytes& of) {
      return session::decode_provenance(of, SnapshotKind::kFull, 301).status().code();
    };
    check_sizes_refused(bytes, code);
    CHECK(code(changed(bytes, 0, uint32_t{0xffffffff})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 4, int64_t{-1})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 4, int64_t{1})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 16, int64_t{0})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 16, int64_t{301})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 24, uint32_t{0x20000000})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 28, int64_t{0})) == Code::kCORRUPT);
    CHECK(code(changed(bytes, 28, int64_t{302})) == Code::kCORRUPT);
  }

  TEST_CASE("flags of sections are those of the format") {
    const SectionType optional[] = {SectionType::kTokenChain, SectionType::kDecoderCodes, SectionType::kDecoderScales,
                                    SectionType::kLogits,     SectionType::kSampler,      SectionType::kHost};
    const SectionType critical[] = {SectionType::kIdentity,      SectionType::kTokens,     SectionType::kMainCodes,
                                    SectionType::kMainScales,    SectionType::kIndexCodes, SectionType::kIndexScales,
                                    SectionType::kProvenance,    SectionType::kWindows,    SectionType::kEncoderCodes,
                                    SectionType::kEncoderScales, SectionType::kOpenRows};
    for (SectionType type : optional) CHECK(!session::section_options(type, 0, true, 1).critical);
    for (SectionType type : critical) CHECK(session::section_options(type, 0, true, 1).critical);
    for (SectionType type : {SectionType::kIdentity, SectionType::kMainCodes, SectionType::kIndexCodes}) {
      CHECK(!session::section_options(type, 0, true, 1).try_zstd);
    }
    CHECK(session::section_options(SectionType::kMainScales, 0, true, 1).try_zstd);
    CHECK(!session::section_options(SectionType::kMainScales, 0, false, 1).try_zstd);
  }

  TEST_CASE("chunks hold whole units as far as chunks may be so large") {
    const uint32_t target = uint32_t{256} << 10;
    CHECK(session::section_options(SectionType::kMainCodes, 81920, true, 1).chunk_bytes == 3 * 81920);
    CHECK(session::section_options(SectionType::kMainCodes, target + 1, true, 1).chunk_bytes == target + 1);
    CHECK(session::section_options(SectionType::kMainCodes, 0, true, 1).chunk_bytes == target);
    CHECK(session::section_options(SectionType::kMainCodes, uint64_t{64} << 20, true, 1).chunk_bytes == target);
  }

  // K2, FORMAT.md "Size": what is written follows from the tokens, never from the pool.
  TEST_CASE("a prefix of the released model stays within 894 bytes a token, one percent and 16 KiB") {
    const kv::PageGeometry geometry = released_kv_geometry();
    kv::PagePoolOptions options;
    options.n_global_pages = 40;
    options.n_window_slots = 1;
    const KvPool kv(options, geometry);
    std::vector<kv::PageId> pages = take_all(kv.pool->reserve(40, 0).value());
    std::mt19937_64 random(1);  // noise gains nothing from compression
    for (kv::PageId page : pages) {
      std::byte* const at = kv.pool->arena() + kv.pool->page_offset(page);
      for (uint64_t i = 0; i < geometry.page_bytes(); i += 8) {
        const uint64_t word = random();
        std::memcpy(at + i, &word, 8);
      }
    }
    for (int64_t n : {0, 1, 2, 3, 127, 128, 129, 255, 256, 257, 1000, 1024, 5119, 5120}) {
      CAPTURE(n);
      CountingSink sink;
      snapshot::SnapshotWriter writer = snapshot::SnapshotWriter::begin(sink, geometry.layout_id()).value();
      REQUIRE(writer
                  .add_section(session::section_options(SectionType::kIdentity, 0, true, 1),
                               session::encode_identity(identity_of(n)))
                  .ok());
      const Bytes ids(static_cast<size_t>(4 * n)), chain(static_cast<size_t>(32 * (n / 128 + 1)));
      REQUIRE(writer.add_section(session::section_options(SectionType::kTokens, 0, false, 1), ids).ok());
      REQUIRE(writer.add_section(session::section_options(SectionType::kTokenChain, 0, false, 1), chain).ok());
      const auto held = std::span(pages).first(static_cast<size_t>(kv::pages_for(n)));
      REQUIRE(session::write_pages(writer, *kv.pool, held, n, {}, *kv.queue).ok());
      const Bytes ranges = session::encode_provenance(std::vector<ProvenanceRange>{{0, n, nullptr}});
      REQUIRE(writer.add_section(session::section_options(SectionType::kProvenance, 0, false, 1), ranges).ok());
      REQUIRE(writer.finish().ok());
      CHECK(sink.n_written() <= static_cast<uint64_t>(894 * n + 894 * n / 100 + 16384));
      CHECK(writer.n_written() == sink.n_written());
    }
    kv.pool->give_back(pages);
  }
}

}  // namespace
}  // namespace dsv41::test
