// Files that are damaged, cut, or made to lie although all checksums hold: an error or the state that was saved, never
// another one; and nothing of the pool is touched before the file is known to fit.
#include <functional>

#include "base/wire.h"
#include "session/snapshot_sections.h"
#include "snapshot_oracles.h"

namespace dsv41::test {
namespace {

using snapshot::SectionType;
using snapshot::SnapshotReader;
using snapshot::SnapshotWriter;

// A full snapshot of 3 tokens behind two pages; small records make it small.
const FileBytes& small_file() {
  static const FileBytes bytes = [] {
    const auto session = new_session(uncached_pool());
    must_append(*session, random_prompt(259, 1));
    Sampler sampler = test_sampler();
    SnapshotOptions options = save_options(SnapshotKind::kFull);
    options.sampler = &sampler;
    return must_save(*session, options);
  }();
  return bytes;
}
const std::string& small_digest() {
  static const std::string digest = session_digest(*must_restore(small_file(), uncached_pool()));
  return digest;
}

// The same file with the raw bytes of some sections changed (empty: left out), all checksums made anew.
using Change = std::function<void(FileBytes&)>;
struct Edit {
  SectionType type;
  Change change;  // null: the section is left out
};
FileBytes edited(const FileBytes& bytes, const std::vector<Edit>& edits, const Sha256Digest* layout_id = nullptr) {
  SnapshotReader reader = SnapshotReader::open(std::make_shared<BytesSource>(bytes)).value();
  VectorSink sink;
  SnapshotWriter writer = SnapshotWriter::begin(sink, layout_id ? *layout_id : reader.layout_id()).value();
  for (const snapshot::Section& section : reader.sections()) {
    const auto edit = std::ranges::find(edits, section.type, &Edit::type);
    if (edit != edits.end() && !edit->change) continue;
    FileBytes raw = reader.read_section(section, section.raw_bytes).value();
    if (edit != edits.end()) edit->change(raw);
    snapshot::SectionOptions options = session::section_options(section.type, 0, true, 1);
    options.id = section.id;
    REQUIRE(writer.add_section(options, raw).ok());
  }
  REQUIRE(writer.finish().ok());
  return sink.bytes();
}
template <class T>
Change set(size_t at, T value) {
  return [=](FileBytes& raw) {
    REQUIRE(at + sizeof value <= raw.size());
    std::memcpy(raw.data() + at, &value, sizeof value);
  };
}
Change flip(size_t at) {
  return [=](FileBytes& raw) { raw.at(at) ^= std::byte{1}; };
}
const Change kShorter = [](FileBytes& raw) { raw.pop_back(); };
const Change kLonger = [](FileBytes& raw) { raw.push_back(std::byte{0}); };

// Whether restoring changes nothing of a pool and answers `code`.
void check_refused(const FileBytes& bytes, Code code, const RestoreOptions& options = restore_options()) {
  const auto pool = page_pool();
  const std::vector<uint64_t> before = pool_state(*pool);
  const Result<std::unique_ptr<Session>> session = restore(bytes, pool, options);
  CAPTURE(session.status().message());
  CHECK(session.status().code() == code);
  CHECK(pool_state(*pool) == before);
  CHECK(pool->check_invariants().ok());
}

// The tokens' section, and all that names them, for tokens of the test's choice.
std::vector<Edit> with_tokens(const Ids& ids) {
  const SnapshotInfo info = must_open(small_file())->info();
  const Sha256Digest root =
      kv::chain_root({std::as_bytes(std::span(info.layout_id)), std::as_bytes(std::span(info.fingerprint)), {}});
  const std::vector<Sha256Digest> chain = session::token_chain(root, ids);
  const auto assign = [](auto values) {
    return [values](FileBytes& raw) {
      const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
      raw.assign(bytes.begin(), bytes.end());
    };
  };
  return {{SectionType::kTokens, assign(ids)},
          {SectionType::kTokenChain, assign(chain)},
          {SectionType::kIdentity, set(80, chain.back())}};
}

TEST_SUITE("session/snapshot_damage") {
  TEST_CASE("a flipped bit is an error or changes nothing") {
    VectorSink prefix;
    REQUIRE(must_open(small_file())->rewrite(prefix, {}, session::kPartEncoderWindows).ok());
    struct Row {
      const FileBytes& bytes;
      size_t step;  // between flips in the payload, a prime; head, table and tail: least_step
    };
    const size_t least_step = sweeps_all() ? 1 : 5;
    for (const Row& row : {Row{small_file(), 1511}, Row{prefix.bytes(), sweeps_all() ? size_t{127} : 509}}) {
      const FileBytes& good = row.bytes;
      const std::string digest = session_digest(*must_restore(good, uncached_pool()));
      const auto pool = page_pool();
      std::mt19937_64 random(1);
      size_t n_noticed = 0;
      for (size_t at = 0; at < good.size(); at += at < 128 || at + 2000 > good.size() ? least_step : row.step) {
        CAPTURE(at);
        FileBytes bytes = good;
        bytes[at] ^= std::byte{static_cast<unsigned char>(1u << random() % 8)};
        const Result<std::unique_ptr<Session>> session = restore(bytes, pool);
        n_noticed += !session.ok();
        if (session.ok()) CHECK(session_digest(*session.value()) == digest);
      }
      CHECK(n_noticed > 1000 / least_step);
      CHECK(pool->check_invariants().ok());
      CHECK(pool->counters().sessions_open == 0);
    }
  }

  TEST_CASE("a file that was cut or that goes on is refused") {
    const FileBytes& good = small_file();
    for (size_t n = 0; n < good.size(); n += n < 700 || n + 700 > good.size() ? 7 : 997) {
      CAPTURE(n);
      const auto opened = open_bytes(FileBytes(good.begin(), good.begin() + static_cast<int64_t>(n)));
      CHECK(!opened.ok());
    }
    for (size_t n : {1, 63, 64, 576, 4096}) {
      CAPTURE(n);
      FileBytes longer = good;
      longer.resize(good.size() + n);
      CHECK(!open_bytes(longer).ok());
    }
    CHECK(open_bytes(FileBytes(300, std::byte{7})).status().code() == Code::kNOT_SNAPSHOT);
  }

  TEST_CASE("two chunks that changed places are noticed") {
    FileBytes bytes = small_file();
    SnapshotReader reader = SnapshotReader::open(std::make_shared<BytesSource>(bytes)).value();
    const snapshot::Section& first = *reader.find(SectionType::kMainCodes);
    const snapshot::Section& second = *reader.find(SectionType::kIndexCodes);
    const int64_t n = static_cast<int64_t>(std::min(first.stored_bytes, second.stored_bytes));
    std::swap_ranges(bytes.begin() + static_cast<int64_t>(first.offset),
                     bytes.begin() + static_cast<int64_t>(first.offset) + n,
                     bytes.begin() + static_cast<int64_t>(second.offset));
    CHECK(restore(bytes, page_pool()).status().code() == Code::kCHECKSUM);
  }

  TEST_CASE("another model, layout, salt or list of tokens is refused before a page is touched") {
    const FileBytes& good = small_file();
    check_refused(edited(good, {{SectionType::kIdentity, flip(16)}}), Code::kMODEL_MISMATCH);
    Sha256Digest layout = must_open(good)->info().layout_id;
    layout[0] ^= 1;
    check_refused(edited(good, {}, &layout), Code::kLAYOUT_MISMATCH);
    check_refused(good, Code::kNAMESPACE_MISMATCH, restore_options("tenant"));
    RestoreOptions options = restore_options();
    const Ids ids = random_prompt(259, 1);
    for (const Ids& wrong : {first(ids, 258), join(ids, {5}), random_prompt(259, 2), Ids{}}) {
      options.expected_tokens = wrong;
      check_refused(good, Code::kTOKENS_MISMATCH, options);
    }
    options.expected_tokens = ids;
    CHECK(restore(good, page_pool(), options).ok());
    options = restore_options();
    options.session.max_tokens = 258;
    check_refused(good, Code::kCONTEXT_FULL, options);
    options.session.max_tokens = -1;
    check_refused(good, Code::kINVALID_ARG, options);
  }

  TEST_CASE("another model is told from this one by what its files hold") {
    const auto nano = open_model("nano", make_backend("cpu"));
    const auto pool = make_pool(nano, pool_options(false, false));
    CHECK(restore(small_file(), pool).status().code() == Code::kMODEL_MISMATCH);
    CHECK(must_open(small_file())->compatible(*nano, false).code() == Code::kMODEL_MISMATCH);
    CHECK(must_open(small_file())->compatible(*pico(), true).ok());
  }

  TEST_CASE("parts that are required and missing are named, whatever kind the file is of") {
    const auto session = new_session(uncached_pool());
    must_append(*session, random_prompt(259, 1));
    const FileBytes prefix = must_save(*session, SnapshotKind::kPrefix);
    RestoreOptions options = restore_options();
    for (uint32_t part : {session::kPartEncoderWindows, session::kPartDecoderWindows, session::kPartOpenRows,
                          session::kPartLogits, session::kPartSampler, session::kPartHostData}) {
      CAPTURE(part);
      options.required_parts = part;
      check_refused(prefix, Code::kSECTION_MISSING, options);
      const bool in_full = part != session::kPartHostData;
      CHECK(restore(small_file(), page_pool(), options).ok() == in_full);
      RestoreOptions both = options;
      both.unwanted_parts = part;
      check_refused(small_file(), Code::kSECTION_MISSING, both);
    }
    options.required_parts = session::kPartTokens | session::kPartGlobalKv;
    CHECK(restore(prefix, page_pool(), options).ok());
    for (uint32_t part : {uint32_t{session::kPartTokens}, uint32_t{session::kPartGlobalKv}, uint32_t{128}}) {
      RestoreOptions unwanted = restore_options();
      unwanted.unwanted_parts = part;
      check_refused(small_file(), Code::kINVALID_ARG, unwanted);
    }
  }

  TEST_CASE("sections that do not fit the tokens are refused, though every checksum holds") {
    struct Row {
      const char* name;
      std::vector<Edit> edits;
      Code code;
    };
    Ids outside = random_prompt(259, 1), negative = outside;
    outside[200] = static_cast<int32_t>(pico()->vocab_size());
    negative[200] = -1;
    const float nan = NAN;
    const Row rows[] = {
        {"a token fewer", {{SectionType::kTokens, [](FileBytes& raw) { raw.resize(raw.size() - 4); }}}, Code::kCORRUPT},
        {"tokens with a byte more", {{SectionType::kTokens, kLonger}}, Code::kCORRUPT},
        {"another token", {{SectionType::kTokens, flip(100)}}, Code::kCORRUPT},
        {"another token in the tail", {{SectionType::kTokens, flip(1032)}}, Code::kCORRUPT},
        {"a token outside the vocabulary", with_tokens(outside), Code::kCORRUPT},
        {"a negative token", with_tokens(negative), Code::kCORRUPT},
        {"another chain in the identity", {{SectionType::kIdentity, flip(80)}}, Code::kCORRUPT},
        {"another link of the chain", {{SectionType::kTokenChain, flip(33)}}, Code::kCORRUPT},
        {"a chain that is too short", {{SectionType::kTokenChain, kShorter}}, Code::kCORRUPT},
        {"more tokens than the rest has", {{SectionType::kIdentity, set(8, int64_t{260})}}, Code::kCORRUPT},
        {"fewer tokens than the rest has", {{SectionType::kIdentity, set(8, int64_t{1})}}, Code::kCORRUPT},
        {"no identity", {{SectionType::kIdentity, nullptr}}, Code::kSECTION_MISSING},
        {"no tokens", {{SectionType::kTokens, nullptr}}, Code::kSECTION_MISSING},
        {"no index scales", {{SectionType::kIndexScales, nullptr}}, Code::kSECTION_MISSING},
        {"no provenance", {{SectionType::kProvenance, nullptr}}, Code::kSECTION_MISSING},
        {"no head of windows", {{SectionType::kWindows, nullptr}}, Code::kSECTION_MISSING},
        {"no encoder scales", {{SectionType::kEncoderScales, nullptr}}, Code::kSECTION_MISSING},
        {"no decoder codes", {{SectionType::kDecoderCodes, nullptr}}, Code::kSECTION_MISSING},
        {"no open rows", {{SectionType::kOpenRows, nullptr}}, Code::kSECTION_MISSING},
        {"a prefix with windows", {{SectionType::kIdentity, set(0, uint32_t{1})}}, Code::kCORRUPT},
        {"main codes cut", {{SectionType::kMainCodes, kShorter}}, Code::kCORRUPT},
        {"main scales longer", {{SectionType::kMainScales, kLonger}}, Code::kCORRUPT},
        {"no index codes inside", {{SectionType::kIndexCodes, [](FileBytes& raw) { raw.clear(); }}}, Code::kCORRUPT},
        {"provenance cut", {{SectionType::kProvenance, kShorter}}, Code::kCORRUPT},
        {"rows the ring cannot hold", {{SectionType::kWindows, set(24, int64_t{122})}}, Code::kCORRUPT},
        {"too few rows to go on", {{SectionType::kWindows, set(24, int64_t{200})}}, Code::kCORRUPT},
        {"decoder rows too few", {{SectionType::kWindows, set(40, int64_t{259})}}, Code::kCORRUPT},
        {"logits of another vocabulary", {{SectionType::kLogits, kLonger}}, Code::kCORRUPT},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      check_refused(edited(small_file(), row.edits), row.code);
    }
    // Found after pages were loaded: those stay in the cache, and nothing else.
    const Row late[] = {
        {"window codes cut", {{SectionType::kEncoderCodes, kShorter}}, Code::kCORRUPT},
        {"window scales longer", {{SectionType::kDecoderScales, kLonger}}, Code::kCORRUPT},
        {"open rows cut", {{SectionType::kOpenRows, kShorter}}, Code::kCORRUPT},
        {"open rows that are no numbers", {{SectionType::kOpenRows, set(0, nan)}}, Code::kNUMERIC},
        {"logits that are no numbers", {{SectionType::kLogits, set(8, nan)}}, Code::kNUMERIC},
        {"logits without end", {{SectionType::kLogits, set(8, INFINITY)}}, Code::kNUMERIC},
    };
    for (const Row& row : late) {
      CAPTURE(row.name);
      const auto pool = page_pool();
      CHECK(restore(edited(small_file(), row.edits), pool).status().code() == row.code);
      const kv::PagePoolStats stats = pool->pages().stats();
      CHECK(stats.global_pages_free + stats.global_pages_cached == stats.global_pages);
      CHECK(stats.window_slots_free == stats.window_slots);
      CHECK(pool->counters().sessions_open == 0);
      CHECK(pool->check_invariants().ok());
    }
    // The editor itself changes nothing.
    CHECK(session_digest(*must_restore(edited(small_file(), {}), page_pool())) == small_digest());
  }

  TEST_CASE("what a file may lack it may lack") {
    const FileBytes bytes = edited(
        small_file(),
        {{SectionType::kTokenChain, nullptr}, {SectionType::kLogits, nullptr}, {SectionType::kSampler, nullptr}});
    const auto session = must_restore(bytes, page_pool());
    CHECK(session->position() == 259);
    CHECK(!session->has_logits());
    CHECK(must_open(bytes)->verify(snapshot::VerifyLevel::kDecode).value().ok());
    CHECK(must_open(bytes)->sampler(*pico()).status().code() == Code::kSECTION_MISSING);
  }

  TEST_CASE("unknown sections are passed over, unless they are critical") {
    for (bool critical : {false, true}) {
      SnapshotReader reader = SnapshotReader::open(std::make_shared<BytesSource>(small_file())).value();
      VectorSink sink;
      SnapshotWriter writer = SnapshotWriter::begin(sink, reader.layout_id()).value();
      for (const snapshot::Section& section : reader.sections()) {
        REQUIRE(writer
                    .add_section(session::section_options(section.type, 0, true, 1),
                                 reader.read_section(section, section.raw_bytes).value())
                    .ok());
      }
      snapshot::SectionOptions unknown;
      unknown.type = static_cast<SectionType>(1000);
      unknown.critical = critical;
      REQUIRE(writer.add_section(unknown, FileBytes(10)).ok());
      REQUIRE(writer.finish().ok());
      if (critical) {
        CHECK(open_bytes(sink.bytes()).status().code() == Code::kFORMAT_VERSION);
        continue;
      }
      CHECK(session_digest(*must_restore(sink.bytes(), page_pool())) == small_digest());
      // And are kept by a copy.
      VectorSink copy;
      REQUIRE(must_open(sink.bytes())->rewrite(copy, {}, 0).ok());
      CHECK(copy.bytes() == sink.bytes());
    }
  }

  TEST_CASE("verify finds damage of every depth, without a model") {
    using snapshot::VerifyLevel;
    const FileBytes& good = small_file();
    for (VerifyLevel level : {VerifyLevel::kTable, VerifyLevel::kChunks, VerifyLevel::kDecode}) {
      CHECK(must_open(good)->verify(level).value().ok());
    }
    FileBytes damaged = good;
    SnapshotReader reader = SnapshotReader::open(std::make_shared<BytesSource>(good)).value();
    damaged[reader.find(SectionType::kMainCodes)->offset] ^= std::byte{1};
    CHECK(must_open(damaged)->verify(VerifyLevel::kTable).value().ok());
    CHECK(must_open(damaged)->verify(VerifyLevel::kChunks).value().n_bad_chunks == 1);
    for (const std::vector<Edit>& edits : {std::vector<Edit>{{SectionType::kTokens, flip(8)}},
                                           {{SectionType::kTokens, flip(1034)}},
                                           {{SectionType::kTokenChain, flip(8)}},
                                           {{SectionType::kTokenChain, flip(70)}},
                                           {{SectionType::kIdentity, flip(80)}},
                                           {{SectionType::kTokens, kLonger}}}) {
      const FileBytes lying = edited(good, edits);
      CHECK(must_open(lying)->verify(VerifyLevel::kChunks).value().ok());
      CHECK(must_open(lying)->verify(VerifyLevel::kDecode).status().code() == Code::kCORRUPT);
    }
  }

  TEST_CASE("with a salt the links between pages are verified, and a restore verifies the first") {
    const auto session = new_session(uncached_pool(), {}, "tenant");
    must_append(*session, random_prompt(300, 1));
    const FileBytes good = must_save(*session, SnapshotKind::kPrefix);
    using snapshot::VerifyLevel;
    CHECK(must_open(good)->verify(VerifyLevel::kDecode).value().ok());
    CHECK(must_open(edited(good, {{SectionType::kTokens, flip(600)}}))->verify(VerifyLevel::kDecode).status().code() ==
          Code::kCORRUPT);
    const FileBytes first_page = edited(good, {{SectionType::kTokens, flip(8)}});
    CHECK(must_open(first_page)->verify(VerifyLevel::kDecode).value().ok());  // the salt is not in the file
    check_refused(first_page, Code::kCORRUPT, restore_options("tenant"));
    check_refused(good, Code::kNAMESPACE_MISMATCH, restore_options("tenanT"));
    check_refused(good, Code::kNAMESPACE_MISMATCH);
    const auto restored = must_restore(good, page_pool(), restore_options("tenant"));
    CHECK(restored->tokens() == random_prompt(300, 1));
  }
}

}  // namespace
}  // namespace dsv41::test
