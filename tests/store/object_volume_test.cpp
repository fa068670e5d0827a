#include "store/object_volume.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "store/volume_files.h"
#include "store/volume_fixture.h"

namespace dsv41::test {
namespace {

using store::ObjectCallbacks;
using store::Place;
using store::Volume;

// A host that keeps objects in a map, and answers as a test wants it to.
class MapHost {
 public:
  std::map<std::string, std::vector<std::byte>> objects;
  size_t most_at_once = SIZE_MAX;     // bytes that one get copies
  uint64_t given_bytes = UINT64_MAX;  // of each object; get copies nothing beyond, whatever its size is
  size_t n_too_many = 0;              // that get says it copied beyond what it was asked for
  uint64_t n_calls = 0, failing_call = 0;
  int32_t failure = 0;
  std::string failing_function;     // empty: any
  std::function<void()> after_put;  // called once
  std::atomic<int> n_inside = 0, n_overlaps = 0;

  ObjectCallbacks callbacks() {
    ObjectCallbacks callbacks;
    callbacks.user = this;
    callbacks.get = [](void* user, const char* name, uint64_t offset, void* buffer, size_t capacity, size_t* n_copied,
                       uint64_t* size) {
      MapHost& host = *static_cast<MapHost*>(user);
      const Inside inside(host);
      if (host.fails("get")) return host.failure;
      const auto found = host.objects.find(name);
      if (found == host.objects.end()) return ObjectCallbacks::kMissing;
      *size = found->second.size();
      const uint64_t end = std::min(*size, host.given_bytes);
      const size_t n_there = offset < end ? static_cast<size_t>(end - offset) : 0;
      const size_t n = std::min({capacity, n_there, host.most_at_once});
      std::copy_n(found->second.begin() + static_cast<ptrdiff_t>(std::min(offset, *size)), n,
                  static_cast<std::byte*>(buffer));
      *n_copied = n + host.n_too_many;
      return ObjectCallbacks::kDone;
    };
    callbacks.put = [](void* user, const char* name, const void* bytes, size_t size) {
      MapHost& host = *static_cast<MapHost*>(user);
      const Inside inside(host);
      if (host.fails("put")) return host.failure;
      const std::byte* const first = static_cast<const std::byte*>(bytes);
      host.objects[name].assign(first, first + size);
      if (host.after_put) std::exchange(host.after_put, nullptr)();
      return ObjectCallbacks::kDone;
    };
    callbacks.remove = [](void* user, const char* name) {
      MapHost& host = *static_cast<MapHost*>(user);
      const Inside inside(host);
      if (host.fails("remove")) return host.failure;
      return host.objects.erase(name) != 0 ? ObjectCallbacks::kDone : ObjectCallbacks::kMissing;
    };
    callbacks.list = [](void* user, const char* prefix, void (*visit)(void*, const char*, uint64_t), void* state) {
      MapHost& host = *static_cast<MapHost*>(user);
      const Inside inside(host);
      if (host.fails("list")) return host.failure;
      for (const auto& [name, bytes] : host.objects) {
        if (name.starts_with(prefix)) visit(state, name.c_str(), bytes.size());
      }
      return ObjectCallbacks::kDone;
    };
    return callbacks;
  }

  void fail(uint64_t n, int32_t code, std::string function = "") {
    n_calls = 0;
    failing_call = n;
    failure = code;
    failing_function = std::move(function);
  }

