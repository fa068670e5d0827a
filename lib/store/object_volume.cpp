#include "store/object_volume.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "store/found_record.h"
#include "store/volume_files.h"

namespace dsv41::store {
namespace {

constexpr char kSeed[] = "seed";

constexpr std::string_view prefix_of(RecordKind kind) { return kind == RecordKind::kPage ? "page/" : "state/"; }

std::string object_name(RecordKind kind, const RecordKey& key) {
  return std::string(prefix_of(kind)).append(key_text(key));
}

Status host_failure(const std::string& name, const char* action, int32_t code) {
  return Status(Code::kHOST_CALLBACK, name + ": the host's " + action + " answered " + std::to_string(code), code);
}

// The host's functions, one call at a time.
class Host {
 public:
  explicit Host(const ObjectCallbacks& callbacks) : callbacks_(callbacks) {}

  // Fills `out` from `offset` on as far as the object goes; the number of bytes. *size: of the object.
  Result<size_t> get(const std::string& name, uint64_t offset, std::span<std::byte> out, uint64_t* size) {
    size_t n_filled = 0;
    do {
      const std::span<std::byte> rest = out.subspan(n_filled);
      size_t n_copied = 0;
      const int32_t code = call([&] {
        return callbacks_.get(callbacks_.user, name.c_str(), offset + n_filled, rest.data(), rest.size(), &n_copied,
                              size);
      });
      if (code == ObjectCallbacks::kMissing) return Status(Code::kNOT_FOUND, name + ": the host has no such object");
      if (code != ObjectCallbacks::kDone) return host_failure(name, "get", code);
      if (n_copied > rest.size() || (n_copied > 0 && offset + n_filled + n_copied > *size)) {
        return Status(Code::kHOST_CALLBACK, name + ": the host's get copied more than there is");
      }
      if (n_copied == 0) break;  // shorter than it was told to be
      n_filled += n_copied;
    } while (n_filled < out.size() && offset + n_filled < *size);
    return n_filled;
  }

  Status get_exactly(const std::string& name, uint64_t offset, std::span<std::byte> out) {
    uint64_t size = 0;
    DSV41_TRY_ASSIGN(const size_t n, get(name, offset, out, &size));
    if (n == out.size()) return {};
    return Status(Code::kIO_SHORT, name + ": ends before byte " + std::to_string(offset + out.size()));
  }

  Status put(const std::string& name, std::span<const std::byte> bytes) {
    const int32_t code =
        call([&] { return callbacks_.put(callbacks_.user, name.c_str(), bytes.data(), bytes.size()); });
    return code == ObjectCallbacks::kDone ? Status() : host_failure(name, "put", code);
  }

  // Ok too when it was not there.
  Status remove(const std::string& name) {
    if (!callbacks_.remove) return Status(Code::kUNSUPPORTED, "the host has no function that removes objects");
    const int32_t code = call([&] { return callbacks_.remove(callbacks_.user, name.c_str()); });
    if (code == ObjectCallbacks::kDone || code == ObjectCallbacks::kMissing) return {};
    return host_failure(name, "remove", code);
  }

  bool can_list() const { return callbacks_.list != nullptr; }

  Result<std::vector<std::string>> list(std::string_view prefix) {
    struct State {
      std::vector<std::string> names;
      bool out_of_memory = false;
    } state;
    // Called from the host's code, which no exception may cross.
    const auto visit = [](void* where, const char* name, uint64_t) {
      State& state = *static_cast<State*>(where);
      try {
        state.names.emplace_back(name);
      } catch (const std::bad_alloc&) {
        state.out_of_memory = true;
      }
    };
    const std::string text(prefix);
    const int32_t code = call([&] { return callbacks_.list(callbacks_.user, text.c_str(), visit, &state); });
    if (state.out_of_memory) return Status(Code::kNO_MEMORY, "no memory for the host's list of objects");
    if (code != ObjectCallbacks::kDone) return host_failure(text, "list", code);
    return std::move(state.names);
  }

