#include "store/folder_volume.h"

#include <new>
#include <utility>

#include "store/segment_folder.h"
#include "store/state_folder.h"
#include "store/volume_files.h"

namespace dsv41::store {
namespace {

constexpr size_t kOpenFiles = 64;
constexpr uint64_t kMaxStoreFileBytes = 65536;  // whatever later versions add

// The whole of a small file. LIMIT when it is larger than max_bytes.
Result<std::vector<std::byte>> read_whole(FileSystem& files, const std::string& path, uint64_t max_bytes) {
  DSV41_TRY_ASSIGN(const std::unique_ptr<File> file, files.open(path, FileSystem::Mode::kRead));
  DSV41_TRY_ASSIGN(const uint64_t n_bytes, file->size());
  if (n_bytes > max_bytes) return Status(Code::kLIMIT, path + ": larger than " + std::to_string(max_bytes) + " bytes");
  std::vector<std::byte> bytes(n_bytes);
  DSV41_TRY(read_exactly(*file, path, 0, bytes));
  return bytes;
}

class FolderVolume final : public Volume {
 public:
  explicit FolderVolume(const FolderOptions& options)
      : options_(options),
        files_(options.files ? *options.files : system_file_system()),
        open_files_(files_, kOpenFiles),
        segments_(files_, open_files_,
                  {options.folder + "/segments", options.read_only, options.segment_bytes, options.clock}),
        states_(files_, open_files_, options.folder + "/states", options.read_only) {}

  Status open() {
    if (options_.read_only) {
      DSV41_TRY(read_identity());
      DSV41_TRY(load_catalogue());
      return segments_.open(identity_);
    }
    DSV41_TRY(files_.create_folder(options_.folder));
    DSV41_TRY_ASSIGN(lock_, files_.lock(path_of("lock")));
    Status status = read_identity();
    if (status.code() == Code::kNOT_FOUND) status = make_identity();
    DSV41_TRY(std::move(status));
    for (const char* name : {"segments", "states"}) DSV41_TRY(files_.create_folder(path_of(name)));
    for (const std::string& folder : {options_.folder, path_of("segments"), path_of("states")}) {
      DSV41_TRY(tidy_up(folder));
    }
    DSV41_TRY(load_catalogue());
    return segments_.open(identity_);
  }

  const StoreIdentity& identity() const override { return identity_; }
  bool read_only() const override { return options_.read_only; }

  Catalogue read_catalogue() override {
    static_cast<void>(load_catalogue().ok());  // else as it was the last time
    return catalogue_;
  }

  Status write_catalogue(const Catalogue& catalogue) override {
    DSV41_TRY(check_writing());
    const std::vector<std::byte> bytes = encode_catalogue(catalogue);
    if (bytes.size() > kMaxCatalogueBytes) return Status(Code::kLIMIT, path_of("catalogue") + ": would be too large");
    DSV41_TRY(replace_file(files_, path_of("catalogue"), bytes));
    catalogue_bytes_ = bytes.size();
    return {};
  }

  Status scan(const std::function<void(FoundRecord&&)>& visit, uint64_t* n_damaged) override {
    DSV41_TRY(segments_.scan(visit, n_damaged));
    return states_.scan(visit, n_damaged);
  }

  Result<FoundRecord> find(RecordKind kind, const RecordKey& key) override {
    if (kind == RecordKind::kState) return states_.find(key);
    return Status(Code::kNOT_FOUND, "pages in segments are found by scan()");
  }

  Result<Place> append(const RecordHead& head, std::span<const std::byte> record) override {
    DSV41_TRY(check_writing());
    if (record.size() != head.record_bytes()) return Status(Code::kINVALID_ARG, "a record not as its head says");
    Result<Place> place = Place();
    const Status status = in_group([&] {
      if (head.kind == RecordKind::kState) return states_.append(head.key, record);
      place = segments_.append(head, record);
      return place.status();
    });
    if (!status.ok()) return status;
    return place;
  }

  // Pages first: states stand on them.
  Status commit() override {
    DSV41_TRY(check_writing());
    return in_group([&] {
      DSV41_TRY(segments_.commit());
      return states_.commit();
    });
  }

  Status read(const RecordHead& head, const Place& place, uint64_t offset, std::span<std::byte> out) override {
    if (offset > head.record_bytes() || out.size() > head.record_bytes() - offset) {
      return Status(Code::kINVALID_ARG, "beyond the end of a record");
    }
    return place.segment == 0 ? states_.read(head.key, offset, out) : segments_.read(place, offset, out);
  }

