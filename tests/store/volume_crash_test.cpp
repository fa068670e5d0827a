// A folder volume through power cuts and failing disks.
//
// A scripted life with tiny segments is led again and again, with something going wrong at its first operation, its
// second, ... A ledger says what must be there afterwards: each record that commit() has reported and nobody removed.
// Whatever else is there must be a record that was appended, whole.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "store/segment_file.h"
#include "store/volume_fixture.h"
#include "support/crash_file_system.h"

namespace dsv41::test {
namespace {

using store::Place;
using store::Volume;

// The records of a life, made once.
struct Cast {
  std::vector<MadeRecord> pages;
  std::vector<MadeRecord> states;  // the second one is to replace the first
  uint64_t segment_bytes = 0;      // two pages each
  explicit Cast(size_t payload_bytes) {
    for (uint32_t i = 0; i < 8; ++i) {
      pages.emplace_back(page_draft(i, payload_bytes, i % 3 == 1 ? std::vector<int64_t>{128} : std::vector<int64_t>{}));
    }
    states.emplace_back(state_draft(1, 2 * payload_bytes));
    states.emplace_back(state_draft(1, 3 * payload_bytes, 1));
    states.emplace_back(state_draft(2, payload_bytes));
    segment_bytes = pages[0].bytes.size() + 500;
  }
  const MadeRecord* find(const store::RecordHead& head) const {
    for (const std::vector<MadeRecord>* list : {&pages, &states}) {
      for (const MadeRecord& made : *list) {
        if (made.head() == head) return &made;
      }
    }
    return nullptr;
  }
};

// Small: a power cut leaves few states, which are all looked at. Large: many, of which some are.
const Cast kSmall(40), kLarge(1700);

using Records = std::set<const MadeRecord*>;

struct Ledger {
  explicit Ledger(const Cast& cast) : cast(cast) {}
  const Cast& cast;
  Records appended;               // tried to
  Records gone;                   // for good
  std::vector<Records> promised;  // one of each set is there

  void promise(const MadeRecord* made) {
    if (std::find(promised.begin(), promised.end(), Records{made}) == promised.end()) promised.push_back({made});
  }
  // It may be there from now on, or not.
  void release(const MadeRecord* made) {
    std::erase_if(promised, [&](const Records& set) { return set.count(made) != 0; });
  }
};

// One life. Steps that fail leave the ledger as careful as the interface is.
class Life {
 public:
  Life(CrashFileSystem& files, Ledger& ledger) : files_(files), ledger_(ledger) {}

  void lead() {
    open();
    put({&pages(0), &pages(1)});
    put({&pages(2), &pages(3), &states(0)});
    note_uses();
    open();
    put({&pages(4), &states(2)});
    replace(&states(0), &states(1));
    compact({&pages(0)}, {&pages(1)});
    remove(&states(2));
    open();
    put({&pages(5)});
    note_uses();
    put({&pages(6), &pages(7)});
    volume_.reset();
  }

  Volume* volume() { return volume_.get(); }

 private:
  const MadeRecord& pages(size_t i) const { return ledger_.cast.pages[i]; }
  const MadeRecord& states(size_t i) const { return ledger_.cast.states[i]; }

  void open() {
    volume_.reset();
    Result<std::unique_ptr<Volume>> volume = open_folder(files_, ledger_.cast.segment_bytes);
    if (!volume.ok()) return;
    volume_ = std::move(volume).value();
    places_.clear();
    const Scanned scanned = scan_all(*volume_);
    for (const store::FoundRecord& found : scanned.records) places_[ledger_.cast.find(found.head)] = found.place;
  }