 private:
  template <class Call>
  int32_t call(Call call) {
    std::lock_guard lock(mutex_);
    return call();
  }

  const ObjectCallbacks callbacks_;
  std::mutex mutex_;
};

class ObjectVolume final : public Volume {
 public:
  explicit ObjectVolume(const ObjectOptions& options) : options_(options), host_(options.callbacks) {}

  Status open() {
    if (!options_.callbacks.get || !(options_.callbacks.put || options_.read_only)) {
      return Status(Code::kINVALID_ARG, "a store with the host needs its functions get and put");
    }
    Status status = read_identity();
    if (status.code() != Code::kNOT_FOUND || options_.read_only) return status;
    DSV41_TRY_ASSIGN(identity_, draw_identity(options_.clock.now_unix_ns()));
    DSV41_TRY(host_.put(kSeed, encode_store_file(identity_)));
    return read_identity();  // perhaps that of another process, which put it there at the same time
  }

  const StoreIdentity& identity() const override { return identity_; }
  bool read_only() const override { return options_.read_only; }
  Catalogue read_catalogue() override { return {}; }
  Status write_catalogue(const Catalogue&) override { return check_writing(); }

  Status scan(const std::function<void(FoundRecord&&)>& visit, uint64_t* n_damaged) override {
    if (!host_.can_list()) return {};
    std::vector<FoundRecord> records;
    for (const RecordKind kind : {RecordKind::kPage, RecordKind::kState}) {
      DSV41_TRY(scan_kind(kind, &records, n_damaged));
    }
    // When they were written is not known: a page before those that stand on it will do.
    std::stable_sort(records.begin(), records.end(), [](const FoundRecord& a, const FoundRecord& b) {
      return std::tie(a.head.first_token, a.head.kind) < std::tie(b.head.first_token, b.head.kind);
    });
    for (FoundRecord& record : records) visit(std::move(record));
    return {};
  }

  Result<FoundRecord> find(RecordKind kind, const RecordKey& key) override {
    const std::string name = object_name(kind, key);
    DSV41_TRY_ASSIGN(FoundRecord found, read_front(kind, key));
    note(name, found.head.record_bytes());
    return found;
  }

  Result<Place> append(const RecordHead& head, std::span<const std::byte> record) override {
    DSV41_TRY(check_writing());
    if (record.size() != head.record_bytes()) return Status(Code::kINVALID_ARG, "a record not as its head says");
    const std::string name = object_name(head.kind, head.key);
    DSV41_TRY(host_.put(name, record));
    note(name, record.size());
    return Place{};
  }

  // Each put is durable when it has returned.
  Status commit() override { return check_writing(); }

  Status read(const RecordHead& head, const Place&, uint64_t offset, std::span<std::byte> out) override {
    if (offset > head.record_bytes() || out.size() > head.record_bytes() - offset) {
      return Status(Code::kINVALID_ARG, "beyond the end of a record");
    }
    return host_.get_exactly(object_name(head.kind, head.key), offset, out);
  }

  Status remove(const RecordHead& head, const Place&) override {
    DSV41_TRY(check_writing());
    const std::string name = object_name(head.kind, head.key);
    DSV41_TRY(host_.remove(name));
    forget(name);
    return {};
  }

  Status set_aside(const RecordHead& head, const Place& place) override { return remove(head, place); }

  std::vector<Segment> segments() const override { return {}; }
  Status close_active_segment() override { return check_writing(); }
  Status remove_segment(uint64_t) override { return Status(Code::kNOT_FOUND, "objects lie in no segments"); }

  uint64_t physical_bytes() const override {
    std::lock_guard lock(known_mutex_);
    return kStoreFileBytes + known_bytes_;
  }

  void end_writing() override { writing_ended_ = true; }