 private:
  struct Inside {
    explicit Inside(MapHost& host) : host(host) {
      if (host.n_inside.fetch_add(1) != 0) ++host.n_overlaps;
    }
    ~Inside() { --host.n_inside; }
    MapHost& host;
  };
  bool fails(const std::string& function) {
    return (failing_function.empty() || failing_function == function) && ++n_calls == failing_call;
  }
};

Result<std::unique_ptr<Volume>> open_host(MapHost& host, bool read_only = false, bool can_list = true) {
  store::ObjectOptions options;
  options.callbacks = host.callbacks();
  if (!can_list) options.callbacks.list = nullptr;
  options.read_only = read_only;
  options.clock.now = [](void*) { return kRecordTime; };
  return store::open_object_volume(options);
}

std::unique_ptr<Volume> opened(MapHost& host, bool read_only = false, bool can_list = true) {
  Result<std::unique_ptr<Volume>> volume = open_host(host, read_only, can_list);
  REQUIRE_MESSAGE(volume.ok(), volume.status().message());
  return std::move(volume).value();
}

void write(Volume& volume, const MadeRecord& made) {
  const Result<Place> place = volume.append(made.head(), made.bytes);
  REQUIRE_MESSAGE(place.ok(), place.status().message());
  CHECK(place.value() == Place());
  REQUIRE(volume.commit().ok());
}

void check_shows(Volume& volume, const std::vector<const MadeRecord*>& expected, uint64_t n_damaged = 0) {
  const Scanned scanned = scan_all(volume);
  REQUIRE(scanned.status.ok());
  CHECK(scanned.n_damaged == n_damaged);
  REQUIRE(scanned.records.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    const Status status = check_found(volume, *expected[i], scanned.records[i]);
    CHECK_MESSAGE(status.ok(), status.message());
  }
}

std::string page_name(const MadeRecord& made) { return "page/" + store::key_text(made.head().key); }
std::string state_name(const MadeRecord& made) { return "state/" + store::key_text(made.head().key); }

struct Records {
  MadeRecord first{page_draft(0)}, second{page_draft(1, 5000, {128})}, third{page_draft(2)};
  MadeRecord state{state_draft(2, 9000)};
};

TEST_SUITE("store/object_volume") {
  TEST_CASE("records come back from the host, pages before what stands on them") {
    const Records records;
    for (const size_t most_at_once : {SIZE_MAX, size_t{1000}, size_t{7}, size_t{1}}) {
      CAPTURE(most_at_once);
      MapHost host;
      host.most_at_once = most_at_once;
      store::StoreIdentity identity;
      {
        const std::unique_ptr<Volume> volume = opened(host);
        identity = volume->identity();
        CHECK(identity.created_unix_ns == kRecordTime);
        for (const MadeRecord* one : {&records.state, &records.third, &records.first, &records.second}) {
          write(*volume, *one);
          CHECK(check_at(*volume, *one, {}).ok());
        }
        check_shows(*volume, {});
        CHECK(volume->segments().empty());
      }
      CHECK(host.objects.size() == 5);
      CHECK(host.objects[page_name(records.first)] == records.first.bytes);
      CHECK(host.objects[state_name(records.state)] == records.state.bytes);
      for (const bool read_only : {true, false}) {
        const std::unique_ptr<Volume> volume = opened(host, read_only);
        CHECK(volume->identity().seed == identity.seed);
        check_shows(*volume, {&records.first, &records.second, &records.third, &records.state});
        check_shows(*volume, {});
      }
    }
  }

  TEST_CASE("what another process has put there is shown next time, or found by its name") {
    const Records records;
    MapHost host;
    const std::unique_ptr<Volume> one = opened(host), other = opened(host), blind = opened(host, true, false);
    write(*one, records.first);
    check_shows(*other, {&records.first});
    write(*one, records.second);
    const Result<store::FoundRecord> found = other->find(store::RecordKind::kPage, records.second.head().key);
    REQUIRE(found.ok());
    CHECK(check_found(*other, records.second, found.value()).ok());
    check_shows(*other, {});
    check_shows(*blind, {});
    CHECK(blind->find(store::RecordKind::kPage, records.first.head().key).ok());
    CHECK(blind->find(store::RecordKind::kState, records.state.head().key).status().code() == Code::kNOT_FOUND);
  }

  TEST_CASE("of two that make the seed at once, both take the one that is there afterwards") {
    MapHost host;
    store::StoreIdentity winner;
    winner.seed.fill(std::byte{0x42});
    host.after_put = [&] { host.objects["seed"] = store::encode_store_file(winner); };
    CHECK(opened(host)->identity().seed == winner.seed);
    CHECK(opened(host)->identity().seed == winner.seed);
  }

  TEST_CASE("a place without a seed is no store for a reader, and one with a damaged seed for nobody") {
    MapHost host;
    CHECK(open_host(host, true).status().code() == Code::kNOT_FOUND);
    CHECK(host.objects.empty());
    opened(host);
    const std::vector<std::byte> seed = host.objects["seed"];
    for (const size_t size : {size_t{0}, size_t{127}}) {
      host.objects["seed"].assign(size, std::byte{1});
      CHECK(open_host(host).status().code() == Code::kCORRUPT);
    }
    host.objects["seed"] = seed;
    host.objects["seed"][100] ^= std::byte{1};  // one of two copies
    CHECK(open_host(host).ok());
  }

  TEST_CASE("functions that are missing are told when they are needed") {
    MapHost host;
    store::ObjectOptions options;
    CHECK(store::open_object_volume(options).status().code() == Code::kINVALID_ARG);
    options.callbacks.get = host.callbacks().get;
    options.callbacks.user = &host;
    CHECK(store::open_object_volume(options).status().code() == Code::kINVALID_ARG);
    options.callbacks.put = host.callbacks().put;
    const Result<std::unique_ptr<Volume>> volume = store::open_object_volume(options);
    REQUIRE(volume.ok());
    const Records records;
    write(*volume.value(), records.first);
    CHECK(volume.value()->remove(records.first.head(), {}).code() == Code::kUNSUPPORTED);
    options.callbacks.put = nullptr;
    options.read_only = true;
    CHECK(store::open_object_volume(options).ok());
  }

  TEST_CASE("what the host answers is told with its value") {
    const Records records;
    const store::RecordHead& head = records.first.head();
    std::vector<std::byte> bytes(10);
    for (const int32_t code : {-7, 2, INT32_MIN, INT32_MAX}) {
      CAPTURE(code);
      MapHost host;
      const std::unique_ptr<Volume> volume = opened(host);
      write(*volume, records.first);
      struct Row {
        std::string function;
        std::function<Status()> call;
      };
      const Row rows[] = {
          {"get", [&] { return volume->read(head, {}, 0, bytes); }},
          {"get", [&] { return volume->find(store::RecordKind::kPage, head.key).status(); }},
          {"put", [&] { return volume->append(head, records.first.bytes).status(); }},
          {"remove", [&] { return volume->remove(head, {}); }},
          {"remove", [&] { return volume->set_aside(head, {}); }},
          {"list", [&] { return scan_all(*volume).status; }},
          {"get", [&] { return open_host(host).status(); }},
      };
      for (const Row& row : rows) {
        CAPTURE(row.function);
        host.fail(1, code, row.function);
        const Status status = row.call();
        CHECK(status.code() == Code::kHOST_CALLBACK);
        CHECK(status.os_error() == code);
        CHECK(check_at(*volume, records.first, {}).ok());
      }
    }
  }

  TEST_CASE("only get and remove may say that there is no such object") {
    const Records records;
    MapHost host;
    const std::unique_ptr<Volume> volume = opened(host);
    CHECK(check_at(*volume, records.first, {}).code() == Code::kNOT_FOUND);
    CHECK(volume->remove(records.first.head(), {}).ok());
    for (const std::string function : {"put", "list"}) {
      CAPTURE(function);
      host.fail(1, ObjectCallbacks::kMissing, function);
      const Status status = function == "put" ? volume->append(records.first.head(), records.first.bytes).status()
                                              : scan_all(*volume).status;
      CHECK(status.code() == Code::kHOST_CALLBACK);
      CHECK(status.os_error() == ObjectCallbacks::kMissing);
    }
  }

  TEST_CASE("objects that are lost, cut off, longer or of another name are not records") {
    const Records records;
    MapHost host;
    {
      const std::unique_ptr<Volume> volume = opened(host);
      for (const MadeRecord* one : {&records.first, &records.second, &records.third, &records.state}) {
        write(*volume, *one);
      }
    }
    const std::unique_ptr<Volume> before = opened(host);
    scan_all(*before);
    host.objects[page_name(records.first)].pop_back();
    host.objects[page_name(records.second)] = records.third.bytes;
    host.objects[state_name(records.state)].push_back(std::byte{0});
    host.objects["page/readme"] = {};
    host.objects.erase(page_name(records.third));
    check_shows(*opened(host), {}, 3);
    CHECK(check_at(*before, records.first, {}).code() == Code::kIO_SHORT);
    CHECK(check_at(*before, records.second, {}).code() == Code::kIO_SHORT);
    CHECK(check_at(*before, records.third, {}).code() == Code::kNOT_FOUND);
    // Put anew, they are what they were.
    for (const MadeRecord* one : {&records.first, &records.second, &records.third}) write(*before, *one);
    CHECK(check_at(*before, records.second, {}).ok());
    check_shows(*opened(host), {&records.first, &records.second, &records.third}, 1);
  }

  TEST_CASE("a damaged object that is noticed by a scan is asked for once, and found again when it is whole") {
    const Records records;
    MapHost host;
    write(*opened(host), records.first);
    host.objects[page_name(records.first)][5] ^= std::byte{1};
    const std::unique_ptr<Volume> volume = opened(host);
    check_shows(*volume, {}, 1);
    check_shows(*volume, {}, 0);
    host.objects[page_name(records.first)] = records.first.bytes;
    CHECK(volume->find(store::RecordKind::kPage, records.first.head().key).ok());
    CHECK(volume->physical_bytes() == store::kStoreFileBytes + records.first.bytes.size());
  }

  TEST_CASE("an object that the host gives less of than it is large is tried again next time") {
    const Records records;
    MapHost host;
    write(*opened(host), records.first);
    const std::unique_ptr<Volume> volume = opened(host);
    for (const uint64_t given_bytes : {0, 100, 600}) {
      CAPTURE(given_bytes);
      host.given_bytes = given_bytes;
      check_shows(*volume, {}, 1);
      CHECK(volume->find(store::RecordKind::kPage, records.first.head().key).status().code() == Code::kIO_SHORT);
    }
    host.given_bytes = UINT64_MAX;
    check_shows(*volume, {&records.first});
  }

  TEST_CASE("no flipped bit of an object gives another record") {
    const Records records;
    MapHost host;
    write(*opened(host), records.third);
    const std::unique_ptr<Volume> known = opened(host, true);
    check_shows(*known, {&records.third});
    std::vector<std::byte>& object = host.objects[page_name(records.third)];
    for (size_t bit = 0; bit < object.size() * 8; bit += bit < store::kRecordHeadBytes * 8 ? 1 : 7) {
      CAPTURE(bit);
      object[bit / 8] ^= std::byte{1} << bit % 8;
      REQUIRE_FALSE(check_at(*known, records.third, {}).ok());
      const std::unique_ptr<Volume> volume = opened(host, true);
      for (const store::FoundRecord& found : scan_all(*volume).records) {
        REQUIRE(found.head == records.third.head());
        REQUIRE_FALSE(check_found(*volume, records.third, found).ok());
      }
      object[bit / 8] ^= std::byte{1} << bit % 8;
    }
  }

  TEST_CASE("a host that claims to have copied more than it was asked for is not believed") {
    const Records records;
    MapHost host;
    const std::unique_ptr<Volume> volume = opened(host);
    write(*volume, records.first);
    host.n_too_many = 1;
    CHECK(check_at(*volume, records.first, {}).code() == Code::kHOST_CALLBACK);
    CHECK(volume->find(store::RecordKind::kPage, records.first.head().key).status().code() == Code::kHOST_CALLBACK);
  }

  TEST_CASE("a host whose n-th call fails loses nothing that it took") {
    const Records records;
    const MadeRecord* all[] = {&records.first, &records.second, &records.third, &records.state};
    for (const int32_t code : {-1, 3}) {
      for (uint64_t n = 1;; ++n) {
        CAPTURE(n);
        MapHost host;
        host.fail(n, code);
        std::vector<const MadeRecord*> taken;
        for (int round = 0; round < 2; ++round) {
          const Result<std::unique_ptr<Volume>> volume = open_host(host);
          if (!volume.ok()) continue;
          scan_all(*volume.value());
          for (const MadeRecord* one : all) {
            if (volume.value()->append(one->head(), one->bytes).ok() && round == 0) taken.push_back(one);
          }
        }
        const bool struck = host.n_calls >= n;
        host.fail(0, 0);
        const std::unique_ptr<Volume> volume = opened(host);
        const Scanned scanned = scan_all(*volume);
        for (const MadeRecord* one : taken) {
          const store::FoundRecord* found = scanned.find(one->head());
          REQUIRE(found != nullptr);
          CHECK(check_found(*volume, *one, *found).ok());
        }
        if (!struck) break;
      }
    }
  }

  TEST_CASE("a reader writes nothing, and neither does one whose writing has ended") {
    const Records records;
    MapHost host;
    const std::unique_ptr<Volume> ended = opened(host);
    write(*ended, records.first);
    const std::unique_ptr<Volume> reader = opened(host, true);
    ended->end_writing();
    const std::map<std::string, std::vector<std::byte>> before = host.objects;
    for (Volume* volume : {reader.get(), ended.get()}) {
      const Code code = volume == reader.get() ? Code::kUNSUPPORTED : Code::kSTATE;
      CHECK(volume->append(records.second.head(), records.second.bytes).status().code() == code);
      CHECK(volume->commit().code() == code);
      CHECK(volume->remove(records.first.head(), {}).code() == code);
      CHECK(volume->set_aside(records.first.head(), {}).code() == code);
      CHECK(volume->write_catalogue({}).code() == code);
      CHECK(check_at(*volume, records.first, {}).ok());
    }
    CHECK(host.objects == before);
  }

  TEST_CASE("bytes are counted of what was shown or appended") {
    const Records records;
    MapHost host;
    const std::unique_ptr<Volume> volume = opened(host);
    uint64_t expected = store::kStoreFileBytes;
    CHECK(volume->physical_bytes() == expected);
    for (const MadeRecord* one : {&records.first, &records.second, &records.first}) write(*volume, *one);
    expected += records.first.bytes.size() + records.second.bytes.size();
    CHECK(volume->physical_bytes() == expected);
    const std::unique_ptr<Volume> later = opened(host);
    CHECK(later->physical_bytes() == store::kStoreFileBytes);
    scan_all(*later);
    CHECK(later->physical_bytes() == expected);
    REQUIRE(volume->set_aside(records.first.head(), {}).ok());
    expected -= records.first.bytes.size();
    CHECK(volume->physical_bytes() == expected);
    scan_all(*later);
    CHECK(later->physical_bytes() == expected);
  }

  TEST_CASE("the host is called by one thread at a time") {
    const Records records;
    MapHost host;
    const std::unique_ptr<Volume> volume = opened(host);
    const MadeRecord* all[] = {&records.first, &records.second, &records.third, &records.state};
    for (const MadeRecord* one : all) write(*volume, *one);
    std::atomic<uint64_t> n_wrong = 0;
    std::vector<std::thread> readers;
    for (size_t t = 0; t < 3; ++t) {
      readers.emplace_back([&, t] {
        for (size_t i = 0; i < 300; ++i) {
          const MadeRecord& one = *all[(i + t) % 4];
          if (!check_at(*volume, one, {}).ok() || !volume->find(one.head().kind, one.head().key).ok()) ++n_wrong;
        }
      });
    }
    for (size_t i = 0; i < 300; ++i) write(*volume, *all[i % 4]);
    for (std::thread& reader : readers) reader.join();
    CHECK(n_wrong == 0);
    CHECK(host.n_overlaps == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