  // As a group. A record that stands on pages that are not there would be of no use, but the volume does not know.
  bool put(const std::vector<const MadeRecord*>& group) {
    if (!volume_) return false;
    std::map<const MadeRecord*, Place> places;
    for (const MadeRecord* made : group) {
      ledger_.appended.insert(made);
      ledger_.gone.erase(made);
      const Result<Place> place = volume_->append(made->head(), made->bytes);
      if (!place.ok()) return false;
      places[made] = place.value();
    }
    if (!volume_->commit().ok()) return false;
    for (const auto& [made, place] : places) {
      ledger_.promise(made);
      places_[made] = place;
    }
    return true;
  }

  void replace(const MadeRecord* before, const MadeRecord* after) {
    bool promised = false;
    for (Records& set : ledger_.promised) {
      if (set.count(before) == 0) continue;
      set.insert(after);
      promised = true;
    }
    if (!put({after}) || !promised) return;
    ledger_.release(before);
    ledger_.promise(after);
    ledger_.gone.insert(before);
    places_.erase(before);
  }

  // Copies what lives of the first segment, and removes that.
  void compact(const std::vector<const MadeRecord*>& live, const std::vector<const MadeRecord*>& dead) {
    if (!volume_ || volume_->segments().empty() || volume_->segments().front().active) return;
    const uint64_t number = volume_->segments().front().number;
    for (const MadeRecord* made : live) {
      if (places_.count(made) == 0 || places_[made].segment != number) return;
    }
    if (!put(live)) return;
    for (const MadeRecord* made : dead) ledger_.release(made);
    if (!volume_->remove_segment(number).ok()) return;
    for (const MadeRecord* made : dead) {
      if (places_.count(made) != 0 && places_[made].segment == number) ledger_.gone.insert(made);
    }
  }

  void remove(const MadeRecord* made) {
    if (!volume_) return;
    ledger_.release(made);
    if (volume_->remove(made->head(), Place()).ok()) ledger_.gone.insert(made);
  }

  void note_uses() {
    if (!volume_) return;
    store::Catalogue catalogue;
    for (const auto& [made, place] : places_) catalogue.uses.push_back({made->head().key, kRecordTime});
    static_cast<void>(volume_->write_catalogue(catalogue).ok());
  }

