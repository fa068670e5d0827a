// Snapshots saved over one name on the machine's own disk by a process that is killed at random times: the name stands
// for the file that was reported last or for the one that came next, whole. DSV41_TEST_KILLS=n: how many.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/wire.h"
#include "snapshot/snapshot_reader.h"
#include "snapshot/snapshot_writer.h"
#include "support/killed_child.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using snapshot::SnapshotReader;
using snapshot::SnapshotWriter;
using snapshot::VerifyLevel;

// The content of save `number`: itself, then numbers that follow from it; up to 400 kB, so that a save takes long enough
// to be killed in its middle.
std::vector<std::byte> content(uint64_t number) {
  WireWriter out;
  std::mt19937_64 random(number);
  out.put(number);
  for (uint64_t n = random() % 50000; n > 0; --n) out.put(uint64_t{random()});
  const std::span<const std::byte> bytes = out.bytes();
  return {bytes.begin(), bytes.end()};
}

Status save(const std::string& path, uint64_t number, Durability durability) {
  DSV41_TRY_ASSIGN(const std::unique_ptr<ByteSink> sink, create_file_sink(system_file_system(), path, durability));
  DSV41_TRY_ASSIGN(SnapshotWriter writer, SnapshotWriter::begin(*sink, {}));
  snapshot::SectionOptions options;
  options.chunk_bytes = 65536;
  DSV41_TRY(writer.add_section(options, content(number)));
  DSV41_TRY(writer.finish());
  return sink->commit();
}

// The number of the save that stands at `path`, which must be whole. None: there is no file.
std::optional<uint64_t> saved_at(const std::string& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  Result<std::unique_ptr<ByteSource>> source = open_file_source(system_file_system(), path);
  REQUIRE_MESSAGE(source.ok(), source.status().message());
  Result<SnapshotReader> reader = SnapshotReader::open(std::move(source).value());
  REQUIRE_MESSAGE(reader.ok(), reader.status().message());
  REQUIRE(reader->verify(VerifyLevel::kDecode).value().ok());
  REQUIRE(reader->sections().size() == 1);
  const std::vector<std::byte> raw = reader->read_any(reader->sections()[0], 1 << 20).value();
  uint64_t number = 0;
  REQUIRE(raw.size() >= sizeof number);
  std::memcpy(&number, raw.data(), sizeof number);
  REQUIRE(raw == content(number));
  return number;
}

TEST_SUITE("snapshot/kill") {
  TEST_CASE("a save that is killed leaves the file before it or its own, whole") {
    for (const Durability durability : {Durability::kFull, Durability::kNone}) {
      const TempFolder folder;
      const std::string path = folder.file("chat.dsv41");
      std::mt19937_64 random(20261130);
      uint64_t last = 0, n_saved = 0, n_cut_short = 0;  // 0: none yet
      const uint64_t n_rounds = n_kills(10);
      for (uint64_t round = 0; round < n_rounds; ++round) {
        CAPTURE(round);
        KillTime<uint64_t> when = random_kill_time<uint64_t>(random);
        if (round % 5 == 1) when.is_awaited = [](const uint64_t&) { return true; };
        const std::vector<uint64_t> told = run_until_killed(when, [&](const Teller<uint64_t>& teller) {
          for (uint64_t number = last + 1;; ++number) {
            if (!save(path, number, durability).ok()) ::_exit(5);
            teller.tell(number);
          }
        });
        if (!told.empty()) last = told.back();
        n_saved += told.size();
        const std::optional<uint64_t> there = saved_at(path);
        if (!there) {
          CHECK(last == 0);
        } else {
          CHECK((*there == last || *there == last + 1));
          last = *there;
        }
        // What was on its way is beside it, and nothing else.
        for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
          if (entry.path() == path) continue;
          CHECK(entry.path().string().starts_with(path + ".tmp-"));
          std::filesystem::remove(entry.path());
          ++n_cut_short;
        }
      }
      CHECK(n_saved >= n_rounds / 5);
      if (n_rounds >= 100) CHECK(n_cut_short > 0);
      MESSAGE(n_rounds << " kills, " << n_saved << " saves reported, " << n_cut_short << " on their way");
    }
  }
}

}  // namespace
}  // namespace dsv41::test
