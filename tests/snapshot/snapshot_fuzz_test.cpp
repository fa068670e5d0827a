// The fuzzer's entry (tests/fuzz/snapshot_fuzz.cpp) without the fuzzer: over its corpus, and over random changes of it.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "snapshot/snapshot_bytes.h"
#include "snapshot/snapshot_hostile.h"
#include "snapshot/snapshot_samples.h"
#include "snapshot/snapshot_surgery.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace dsv41::test {
namespace {

const std::string kCorpus = DSV41_SOURCE_DIR "/tests/fuzz/corpus/snapshot/";

Bytes corpus_file(const std::string& name) {
  std::ifstream in(kCorpus + name, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  return Bytes(bytes.begin(), bytes.end());
}

// Ends the program where something does not hold.
void fuzz(const Bytes& file) { LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(file.data()), file.size()); }

// One to four changes of the kinds that a fuzzer makes.
Bytes mutated(Bytes file, std::mt19937_64& random) {
  const uint64_t table = section_entry(file, 0);
  for (uint64_t n = 1 + random() % 4; n > 0; --n) {
    // Half of them in table and tail, where the structure is.
    const uint64_t low = random() % 2 ? std::min<uint64_t>(table, file.size() - 8) : 0;
    const uint64_t at = low + random() % (file.size() - 8 - low + 1);
    constexpr uint64_t kNumbers[] = {0, 1, 2, 63, 64, 575, 576, 577, 1u << 24, UINT32_MAX, 1ull << 63, UINT64_MAX};
    const uint64_t number = kNumbers[random() % std::size(kNumbers)];
    switch (random() % 6) {
      case 0: file[at] ^= std::byte{1} << random() % 8; break;
      case 1: set_field(file, at / 4 * 4, static_cast<uint32_t>(number)); break;
      case 2: set_field(file, at / 8 * 8, number); break;
      case 3:
        set_field(file, at / 4 * 4, field_at<uint32_t>(file, at / 4 * 4) + static_cast<uint32_t>(random() % 5) - 2);
        break;
      case 4: file.insert(file.begin() + static_cast<ptrdiff_t>(at), 64, std::byte{0}); break;
      case 5:
        if (file.size() > 1000)
          file.erase(file.begin() + static_cast<ptrdiff_t>(at / 2), file.begin() + static_cast<ptrdiff_t>(at / 2 + 64));
        break;
    }
  }
  return file;
}

TEST_SUITE("snapshot/fuzz") {
  // Written by version 1.0 and never again: what a later library must still read.
  TEST_CASE("the files of the corpus are read as they were written") {
    struct Row {
      const char* name;
      std::vector<SectionContent> sections;
    };
    const Row rows[] = {
        {"none.snapshot", {}},
        {"small.snapshot", small_sections()},
        {"prefix-0.snapshot", sections_of("prefix-0")},
        {"full-3.snapshot", sections_of("full-3")},
    };
    for (const Row& row : rows) {
      const std::string name = row.name;
      CAPTURE(name);
      const Bytes file = corpus_file(name);
      std::vector<Bytes> raw;
      const Status read = read_file(file, &raw);
      CAPTURE(read.message());
      REQUIRE(read.ok());
      REQUIRE(raw.size() == row.sections.size());
      for (size_t i = 0; i < raw.size(); ++i) CHECK(raw[i] == row.sections[i].raw);
      fuzz(file);
    }
    CHECK(std::distance(std::filesystem::directory_iterator(kCorpus), {}) == std::size(rows));
  }

  TEST_CASE("files that break a rule hold the properties that the fuzzer asks for") {
    for (const HostileFile& hostile : hostile_tables()) fuzz(hostile.file);
    for (const HostileFile& hostile : hostile_frames()) fuzz(hostile.file);
  }

  TEST_CASE("random changes hold the properties that the fuzzer asks for") {
    std::mt19937_64 random(41);
    const Bytes files[] = {corpus_file("none.snapshot"), corpus_file("small.snapshot"), corpus_file("full-3.snapshot")};
    for (int i = 0; i < 6000; ++i) {
      CAPTURE(i);
      fuzz(mutated(files[i % 3], random));
    }
  }
}

}  // namespace
}  // namespace dsv41::test
