// ObjectVolume: records as objects in a place of the host's: its own object store, Redis, another process. Names and
// bytes: FORMAT.md. Several processes may write at once: objects are named by content, so they write the same.
//
// There is no catalogue: times of use and pins live as long as the process.
#pragma once

#include <memory>

#include "base/clock.h"
#include "store/volume.h"

namespace dsv41::store {

// The host's functions. They may be called from the store's threads, one at a time. A value other than those named is a
// failure; it becomes HOST_CALLBACK with that value.
struct ObjectCallbacks {
  static constexpr int32_t kDone = 0, kMissing = 1;
  // Copies at most `capacity` bytes from `offset` of the object on, and tells its whole size.
  int32_t (*get)(void* user, const char* name, uint64_t offset, void* buffer, size_t capacity, size_t* n_copied,
                 uint64_t* size) = nullptr;
  // The object is there as a whole and durable (as far as the host promises) when it returns; replaces an older one.
  int32_t (*put)(void* user, const char* name, const void* bytes, size_t size) = nullptr;
  int32_t (*remove)(void* user, const char* name) = nullptr;
  // Calls visit(state, name, size) for each object whose name begins with `prefix`. May be null: then records are found
  // by asking for them, and not listed.
  int32_t (*list)(void* user, const char* prefix, void (*visit)(void* state, const char* name, uint64_t size),
                  void* state) = nullptr;
  void* user = nullptr;
};

struct ObjectOptions {
  ObjectCallbacks callbacks;
  bool read_only = false;
  WallClock clock;
};

// Makes the object `seed` where there is none; of two that do so at once, the one whose object is there afterwards
// wins. INVALID_ARG without `get`, or without `put` where it is to be written; NOT_FOUND: read-only, and no seed.
Result<std::unique_ptr<Volume>> open_object_volume(const ObjectOptions& options);

}  // namespace dsv41::store