 private:
  Status check_writing() const {
    if (options_.read_only) return Status(Code::kUNSUPPORTED, "the host's objects are opened for reading only");
    if (writing_ended_) return Status(Code::kSTATE, "writing has ended");
    return {};
  }

  Status read_identity() {
    std::vector<std::byte> bytes(kStoreFileBytes);
    uint64_t size = 0;
    DSV41_TRY_ASSIGN(const size_t n, host_.get(kSeed, 0, bytes, &size));
    DSV41_TRY_ASSIGN(const StoreFile file, decode_store_file(std::span(bytes).first(n)));
    identity_ = file.identity;
    return {};
  }

  Result<FoundRecord> read_front(RecordKind kind, const RecordKey& key) {
    const std::string name = object_name(kind, key);
    std::vector<std::byte> start(kUsualFrontBytes);
    uint64_t size = 0;
    DSV41_TRY_ASSIGN(const size_t n, host_.get(name, 0, start, &size));
    if (n < std::min(size, kUsualFrontBytes)) return Status(Code::kIO_SHORT, name + ": ends before its size");
    const auto read = [&](uint64_t offset, std::span<std::byte> out) { return host_.get_exactly(name, offset, out); };
    return decode_found(kind, key, std::span(start).first(n), size, read);
  }

  Status scan_kind(RecordKind kind, std::vector<FoundRecord>* records, uint64_t* n_damaged) {
    DSV41_TRY_ASSIGN(const std::vector<std::string> names, host_.list(prefix_of(kind)));
    forget_others(kind, {names.begin(), names.end()});
    for (const std::string& name : names) {
      RecordKey key;
      const std::string_view prefix = prefix_of(kind);
      if (!name.starts_with(prefix) || !parse_key(std::string_view(name).substr(prefix.size()), &key)) continue;
      if (is_known(name)) continue;
      Result<FoundRecord> found = read_front(kind, key);
      const Code code = found.status().code();
      if (code == Code::kNOT_FOUND) continue;  // removed meanwhile
      if (found.ok()) {
        note(name, found->head.record_bytes());
        records->push_back(std::move(found).value());
      } else {
        ++*n_damaged;
        if (is_damage(code)) note(name, 0);  // nobody asks for it again, until it is put anew
      }
    }
    return {};
  }

  bool is_known(const std::string& name) const {
    std::lock_guard lock(known_mutex_);
    return known_.count(name) != 0;
  }

  void note(const std::string& name, uint64_t n_bytes) {
    std::lock_guard lock(known_mutex_);
    uint64_t& size = known_[name];
    known_bytes_ = known_bytes_ - size + n_bytes;
    size = n_bytes;
  }

  void forget(const std::string& name) {
    std::lock_guard lock(known_mutex_);
    const auto found = known_.find(name);
    if (found == known_.end()) return;
    known_bytes_ -= found->second;
    known_.erase(found);
  }

  // Those of a kind that are gone.
  void forget_others(RecordKind kind, const std::set<std::string>& there) {
    std::lock_guard lock(known_mutex_);
    for (auto known = known_.begin(); known != known_.end();) {
      const bool gone = known->first.starts_with(prefix_of(kind)) && there.count(known->first) == 0;
      if (gone) known_bytes_ -= known->second;
      known = gone ? known_.erase(known) : std::next(known);
    }
  }

  const ObjectOptions options_;
  Host host_;
  StoreIdentity identity_;
  bool writing_ended_ = false;

  mutable std::mutex known_mutex_;         // find() runs on any thread
  std::map<std::string, uint64_t> known_;  // objects that were shown or appended, and their sizes
  uint64_t known_bytes_ = 0;               // of them all
};

}  // namespace

Result<std::unique_ptr<Volume>> open_object_volume(const ObjectOptions& options) {
  std::unique_ptr<ObjectVolume> volume = std::make_unique<ObjectVolume>(options);
  DSV41_TRY(volume->open());
  return std::unique_ptr<Volume>(std::move(volume));
}

}  // namespace dsv41::store