  CrashFileSystem& files_;
  Ledger& ledger_;
  std::unique_ptr<Volume> volume_;
  std::map<const MadeRecord*, Place> places_;
};

// What a volume shows must be right and readable; what the ledger promises must be shown. The records shown.
Records check_volume(Volume& volume, const Ledger& ledger) {
  const Scanned scanned = scan_all(volume);
  REQUIRE_MESSAGE(scanned.status.ok(), scanned.status.message());
  Records shown;
  for (const store::FoundRecord& found : scanned.records) {
    const MadeRecord* made = ledger.cast.find(found.head);
    REQUIRE(made != nullptr);
    const Status status = check_found(volume, *made, found);
    REQUIRE_MESSAGE(status.ok(), status.message());
    REQUIRE(ledger.appended.count(made) != 0);
    REQUIRE(ledger.gone.count(made) == 0);
    shown.insert(made);
  }
  for (const Records& set : ledger.promised) {
    REQUIRE(std::any_of(set.begin(), set.end(), [&](const MadeRecord* made) { return shown.count(made) != 0; }));
  }
  return shown;
}

std::unique_ptr<Volume> reopened(FileSystem& files, bool read_only = false) {
  Result<std::unique_ptr<Volume>> volume = open_folder(files, kSmall.segment_bytes, read_only);
  REQUIRE_MESSAGE(volume.ok(), volume.status().message());
  return std::move(volume).value();
}

// A reader sees what is there, a writer the same; what it has shown survives the next power cut, and so does what it
// adds.
void check_after_crash(CrashFileSystem& files, const Ledger& ledger, bool with_reader) {
  if (with_reader && files.file("store/store")) check_volume(*reopened(files, true), ledger);
  Ledger after = ledger;
  after.promised.clear();
  {
    const std::unique_ptr<Volume> volume = reopened(files);
    for (const MadeRecord* made : check_volume(*volume, ledger)) after.promise(made);
    CrashFileSystem lost = files.crash(0);
    check_volume(*reopened(lost), after);
    const MadeRecord* next = &ledger.cast.pages[7];
    after.appended.insert(next);
    REQUIRE(volume->append(next->head(), next->bytes).ok());
    REQUIRE(volume->commit().ok());
    after.promise(next);
  }
  CrashFileSystem lost = files.crash(0);
  check_volume(*reopened(lost), after);
  for (const std::string& path : lost.paths()) CHECK(path.find(".tmp-") == std::string::npos);
}

// A life that ends in a power cut at its n-th change of the disk, if it comes that far.
struct Crashed {
  Crashed(const Cast& cast, uint64_t n) : ledger(cast) {
    files.power_off_at(n);
    Life(files, ledger).lead();
  }
  CrashFileSystem files;
  Ledger ledger;
};

void check_ends_whole(const Ledger& ledger) {
  CHECK(ledger.promised.size() == 8);  // pages 0, 2 to 7, state 1 as it was written last
  CHECK(ledger.gone.size() == 3);      // page 1, state 2, state 1 as it was before
}

TEST_SUITE("store/volume_crash") {
  TEST_CASE("a life without accidents keeps everything") {
    for (const Cast* cast : {&kSmall, &kLarge}) {
      CrashFileSystem files;
      Ledger ledger(*cast);
      Life(files, ledger).lead();
      check_ends_whole(ledger);
      check_after_crash(files, ledger, true);
    }
  }

  TEST_CASE("after a power cut at any operation, what was committed is there and nothing is half there") {
    constexpr uint64_t kRandomStates = 130;
    uint64_t n_states = 0, n_random = 0;
    for (uint64_t n = 1;; ++n) {
      CAPTURE(n);
      bool struck = false;
      {
        const Crashed crashed(kSmall, n);
        struck = crashed.files.struck();
        for_each_crash(crashed.files, kRandomStates,
                       [&](CrashFileSystem& after) { check_after_crash(after, crashed.ledger, n_states++ % 16 == 0); });
      }
      const Crashed crashed(kLarge, n);
      CHECK(crashed.files.struck() == struck);
      for (uint64_t seed = 0; seed < kRandomStates; ++seed, ++n_random) {
        INFO("random crash ", seed, " of\n", crashed.files.describe_pending());
        CrashFileSystem after = crashed.files.crash_random(seed);
        check_after_crash(after, crashed.ledger, seed % 16 == 0);
      }
      if (struck) continue;
      check_ends_whole(crashed.ledger);
      break;
    }
    MESSAGE(n_states, " states of the small life, ", n_random, " random ones of the large");
    CHECK(n_random >= 10000);
  }

  TEST_CASE("an operation that fails loses nothing that was committed, and nothing of it is half there") {
    struct Row {
      std::string name;
      CrashFileSystem::Fault fault;
    };
    const Row rows[] = {
        {"write, full", {1, Code::kNO_SPACE, CrashFileSystem::kWrite, false, 0}},
        {"write, full, torn", {1, Code::kNO_SPACE, CrashFileSystem::kWrite, false, 500}},
        {"write, torn late", {1, Code::kIO, CrashFileSystem::kWrite, false, 870}},
        {"sync", {1, Code::kIO, CrashFileSystem::kSync, false, 0}},
        {"resize and write", {1, Code::kIO, CrashFileSystem::kWrite | CrashFileSystem::kResize, false, 100}},
        {"anything that changes", {1, Code::kIO, CrashFileSystem::kChanges, false, 0}},
        {"anything", {1, Code::kIO, CrashFileSystem::kAll, false, 0}},
        {"read", {1, Code::kIO, CrashFileSystem::kRead, false, 0}},
        {"full for good", {1, Code::kNO_SPACE, CrashFileSystem::kWrite | CrashFileSystem::kCreate, true, 0}},
        {"changes fail for good", {1, Code::kIO, CrashFileSystem::kChanges, true, 64}},
        {"everything fails for good", {1, Code::kIO, CrashFileSystem::kAll, true, 0}},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      for (uint64_t n = 1;; ++n) {
        CAPTURE(n);
        CrashFileSystem files;
        Ledger ledger(kSmall);
        CrashFileSystem::Fault fault = row.fault;
        fault.n = n;
        files.fail_after(fault);
        Life life(files, ledger);
        life.lead();
        const bool struck = files.struck();
        files.fail_after({UINT64_MAX});
        if (!row.fault.for_good && row.fault.kinds != CrashFileSystem::kAll) {
          for (const std::string& path : files.paths()) CHECK(path.find(".tmp-") == std::string::npos);
        }
        CrashFileSystem all = files.crash([](size_t) { return true; });
        check_after_crash(all, ledger, true);
        CrashFileSystem none = files.crash(0);
        check_after_crash(none, ledger, true);
        if (!struck) break;
      }
    }
  }

  TEST_CASE("a writer that takes over from one that died makes durable what it shows, and may lose its power too") {
    for (uint64_t n = 1, m = 1;;) {
      CAPTURE(n);
      CAPTURE(m);
      CrashFileSystem files;
      Ledger ledger(kSmall);
      // Not syncs: after one that failed no later process can know what it left undone (file_system.h).
      files.fail_after({n, Code::kIO, CrashFileSystem::kChanges & ~CrashFileSystem::kSync, true, 400});
      Life(files, ledger).lead();
      if (!files.struck()) break;
      // Only the process has gone: what it wrote and did not sync is there, until the power goes.
      files.fail_after({UINT64_MAX});
      files.power_off_at(m);
      if (const Result<std::unique_ptr<Volume>> volume = open_folder(files, kSmall.segment_bytes); volume.ok()) {
        const Scanned scanned = scan_all(*volume.value());
        if (!files.struck()) {
          for (const store::FoundRecord& found : scanned.records) ledger.promise(kSmall.find(found.head));
        }
      }
      const bool struck = files.struck();
      for (uint64_t seed = 0; seed < 6; ++seed) {
        CAPTURE(seed);
        CrashFileSystem after = seed == 0   ? files.crash(0)
                                : seed == 1 ? files.crash([](size_t) { return true; })
                                            : files.crash_random(seed);
        check_after_crash(after, ledger, true);
      }
      m = struck ? m + 1 : 1;
      n = struck ? n : n + 1;
    }
  }

  TEST_CASE("a segment that gets its index late has it above durable records") {
    const std::string first = "store/segments/0000000000000001.seg", second = "store/segments/0000000000000002.seg";
    for (uint64_t m = 1;; ++m) {
      CAPTURE(m);
      CrashFileSystem files;
      Ledger ledger(kSmall);
      {
        const std::unique_ptr<Volume> volume = reopened(files);
        REQUIRE(volume->append(kSmall.pages[0].head(), kSmall.pages[0].bytes).ok());
        REQUIRE(volume->commit().ok());
        files.put(second, store::encode_segment_head({volume->identity().id, 2, kRecordTime}));
      }
      ledger.appended = {&kSmall.pages[0], &kSmall.pages[1]};
      ledger.promise(&kSmall.pages[0]);
      // As a writer leaves it that died before its sync, and could not cut it away.
      const uint64_t end = store::align_record(files.file(first)->size());
      REQUIRE(files.open(first, FileSystem::Mode::kReadWrite).value()->write_at(end, kSmall.pages[1].bytes).ok());
      files.power_off_at(m);
      if (const Result<std::unique_ptr<Volume>> volume = open_folder(files, kSmall.segment_bytes); volume.ok()) {
        const Scanned scanned = scan_all(*volume.value());
        if (!files.struck()) CHECK(scanned.records.size() == 2);
      }
      const bool struck = files.struck();
      for_each_crash(files, 100, [&](CrashFileSystem& after) { check_after_crash(after, ledger, true); });
      if (!struck) break;
    }
  }

  TEST_CASE("a read that ends too early loses nothing") {
    for (uint64_t n = 1;; ++n) {
      CAPTURE(n);
      CrashFileSystem files;
      Ledger ledger(kSmall);
      files.shorten_read(n);
      Life(files, ledger).lead();
      const bool struck = files.struck();
      CrashFileSystem none = files.crash(0);
      check_after_crash(none, ledger, true);
      if (!struck) break;
    }
  }

  TEST_CASE("a disk that gets full at any byte keeps what was committed, and goes on when there is room") {
    for (uint64_t space = 4000; space < 16000; space += 97) {
      CAPTURE(space);
      CrashFileSystem files;
      Ledger ledger(kSmall);
      files.limit_space(space);
      Life life(files, ledger);
      life.lead();
      uint64_t n_bytes = 0;
      for (const std::string& path : files.paths()) n_bytes += files.file(path)->size();
      CHECK(n_bytes <= space);
      files.limit_space(UINT64_MAX);
      CrashFileSystem none = files.crash(0);
      check_after_crash(none, ledger, true);
    }
  }

  TEST_CASE("a volume whose commit failed goes on elsewhere, and reads what it had") {
    for (const uint32_t kinds : {CrashFileSystem::kWrite, CrashFileSystem::kSync}) {
      CAPTURE(kinds);
      CrashFileSystem files;
      const std::unique_ptr<Volume> volume = reopened(files);
      const MadeRecord &first = kSmall.pages[0], &lost = kSmall.pages[1], &next = kSmall.pages[2];
      const Place place = volume->append(first.head(), first.bytes).value();
      REQUIRE(volume->commit().ok());
      files.fail_after({1, Code::kIO, kinds});
      const bool appended = volume->append(lost.head(), lost.bytes).ok();
      CHECK(appended == (kinds == CrashFileSystem::kSync));
      if (appended) CHECK(volume->commit().code() == Code::kIO);
      CHECK(check_at(*volume, first, place).ok());
      const Result<Place> elsewhere = volume->append(next.head(), next.bytes);
      REQUIRE(elsewhere.ok());
      CHECK(elsewhere->segment > place.segment);
      REQUIRE(volume->commit().ok());
      CHECK(check_at(*volume, next, elsewhere.value()).ok());
      const Scanned scanned = scan_all(*reopened(files, true));
      CHECK(scanned.records.size() == 2);
      const std::string path = "store/segments/0000000000000001.seg";
      const std::unique_ptr<File> segment = files.open(path, FileSystem::Mode::kRead).value();
      const Result<std::vector<store::FoundRecord>> index =
          store::read_segment_index(*segment, files.file(path)->size(), 1);
      REQUIRE(index.ok());
      CHECK(index->size() == 1);
      CHECK(scanned.n_damaged == 0);
    }
  }

  TEST_CASE("while a disk is full, failed attempts leave no files behind") {
    CrashFileSystem files;
    const std::unique_ptr<Volume> volume = reopened(files);
    const MadeRecord& page = kSmall.pages[0];
    for (const uint64_t room : {uint64_t{0}, uint64_t{50}, uint64_t{100}, uint64_t{400}}) {
      CAPTURE(room);
      uint64_t n_bytes = 0;
      for (const std::string& path : files.paths()) n_bytes += files.file(path)->size();
      files.limit_space(n_bytes + room);
      const size_t n_files = files.paths().size();
      for (int i = 0; i < 5; ++i) {
        CHECK(volume->append(page.head(), page.bytes).status().code() == Code::kNO_SPACE);
        CHECK(volume->append(kSmall.states[1].head(), kSmall.states[1].bytes).status().code() == Code::kNO_SPACE);
      }
      CHECK(files.paths().size() == n_files);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