  Status remove(const RecordHead& head, const Place& place) override {
    DSV41_TRY(check_writing());
    return place.segment == 0 ? states_.remove(head.key) : Status();
  }

  Status set_aside(const RecordHead& head, const Place& place) override {
    DSV41_TRY(check_writing());
    return place.segment == 0 ? states_.set_aside(head.key) : Status();
  }

  std::vector<Segment> segments() const override { return segments_.list(); }

  Status close_active_segment() override {
    DSV41_TRY(check_writing());
    return in_group([&] { return segments_.close_active(); });
  }

  Status remove_segment(uint64_t number) override {
    DSV41_TRY(check_writing());
    return segments_.remove(number);
  }

  uint64_t physical_bytes() const override {
    return kStoreFileBytes + catalogue_bytes_ + segments_.physical_bytes() + states_.physical_bytes();
  }

  void end_writing() override {
    if (options_.read_only || std::exchange(writing_ended_, true)) return;
    segments_.end_writing();
    states_.roll_back();
    lock_.reset();
  }

 private:
  std::string path_of(const char* name) const { return options_.folder + "/" + name; }

  Status check_writing() const {
    if (options_.read_only) return Status(Code::kUNSUPPORTED, options_.folder + ": opened for reading only");
    if (writing_ended_) return Status(Code::kSTATE, options_.folder + ": writing has ended");
    return {};
  }

  // Does a part of a group of writes. When it fails, all of the group is dropped.
  template <class Work>
  Status in_group(Work work) {
    Status status;
    try {
      status = work();
    } catch (const std::bad_alloc&) {
      status = Status(Code::kNO_MEMORY, "no memory to write to a store");
    }
    if (status.ok()) return status;
    states_.roll_back();
    segments_.roll_back();
    return status;
  }

  Status read_identity() {
    const Result<std::vector<std::byte>> bytes = read_whole(files_, path_of("store"), kMaxStoreFileBytes);
    if (!bytes.ok()) return bytes.status();
    Result<StoreFile> file = decode_store_file(bytes.value());
    if (!file.ok()) return std::move(file).status().with_context(options_.folder);
    identity_ = file->identity;
    // One copy is enough, but it is the last one. What hinders writing it anew does not hinder going on.
    if (!file->both_whole && !options_.read_only) {
      static_cast<void>(replace_file(files_, path_of("store"), encode_store_file(identity_)).ok());
    }
    return {};
  }

  Status make_identity() {
    DSV41_TRY_ASSIGN(identity_, draw_identity(options_.clock.now_unix_ns()));
    return replace_file(files_, path_of("store"), encode_store_file(identity_));
  }

  // A catalogue that cannot be read now is not an empty one: the next that is written would be without what it had.
  Status load_catalogue() {
    const Result<std::vector<std::byte>> bytes = read_whole(files_, path_of("catalogue"), kMaxCatalogueBytes);
    const Code code = bytes.status().code();
    if (!bytes.ok() && code != Code::kNOT_FOUND && code != Code::kLIMIT) return bytes.status();
    catalogue_bytes_ = bytes.ok() ? bytes->size() : 0;
    Result<Catalogue> catalogue = bytes.ok() ? decode_catalogue(bytes.value()) : Catalogue();
    catalogue_ = catalogue.ok() ? std::move(catalogue).value() : Catalogue();
    return {};
  }

  // Removes what an earlier writer left unfinished, and makes the names durable that it had given.
  Status tidy_up(const std::string& folder) {
    DSV41_TRY_ASSIGN(const std::vector<FolderEntry> entries, files_.list(folder));
    for (const FolderEntry& entry : entries) {
      if (entry.is_folder || !(is_temporary_name(entry.name) || StateFolder::is_set_aside(entry.name))) continue;
      static_cast<void>(files_.unlink(folder + "/" + entry.name).ok());
    }
    return files_.sync_folder(folder);
  }

  const FolderOptions options_;
  FileSystem& files_;
  std::unique_ptr<FileLock> lock_;  // given back after all files are closed
  StoreIdentity identity_;
  FileCache open_files_;
  SegmentFolder segments_;
  StateFolder states_;
  Catalogue catalogue_;  // as it was read last
  uint64_t catalogue_bytes_ = 0;
  bool writing_ended_ = false;
};

}  // namespace

Result<std::unique_ptr<Volume>> open_folder_volume(const FolderOptions& options) {
  std::unique_ptr<FolderVolume> volume = std::make_unique<FolderVolume>(options);
  DSV41_TRY(volume->open());
  return std::unique_ptr<Volume>(std::move(volume));
}

}  // namespace dsv41::store
