#include "session/page_restore.h"

#include <doctest/doctest.h>

#include "session/snapshot_planes.h"
#include "support/kv_pool_fixture.h"
#include "support/snapshot_files.h"

namespace dsv41::test {
namespace {

using kv::kNoPage;
using kv::kPageTokens;
using kv::PageId;
using session::ChainHold;
using session::ChainLoader;
using session::PlaneLoader;
using session::ProvenanceRange;
using snapshot::SnapshotReader;

kv::PagePoolOptions pool_of(uint64_t n_pages) {
  kv::PagePoolOptions options;
  options.n_global_pages = n_pages;
  options.n_window_slots = 1;
  return options;
}

// The planes of these tokens, as a session has them whose pages hold the stamps of that history.
FileBytes file_of(std::span<const int32_t> ids, uint64_t variant = 0) {
  const int64_t n_tokens = static_cast<int64_t>(ids.size());
  const KvPool kv(pool_of(static_cast<uint64_t>(kv::pages_for(n_tokens))));
  std::vector<PageId> pages;
  const std::vector<uint64_t> stamps = stamps_of(ids, 0, variant);
  for (size_t first = 0; first < ids.size(); first += kPageTokens) {
    pages.push_back(kv.take());
    write_page(*kv.pool, pages.back(),
               std::span(stamps).subspan(first, std::min<size_t>(kPageTokens, ids.size() - first)));
  }
  VectorSink sink;
  snapshot::SnapshotWriter writer = snapshot::SnapshotWriter::begin(sink, {}).value();
  for (int plane = 0; plane < kv::kPagePlanes; ++plane) {
    // Chunks begin and end anywhere in a page.
    must_succeed(writer.begin_section({.type = session::kPlaneSections[static_cast<size_t>(plane)],
                                       .chunk_bytes = plane % 2 ? 101u : 1999u,
                                       .try_zstd = plane % 2 == 1}));
    for (size_t i = 0; i < pages.size(); ++i) {
      const int64_t n = std::min(kPageTokens, n_tokens - static_cast<int64_t>(i) * kPageTokens);
      FileBytes bytes(kv::plane_bytes(kv.pool->geometry(), n)[static_cast<size_t>(plane)]);
      must_succeed(kv::pack_plane(*kv.pool, pages[i], n, plane, bytes, *kv.queue));
      must_succeed(kv.queue->wait());
      must_succeed(writer.write(bytes));
    }
    must_succeed(writer.end_section());
  }
  must_succeed(writer.finish());
  kv.pool->give_back(pages);
  return std::move(sink.bytes());
}

struct Restored {
  ChainHold chain;
  int64_t n_adopted = 0;
  FileBytes tail;
};

// From memory, by several threads: a piece is one chunk.
Result<Restored> restore(const KvPool& kv, const FileBytes& file, std::span<const int32_t> ids,
                         const kv::Provenance& provenance = nullptr) {
  DSV41_TRY_ASSIGN(SnapshotReader reader, SnapshotReader::open(std::make_shared<SpanSource>(file)));
  const kv::PageGeometry& geometry = kv.pool->geometry();
  const int64_t n_tokens = static_cast<int64_t>(ids.size()), n_tail = n_tokens % kPageTokens;
  DSV41_TRY_ASSIGN(PlaneLoader planes, PlaneLoader::open(reader, geometry, n_tokens, 1));
  const std::span<const int32_t> full = ids.first(static_cast<size_t>(n_tokens - n_tail));
  DSV41_TRY_ASSIGN(ChainLoader chain, ChainLoader::create(*kv.pool, kv.root, {}, full));
  Restored out;
  out.tail.resize(kv::image_bytes(geometry, n_tail));
  const ProvenanceRange range{0, n_tokens, provenance};
  DSV41_TRY(session::restore_pages(planes, chain, {&range, 1}, out.tail, nullptr));
  out.n_adopted = chain.n_adopted();
  out.chain = chain.take();
  return out;
}

void check_holds(const KvPool& kv, PageId end, std::span<const int32_t> ids, uint64_t variant = 0) {
  const std::vector<uint64_t> stamps = stamps_of(ids, 0, variant);
  int64_t n = static_cast<int64_t>(ids.size()) / kPageTokens;
  REQUIRE((end == kNoPage ? 0 : kv.pool->depth(end)) == n);
  for (PageId page = end; page != kNoPage; page = kv.pool->parent(page)) {
    --n;
    CAPTURE(n);
    CHECK(page_holds(*kv.pool, page, std::span(stamps).subspan(static_cast<size_t>(n * kPageTokens), kPageTokens)));
  }
}

TEST_SUITE("session/page_restore") {
  TEST_CASE("pages of a file get into the pool once, and what lies behind them is read") {
    for (const int64_t n_tokens : {int64_t{5}, kPageTokens, 9 * kPageTokens + 77}) {
      CAPTURE(n_tokens);
      const KvPool kv(pool_of(10));
      const std::vector<int32_t> ids = random_ids(static_cast<size_t>(n_tokens), 1);
      const FileBytes file = file_of(ids);
      const size_t n_full = static_cast<size_t>(n_tokens / kPageTokens);
      const Restored first = restore(kv, file, ids).value();
      check_holds(kv, first.chain.page(), std::span(ids).first(n_full * kPageTokens));
      CHECK(first.n_adopted == 0);
      const Restored again = restore(kv, file, ids).value();
      CHECK(again.chain.page() == first.chain.page());
      CHECK(again.n_adopted == static_cast<int64_t>(n_full));
      CHECK(again.tail == first.tail);
      CHECK(kv.pool->stats().global_pages_free == 10 - n_full);
      CHECK(kv.fault() == "");
    }
  }

  TEST_CASE("only pages of the same bytes are shared, from the first on") {
    const std::vector<int32_t> ids = random_ids(6 * kPageTokens + 9, 1);
    const std::span<const int32_t> full = std::span(ids).first(6 * kPageTokens);
    FileBytes tail;
    for (size_t n_same = 0; n_same <= 4; ++n_same) {  // of four that the pool has
      CAPTURE(n_same);
      const KvPool kv(pool_of(16));
      const std::vector<uint64_t> same = stamps_of(ids, 0, 0), other = stamps_of(ids, 0, 1);
      PageId end = kNoPage;
      for (size_t i = 0; i < 4; ++i) {
        const PageId page = kv.take();
        write_page(*kv.pool, page, std::span(i < n_same ? same : other).subspan(i * kPageTokens, kPageTokens));
        end = kv.pool->seal(page, kv.root, end, full.subspan(i * kPageTokens, kPageTokens), nullptr, *kv.queue)
                  .value()
                  .page;
      }
      const Restored restored = restore(kv, file_of(ids), ids).value();
      CHECK(restored.n_adopted == static_cast<int64_t>(n_same));
      check_holds(kv, restored.chain.page(), full);
      if (n_same > 0) CHECK(restored.tail == tail);
      tail = restored.tail;
      kv.pool->drop_user(end);
      CHECK(kv.fault() == "");
    }
  }

  TEST_CASE("bytes of an approximate page are shared only by what descends from the same hits") {
    const KvPool kv(pool_of(6));
    const std::vector<int32_t> ids = random_ids(2 * kPageTokens, 1);
    const FileBytes file = file_of(ids);
    const Restored mine = restore(kv, file, ids, hits({128})).value();
    CHECK(restore(kv, file, ids, hits({128})).value().chain.page() == mine.chain.page());
    CHECK_FALSE(restore(kv, file, ids, hits({256})).value().chain.page() == mine.chain.page());
  }

  TEST_CASE("whatever fails, no page is lost") {
    const std::vector<int32_t> ids = random_ids(5 * kPageTokens + 9, 1);
    FileBytes file = file_of(ids);
    for (const bool present : {false, true}) {
      CAPTURE(present);
      const KvPool kv(pool_of(8));
      if (present) static_cast<void>(restore(kv, file, ids).value());
      const std::vector<uint64_t> before = kv.counts();
      FileBytes damaged = file;
      const SnapshotReader reader = SnapshotReader::open(std::make_shared<SpanSource>(file)).value();
      for (const snapshot::Section& section : reader.sections()) {
        const uint64_t at = reader.place_of(section, section.n_chunks - 1).offset;
        damaged[at] ^= std::byte{4};
        CHECK(restore(kv, damaged, ids).status().code() == Code::kCHECKSUM);
        damaged[at] ^= std::byte{4};
        CHECK(kv.counts() == before);
        CHECK(kv.fault() == "");
      }
      bool struck = true;
      for (int64_t n = 1; struck; ++n) {
        CAPTURE(n);
        kv.backend->fail_copy(n);
        const bool ok = restore(kv, file, ids).ok();
        struck = kv.backend->struck();
        kv.backend->fail_copy(0);
        CHECK(ok == !struck);
        CHECK(kv.pool->stats().global_pages_private == 0);
        CHECK(kv.fault() == "");
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
