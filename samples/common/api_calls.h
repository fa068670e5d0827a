// What each sample needs to call the C API from C++: structs with their size and defaults set, handles that release
// themselves, errors as exceptions, lists through the two calls of the header's buffer convention.
#pragma once

#include <dsv41/dsv41.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace dsv41_samples {

// A struct of the header with its size and defaults set.
template <class T>
T made_by(void (*init)(T*, size_t)) {
  T value;
  init(&value, sizeof value);
  return value;
}

// A call of the library failed.
class ApiError : public std::runtime_error {
 public:
  explicit ApiError(const dsv41_error& error)
      : std::runtime_error(error.message[0] ? std::string(error.message) : std::string(dsv41_status_text(error.code))),
        code_(error.code) {}
  int32_t code() const { return code_; }

 private:
  int32_t code_;
};

// An error of the program in the shape of the library's, so that one way of telling serves both.
inline ApiError error_of(dsv41_status code, const std::string& message) {
  dsv41_error error = made_by(dsv41_error_init);
  error.code = code;
  std::snprintf(error.message, sizeof error.message, "%s", message.c_str());
  return ApiError(error);
}

// "CHECKSUM: what happened", for people.
inline std::string explained(const ApiError& error) {
  return std::string(dsv41_status_name(error.code())) + ": " + error.what();
}

// Calls the library with an error struct as the last argument. Throws when it fails, else gives the status: OK or a
// positive one.
template <class Function, class... Arguments>
dsv41_status call(Function function, Arguments... arguments) {
  dsv41_error error = made_by(dsv41_error_init);
  const dsv41_status status = function(arguments..., &error);
  if (status < 0) throw ApiError(error);
  return status;
}

// Reads a list: `function` takes buffer, capacity, n and error.
template <class T, class Function>
std::vector<T> read_list(Function function) {
  size_t n = 0;
  call([&](dsv41_error* error) { return function(nullptr, size_t{0}, &n, error); });
  std::vector<T> list(n);
  if (n > 0) call([&](dsv41_error* error) { return function(list.data(), list.size(), &n, error); });
  list.resize(n);
  return list;
}

template <auto release>
struct Releaser {
  template <class T>
  void operator()(T* handle) const {
    release(handle);
  }
};
template <class T, auto release>
using Handle = std::unique_ptr<T, Releaser<release>>;

using Runtime = Handle<dsv41_runtime, dsv41_runtime_release>;
using Session = Handle<dsv41_session, dsv41_session_release>;
using Snapshot = Handle<dsv41_snapshot, dsv41_snapshot_release>;
using Store = Handle<dsv41_store, dsv41_store_release>;

inline Snapshot opened_snapshot(dsv41_runtime* runtime, const std::string& path) {
  dsv41_snapshot* snapshot = nullptr;
  call(dsv41_snapshot_open_file, runtime, path.data(), path.size(), &snapshot);
  return Snapshot(snapshot);
}

inline dsv41_snapshot_info info_of(const Snapshot& snapshot) {
  auto info = made_by(dsv41_snapshot_info_init);
  call(dsv41_snapshot_info_get, snapshot.get(), &info);
  return info;
}

// lock: DSV41_LOCK_*.
inline Store opened_store(dsv41_runtime* runtime, const std::string& folder, uint32_t lock) {
  auto options = made_by(dsv41_store_options_init);
  options.folder = folder.data();
  options.folder_size = folder.size();
  options.lock = lock;
  dsv41_store* store = nullptr;
  call(dsv41_store_open, runtime, &options, &store);
  return Store(store);
}

}  // namespace dsv41_samples
