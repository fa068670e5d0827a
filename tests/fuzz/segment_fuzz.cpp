// libFuzzer entry: any bytes as a segment, as the file `store` or as a catalogue, in a store that is right otherwise.
// The first byte chooses which; the rest is used twice: as it is, and with its checksums (and a segment's id and number)
// made to hold. A store opens; what it shows of a segment can be asked for; a writer loses nothing that a reader could
// read, and what it adds is there.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <vector>

#include "store/folder_volume.h"
#include "store/segment_file.h"
#include "store/store_surgery.h"
#include "store/volume_files.h"
#include "support/crash_file_system.h"

namespace {

using namespace dsv41;
using namespace dsv41::store;
using test::CrashFileSystem;

const std::string kSegment = "s/segments/0000000000000001.seg", kStore = "s/store";

void require(bool holds) {
  if (!holds) std::abort();
}

Result<std::unique_ptr<Volume>> open(CrashFileSystem& files, bool read_only) {
  FolderOptions options;
  options.folder = "s";
  options.files = &files;
  options.read_only = read_only;
  return open_folder_volume(options);
}

using Places = std::set<std::pair<uint64_t, uint64_t>>;

// Where records that are shown can be read as those.
Places readable(Volume& volume) {
  Places places;
  uint64_t n_damaged = 0;
  const Status status = volume.scan(
      [&](FoundRecord&& found) {
        require(found.head.kind == RecordKind::kPage && found.hits.size() == found.head.n_hits);
        std::vector<std::byte> bytes(found.head.record_bytes());
        const Status read = volume.read(found.head, found.place, 0, bytes);
        require(read.ok());  // an index names no place outside of its segment
        const Result<RecordHead> head = decode_head(bytes);
        const std::span<const std::byte> body = std::span(bytes).subspan(kRecordHeadBytes);
        if (head.ok() && head.value() == found.head && decode_body(head.value(), body).ok()) {
          places.insert({found.place.segment, found.place.offset});
        }
      },
      &n_damaged);
  require(status.ok());
  return places;
}

void put(CrashFileSystem& files, const std::string& path, std::span<const std::byte> bytes) {
  require(files.create_folder(folder_of(path)).ok());
  files.put(path, {bytes.begin(), bytes.end()});
}

std::vector<std::byte> small_page(RecordHead* head) {
  RecordDraft draft;
  draft.ids.resize(128);
  ChunkCodec codec;
  std::vector<std::byte> bytes = encode_record(&draft, 1, kDefaultZstdLevel, codec).value();
  *head = draft.head;
  return bytes;
}

void use_segment(std::span<const std::byte> bytes) {
  CrashFileSystem files;
  put(files, kStore, encode_store_file({}));
  put(files, kSegment, bytes);
  const Places before = readable(*open(files, true).value());
  RecordHead head;
  const std::vector<std::byte> page = small_page(&head);
  Place place;
  {
    const std::unique_ptr<Volume> volume = open(files, false).value();
    const Places now = readable(*volume);
    for (const auto& one : before) require(now.count(one) == 1);
    place = volume->append(head, page).value();
    require(volume->commit().ok());
  }
  const Places after = readable(*open(files, true).value());
  for (const auto& one : before) require(after.count(one) == 1);
  require(after.count({place.segment, place.offset}) == 1);
}

void use_store_file(std::span<const std::byte> bytes) {
  const Result<StoreFile> file = decode_store_file(bytes);
  CrashFileSystem files;
  put(files, kStore, bytes);
  for (const bool read_only : {true, false}) {
    const Result<std::unique_ptr<Volume>> volume = open(files, read_only);
    // One that is far too long is not looked at.
    require(volume.ok() == file.ok() || bytes.size() > 65536);
    if (!volume.ok()) continue;
    const std::vector<std::byte> expected = encode_store_file(file->identity);
    require(encode_store_file(volume.value()->identity()) == expected);
    if (!read_only) require(decode_store_file(*files.file(kStore))->both_whole);
  }
}

void use_catalogue(std::span<const std::byte> bytes) {
  const Result<Catalogue> catalogue = decode_catalogue(bytes);
  if (!catalogue.ok()) return;
  const std::vector<std::byte> written = encode_catalogue(catalogue.value());
  require(written.size() == bytes.size());
  const Result<Catalogue> again = decode_catalogue(written);
  require(again.ok() && encode_catalogue(again.value()) == written);
}

// Magic, version, id and number as a segment of this store has them.
void adopt(std::span<std::byte> segment) {
  const std::vector<std::byte> head = encode_segment_head({{}, 1, 0});
  if (segment.size() >= head.size()) std::copy(head.begin(), head.end(), segment.begin());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> bytes(size - 1);
  std::copy_n(reinterpret_cast<const std::byte*>(data) + 1, size - 1, bytes.begin());
  const int which = data[0] % 3;
  for (const bool fixed : {false, true}) {
    if (fixed && which == 0) adopt(bytes);
    if (fixed && which == 0) test::fix_segment(bytes);
    if (fixed && which == 1) test::fix_store_file(bytes);
    if (fixed && which == 2) test::fix_catalogue(bytes);
    which == 0 ? use_segment(bytes) : which == 1 ? use_store_file(bytes) : use_catalogue(bytes);
  }
  return 0;
}
