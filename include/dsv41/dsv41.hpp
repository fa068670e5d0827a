// dsv41.hpp: a thin C++17 wrapper over dsv41.h: handles as move-only classes, failures as exceptions, texts and tokens
// as standard containers. Header-only; everything goes through the C API, whose comments are the manual.
//
//     dsv41::Runtime runtime;
//     dsv41::Model model(runtime, "samples/nano");
//     dsv41::Pool pool(model);
//     dsv41::Session session(pool);
//     dsv41::Sampler sampler(model);
//     session.prefill(model.chat_render(R"({"messages": [{"role": "user", "content": "What is 4 + 5?"}]})"));
//     session.generate(sampler, [](const dsv41_token_event& event) {
//       std::cout << std::string_view(event.text, event.text_size);
//       return true;
//     });
//     session.save("chat.dsv41");
//     dsv41::Session again = dsv41::Snapshot::open_file(runtime, "chat.dsv41").restore(pool);
//     dsv41::Store store(runtime, "chats");
//     store.put(session);
//
// Options and results are the structs of the C API; make<T>() gives one with its defaults. Every call may throw Error.
// Objects are moved, not copied; a moved-from object may only be destroyed or assigned to. Order of destruction is
// free. An exception thrown by a callback stops the call and comes out of it unchanged.
#ifndef DSV41_DSV41_HPP
#define DSV41_DSV41_HPP

#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "dsv41.h"

namespace dsv41 {
// The inline namespace keeps these names apart from the library's own when it is linked statically.
inline namespace hpp {

// A failed call: what() is "place: message".
class Error : public std::runtime_error {
 public:
  explicit Error(const dsv41_error& error)
      : std::runtime_error(std::string(error.place) + ": " + error.message),
        status_(error.code),
        os_error_(error.os_error),
        host_code_(error.host_code),
        place_(error.place) {}

  dsv41_status status() const noexcept { return status_; }
  const char* name() const noexcept { return dsv41_status_name(status_); }
  int32_t os_error() const noexcept { return os_error_; }
  int32_t host_code() const noexcept { return host_code_; }
  const std::string& place() const noexcept { return place_; }

 private:
  dsv41_status status_;
  int32_t os_error_;
  int32_t host_code_;
  std::string place_;
};

namespace detail {

inline void init(dsv41_error* value, size_t size) { dsv41_error_init(value, size); }
inline void init(dsv41_build_info* value, size_t size) { dsv41_build_info_init(value, size); }
inline void init(dsv41_runtime_options* value, size_t size) { dsv41_runtime_options_init(value, size); }
inline void init(dsv41_model_options* value, size_t size) { dsv41_model_options_init(value, size); }
inline void init(dsv41_model_info* value, size_t size) { dsv41_model_info_init(value, size); }
inline void init(dsv41_fingerprint* value, size_t size) { dsv41_fingerprint_init(value, size); }
inline void init(dsv41_plan_options* value, size_t size) { dsv41_plan_options_init(value, size); }
inline void init(dsv41_plan* value, size_t size) { dsv41_plan_init(value, size); }
inline void init(dsv41_pool_options* value, size_t size) { dsv41_pool_options_init(value, size); }
inline void init(dsv41_pool_stats* value, size_t size) { dsv41_pool_stats_init(value, size); }
inline void init(dsv41_session_options* value, size_t size) { dsv41_session_options_init(value, size); }
inline void init(dsv41_session_info* value, size_t size) { dsv41_session_info_init(value, size); }
inline void init(dsv41_input* value, size_t size) { dsv41_input_init(value, size); }
inline void init(dsv41_run_options* value, size_t size) { dsv41_run_options_init(value, size); }
inline void init(dsv41_run_result* value, size_t size) { dsv41_run_result_init(value, size); }
inline void init(dsv41_replay_options* value, size_t size) { dsv41_replay_options_init(value, size); }
inline void init(dsv41_replay_plan* value, size_t size) { dsv41_replay_plan_init(value, size); }
inline void init(dsv41_replay_info* value, size_t size) { dsv41_replay_info_init(value, size); }
inline void init(dsv41_sampler_options* value, size_t size) { dsv41_sampler_options_init(value, size); }
inline void init(dsv41_sample_result* value, size_t size) { dsv41_sample_result_init(value, size); }
inline void init(dsv41_generate_options* value, size_t size) { dsv41_generate_options_init(value, size); }
inline void init(dsv41_generate_result* value, size_t size) { dsv41_generate_result_init(value, size); }
inline void init(dsv41_chatparse_options* value, size_t size) { dsv41_chatparse_options_init(value, size); }
inline void init(dsv41_chat_event* value, size_t size) { dsv41_chat_event_init(value, size); }
inline void init(dsv41_metrics* value, size_t size) { dsv41_metrics_init(value, size); }
inline void init(dsv41_writer* value, size_t size) { dsv41_writer_init(value, size); }
inline void init(dsv41_reader* value, size_t size) { dsv41_reader_init(value, size); }
inline void init(dsv41_snapshot_options* value, size_t size) { dsv41_snapshot_options_init(value, size); }
inline void init(dsv41_snapshot_info* value, size_t size) { dsv41_snapshot_info_init(value, size); }
inline void init(dsv41_verify_report* value, size_t size) { dsv41_verify_report_init(value, size); }
inline void init(dsv41_compat_report* value, size_t size) { dsv41_compat_report_init(value, size); }
inline void init(dsv41_restore_options* value, size_t size) { dsv41_restore_options_init(value, size); }
inline void init(dsv41_restore_info* value, size_t size) { dsv41_restore_info_init(value, size); }
inline void init(dsv41_object_store* value, size_t size) { dsv41_object_store_init(value, size); }
inline void init(dsv41_store_options* value, size_t size) { dsv41_store_options_init(value, size); }
inline void init(dsv41_attach_options* value, size_t size) { dsv41_attach_options_init(value, size); }
inline void init(dsv41_lookup_options* value, size_t size) { dsv41_lookup_options_init(value, size); }
inline void init(dsv41_match_info* value, size_t size) { dsv41_match_info_init(value, size); }
inline void init(dsv41_put_options* value, size_t size) { dsv41_put_options_init(value, size); }
inline void init(dsv41_put_result* value, size_t size) { dsv41_put_result_init(value, size); }
inline void init(dsv41_store_entry* value, size_t size) { dsv41_store_entry_init(value, size); }
inline void init(dsv41_gc_report* value, size_t size) { dsv41_gc_report_init(value, size); }
inline void init(dsv41_store_verify_report* value, size_t size) { dsv41_store_verify_report_init(value, size); }
inline void init(dsv41_store_stats* value, size_t size) { dsv41_store_stats_init(value, size); }

struct Release {
  void operator()(dsv41_runtime* handle) const noexcept { dsv41_runtime_release(handle); }
  void operator()(dsv41_cancel* handle) const noexcept { dsv41_cancel_release(handle); }
  void operator()(dsv41_model* handle) const noexcept { dsv41_model_release(handle); }
  void operator()(dsv41_pool* handle) const noexcept { dsv41_pool_release(handle); }
  void operator()(dsv41_session* handle) const noexcept { dsv41_session_release(handle); }
  void operator()(dsv41_sampler* handle) const noexcept { dsv41_sampler_release(handle); }
  void operator()(dsv41_textstream* handle) const noexcept { dsv41_textstream_release(handle); }
  void operator()(dsv41_chatparse* handle) const noexcept { dsv41_chatparse_release(handle); }
  void operator()(dsv41_snapshot* handle) const noexcept { dsv41_snapshot_release(handle); }
  void operator()(dsv41_store* handle) const noexcept { dsv41_store_release(handle); }
  void operator()(dsv41_match* handle) const noexcept { dsv41_match_release(handle); }
  void operator()(dsv41_store_iter* handle) const noexcept { dsv41_store_iter_release(handle); }
};
template <class H>
using Owner = std::unique_ptr<H, Release>;

}  // namespace detail

// A struct of the C API with its defaults and struct_size.
template <class T>
T make() {
  T value;
  detail::init(&value, sizeof value);
  return value;
}

namespace detail {

// Runs call(dsv41_error*); throws on an error, returns the status otherwise (0 or a positive one).
template <class F>
dsv41_status check(F&& call) {
  dsv41_error error = make<dsv41_error>();
  const dsv41_status status = call(&error);
  if (status < 0) throw Error(error);
  return status;
}

template <class H, class F>
Owner<H> create(F&& call) {
  H* handle = nullptr;
  check([&](dsv41_error* error) { return call(&handle, error); });
  return Owner<H>(handle);
}

// Fills a container by call(buffer, capacity, &n, error), starting with a guess of its size.
template <class Container, class F>
Container fetch(size_t guess, F&& call) {
  Container values;
  values.resize(guess);
  for (;;) {
    size_t n = 0;
    dsv41_error error = make<dsv41_error>();
    const dsv41_status status = call(values.empty() ? nullptr : &values[0], values.size(), &n, &error);
    if (status < 0 && status != DSV41_BUFFER_TOO_SMALL) throw Error(error);
    const bool done = status == DSV41_OK && (!values.empty() || n == 0);
    values.resize(n);
    if (done) return values;
  }
}

// A C++ callable as dsv41_writer: write(const void* bytes, size_t size) returns whether to go on. Its exceptions wait until
// the C call has returned.
template <class F>
class Writer {
 public:
  explicit Writer(F& body) : body_(&body) {}

  dsv41_writer get() {
    auto writer = make<dsv41_writer>();
    writer.write_fn = &Writer::write;
    writer.user = this;
    return writer;
  }
  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  static int32_t write(void* user, const void* bytes, size_t size) noexcept {
    auto& self = *static_cast<Writer*>(user);
    try {
      return (*self.body_)(bytes, size) ? 0 : 1;
    } catch (...) {
      self.thrown_ = std::current_exception();
      return 1;
    }
  }

  F* body_;
  std::exception_ptr thrown_;
};

// A C++ callable behind a C callback. Its exceptions wait until the C call has returned.
template <class F, class Event>
class Callback {
 public:
  explicit Callback(F& body) : body_(&body) {}

  static int32_t call(void* user, const Event* event) noexcept {
    auto& self = *static_cast<Callback*>(user);
    try {
      return (*self.body_)(*event) ? 0 : 1;
    } catch (...) {
      self.thrown_ = std::current_exception();
      return 1;
    }
  }

  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  F* body_;
  std::exception_ptr thrown_;
};

}  // namespace detail

using Tokens = std::vector<int32_t>;
using Digest = std::array<uint8_t, 32>;  // SHA-256
using Bytes = std::vector<uint8_t>;
using Key = std::array<uint8_t, 16>;  // of a record in a store

template <size_t n>
Key key_of(const uint8_t (&bytes)[n]) {
  static_assert(n == std::tuple_size_v<Key>);
  Key key;
  std::memcpy(key.data(), bytes, n);
  return key;
}

// What dsv41_session_provenance tells: hits of ranges[i] begin at hits[ranges[i].first_hit].
struct Provenance {
  std::vector<dsv41_range> ranges;
  std::vector<uint64_t> hits;
};

inline dsv41_build_info build_info() {
  auto out = make<dsv41_build_info>();
  detail::check([&](dsv41_error* error) { return dsv41_build_info_get(&out, error); });
  return out;
}

class Runtime {
 public:
  explicit Runtime(const dsv41_runtime_options& options = make<dsv41_runtime_options>())
      : owner_(detail::create<dsv41_runtime>(
            [&](dsv41_runtime** out, dsv41_error* error) { return dsv41_runtime_create(&options, out, error); })) {}

  dsv41_metrics metrics() const {
    auto out = make<dsv41_metrics>();
    detail::check([&](dsv41_error* error) { return dsv41_metrics_get(get(), &out, error); });
    return out;
  }

  dsv41_plan plan(const dsv41_plan_options& options) const {
    auto out = make<dsv41_plan>();
    detail::check([&](dsv41_error* error) { return dsv41_model_plan(get(), &options, &out, error); });
    return out;
  }
  std::vector<dsv41_plan_field> plan_fields(const dsv41_plan_options& options) const {
    return detail::fetch<std::vector<dsv41_plan_field>>(
        8, [&](dsv41_plan_field* buffer, size_t capacity, size_t* n, dsv41_error* error) {
          return dsv41_model_plan_fields(get(), &options, buffer, capacity, n, error);
        });
  }

  dsv41_runtime* get() const noexcept { return owner_.get(); }

 private:
  detail::Owner<dsv41_runtime> owner_;
};

class Cancel {
 public:
  explicit Cancel(const Runtime& runtime)
      : owner_(detail::create<dsv41_cancel>(
            [&](dsv41_cancel** out, dsv41_error* error) { return dsv41_cancel_create(runtime.get(), out, error); })) {}

  void trigger() const noexcept { dsv41_cancel_trigger(get()); }
  void reset() const noexcept { dsv41_cancel_reset(get()); }
  dsv41_cancel* get() const noexcept { return owner_.get(); }

 private:
  detail::Owner<dsv41_cancel> owner_;
};

class Model {
 public:
  // backends: comma-separated names, "" for the default.
  Model(const Runtime& runtime, std::string_view folder, std::string_view backends = {})
      : Model(runtime, options_for(folder, backends)) {}
  Model(const Runtime& runtime, const dsv41_model_options& options)
      : owner_(detail::create<dsv41_model>([&](dsv41_model** out, dsv41_error* error) {
          return dsv41_model_open(runtime.get(), &options, out, error);
        })) {}

  dsv41_model_info info() const {
    auto out = make<dsv41_model_info>();
    detail::check([&](dsv41_error* error) { return dsv41_model_info_get(get(), &out, error); });
    return out;
  }

  dsv41_fingerprint fingerprint() const {
    auto out = make<dsv41_fingerprint>();
    detail::check([&](dsv41_error* error) { return dsv41_model_fingerprint(get(), &out, error); });
    return out;
  }

  Tokens tokenize(std::string_view text, uint32_t flags = 0) const {
    return detail::fetch<Tokens>(
        text.size() / 2 + 1, [&](int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
          return dsv41_tokenize(get(), text.data(), text.size(), flags, buffer, capacity, n, error);
        });
  }

  std::string detokenize(const Tokens& tokens, uint32_t flags = 0) const {
    return detail::fetch<std::string>(
        tokens.size() * 6 + 1, [&](char* buffer, size_t capacity, size_t* n, dsv41_error* error) {
          return dsv41_detokenize(get(), tokens.data(), tokens.size(), flags, buffer, capacity, n, error);
        });
  }

  // which: DSV41_SPECIAL_*.
  int32_t special_token(uint32_t which) const {
    int32_t token = -1;
    detail::check([&](dsv41_error* error) { return dsv41_special_token(get(), which, &token, error); });
    return token;
  }

  // request: the JSON of dsv41_chat_render.
  Tokens chat_render(std::string_view request) const {
    return detail::fetch<Tokens>(
        request.size() / 2 + 1, [&](int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
          return dsv41_chat_render(get(), request.data(), request.size(), buffer, capacity, n, error);
        });
  }

  dsv41_model* get() const noexcept { return owner_.get(); }

 private:
  static dsv41_model_options options_for(std::string_view folder, std::string_view backends) {
    auto options = make<dsv41_model_options>();
    options.folder = folder.data();
    options.folder_size = folder.size();
    if (!backends.empty()) {
      options.backends = backends.data();
      options.backends_size = backends.size();
    }
    return options;
  }

  detail::Owner<dsv41_model> owner_;
};

class Match;
class Session;

class Store {
 public:
  Store(const Runtime& runtime, const dsv41_store_options& options)
      : owner_(detail::create<dsv41_store>([&](dsv41_store** out, dsv41_error* error) {
          return dsv41_store_open(runtime.get(), &options, out, error);
        })) {}
  // options: all but the folder.
  Store(const Runtime& runtime, std::string_view folder, dsv41_store_options options = make<dsv41_store_options>())
      : Store(runtime, in_folder(folder, options)) {}
  Store(const Runtime& runtime, const dsv41_object_store& objects,
        dsv41_store_options options = make<dsv41_store_options>())
      : Store(runtime, in_objects(objects, options)) {}

  // Nothing where the store has nothing of these tokens.
  inline std::optional<Match> lookup(const Model& model, const Tokens& tokens,
                                     const dsv41_lookup_options& options = make<dsv41_lookup_options>()) const;
  // Its outcome tells whether the store has taken it in.
  inline dsv41_put_result put(Session& session, const dsv41_put_options& options = make<dsv41_put_options>()) const;

  void pin(const Key& key, std::string_view reason = {}) const {
    detail::check(
        [&](dsv41_error* error) { return dsv41_store_pin(get(), key.data(), reason.data(), reason.size(), error); });
  }
  void unpin(const Key& key) const {
    detail::check([&](dsv41_error* error) { return dsv41_store_unpin(get(), key.data(), error); });
  }
  void remove(const Key& key) const {
    detail::check([&](dsv41_error* error) { return dsv41_store_remove(get(), key.data(), error); });
  }
  dsv41_gc_report gc(uint64_t target_bytes = UINT64_MAX) const {
    auto out = make<dsv41_gc_report>();
    detail::check([&](dsv41_error* error) { return dsv41_store_gc(get(), target_bytes, nullptr, &out, error); });
    return out;
  }
  void flush() const {
    detail::check([&](dsv41_error* error) { return dsv41_store_flush(get(), nullptr, error); });
  }
  void refresh() const {
    detail::check([&](dsv41_error* error) { return dsv41_store_refresh(get(), error); });
  }
  // Throws Error with status DSV41_CORRUPT where there are bad records.
  dsv41_store_verify_report verify(bool deep) const {
    auto out = make<dsv41_store_verify_report>();
    detail::check([&](dsv41_error* error) { return dsv41_store_verify(get(), deep, nullptr, &out, error); });
    return out;
  }
  std::vector<dsv41_store_entry> entries() const {
    const auto iter = detail::create<dsv41_store_iter>(
        [&](dsv41_store_iter** out, dsv41_error* error) { return dsv41_store_iter_create(get(), out, error); });
    std::vector<dsv41_store_entry> all;
    for (;;) {
      auto entry = make<dsv41_store_entry>();
      const dsv41_status status =
          detail::check([&](dsv41_error* error) { return dsv41_store_iter_next(iter.get(), &entry, error); });
      if (status == DSV41_END) return all;
      all.push_back(entry);
    }
  }
  dsv41_store_stats stats() const {
    auto out = make<dsv41_store_stats>();
    detail::check([&](dsv41_error* error) { return dsv41_store_stats_get(get(), &out, error); });
    return out;
  }

  dsv41_store* get() const noexcept { return owner_.get(); }

 private:
  static const dsv41_store_options& in_folder(std::string_view folder, dsv41_store_options& options) {
    options.folder = folder.data();
    options.folder_size = folder.size();
    return options;
  }
  static const dsv41_store_options& in_objects(const dsv41_object_store& objects, dsv41_store_options& options) {
    options.objects = &objects;
    return options;
  }
  detail::Owner<dsv41_store> owner_;
};

class Pool {
 public:
  explicit Pool(const Model& model, const dsv41_pool_options& options = make<dsv41_pool_options>())
      : owner_(detail::create<dsv41_pool>([&](dsv41_pool** out, dsv41_error* error) {
          return dsv41_pool_create(model.get(), &options, out, error);
        })) {}

  dsv41_pool_stats stats() const {
    auto out = make<dsv41_pool_stats>();
    detail::check([&](dsv41_error* error) { return dsv41_pool_stats_get(get(), &out, error); });
    return out;
  }
  // Returns the bytes dropped.
  uint64_t trim(uint64_t target_bytes) const {
    uint64_t freed = 0;
    detail::check([&](dsv41_error* error) { return dsv41_pool_trim(get(), target_bytes, &freed, error); });
    return freed;
  }
  void check() const {
    detail::check([&](dsv41_error* error) { return dsv41_pool_check(get(), error); });
  }
  // write_back: DSV41_WRITE_*.
  void attach(const Store& store, uint32_t write_back = DSV41_WRITE_ON_DEMAND) const {
    auto options = make<dsv41_attach_options>();
    options.write_back = write_back;
    detail::check([&](dsv41_error* error) { return dsv41_pool_attach_store(get(), store.get(), &options, error); });
  }

  dsv41_pool* get() const noexcept { return owner_.get(); }

 private:
  detail::Owner<dsv41_pool> owner_;
};

class Sampler {
 public:
  explicit Sampler(const Model& model, const dsv41_sampler_options& options = make<dsv41_sampler_options>())
      : owner_(detail::create<dsv41_sampler>([&](dsv41_sampler** out, dsv41_error* error) {
          return dsv41_sampler_create(model.get(), &options, out, error);
        })) {}

  Sampler clone() const {
    return Sampler(detail::create<dsv41_sampler>(
        [&](dsv41_sampler** out, dsv41_error* error) { return dsv41_sampler_clone(get(), out, error); }));
  }
  inline dsv41_sample_result sample(Session& session);
  void accept(int32_t token) {
    detail::check([&](dsv41_error* error) { return dsv41_sampler_accept(get(), token, error); });
  }

  dsv41_sampler* get() const noexcept { return owner_.get(); }

 private:
  friend class Snapshot;
  explicit Sampler(detail::Owner<dsv41_sampler> owner) : owner_(std::move(owner)) {}
  detail::Owner<dsv41_sampler> owner_;
};

class Snapshot;

class Session {
 public:
  explicit Session(const Pool& pool, const dsv41_session_options& options = make<dsv41_session_options>())
      : owner_(detail::create<dsv41_session>([&](dsv41_session** out, dsv41_error* error) {
          return dsv41_session_create(pool.get(), &options, out, error);
        })) {}

  dsv41_run_result prefill(const Tokens& tokens, const dsv41_run_options& options = make<dsv41_run_options>()) {
    auto result = make<dsv41_run_result>();
    const dsv41_input input = input_of(tokens);
    detail::check([&](dsv41_error* error) { return dsv41_prefill(get(), &input, &options, &result, error); });
    return result;
  }
  // progress(const dsv41_progress&) returns whether to go on; false throws Error with status DSV41_HOST_CALLBACK.
  template <class F, std::enable_if_t<std::is_invocable_v<F&, const dsv41_progress&>, int> = 0>
  dsv41_run_result prefill(const Tokens& tokens, F&& progress, dsv41_run_options options = make<dsv41_run_options>()) {
    return with_progress(progress, options, [&] { return prefill(tokens, options); });
  }

  dsv41_run_result sync(const Tokens& full, const dsv41_run_options& options = make<dsv41_run_options>()) {
    auto result = make<dsv41_run_result>();
    const dsv41_input input = input_of(full);
    detail::check([&](dsv41_error* error) { return dsv41_sync(get(), &input, &options, &result, error); });
    return result;
  }
  template <class F, std::enable_if_t<std::is_invocable_v<F&, const dsv41_progress&>, int> = 0>
  dsv41_run_result sync(const Tokens& full, F&& progress, dsv41_run_options options = make<dsv41_run_options>()) {
    return with_progress(progress, options, [&] { return sync(full, options); });
  }

  dsv41_run_result decode(int32_t token, const dsv41_run_options& options = make<dsv41_run_options>()) {
    auto result = make<dsv41_run_result>();
    detail::check([&](dsv41_error* error) { return dsv41_decode(get(), token, &options, &result, error); });
    return result;
  }

  dsv41_generate_result generate(Sampler& sampler,
                                 const dsv41_generate_options& options = make<dsv41_generate_options>()) {
    auto result = make<dsv41_generate_result>();
    detail::check([&](dsv41_error* error) { return dsv41_generate(get(), sampler.get(), &options, &result, error); });
    return result;
  }
  // on_token(const dsv41_token_event&) returns whether to go on.
  template <class F, std::enable_if_t<std::is_invocable_v<F&, const dsv41_token_event&>, int> = 0>
  dsv41_generate_result generate(Sampler& sampler, F&& on_token,
                                 dsv41_generate_options options = make<dsv41_generate_options>()) {
    using Callback = detail::Callback<std::remove_reference_t<F>, dsv41_token_event>;
    Callback callback(on_token);
    options.token_fn = &Callback::call;
    options.token_user = &callback;
    dsv41_generate_result result = generate(sampler, options);
    callback.rethrow();
    return result;
  }

  // info: what the next call has to do; nullptr: not wanted.
  Session fork(uint64_t position, dsv41_replay_info* info = nullptr) const {
    return Session(detail::create<dsv41_session>([&](dsv41_session** out, dsv41_error* error) {
      return dsv41_session_fork(get(), position, out, info, error);
    }));
  }
  dsv41_replay_info truncate(uint64_t position) {
    auto out = make<dsv41_replay_info>();
    detail::check([&](dsv41_error* error) { return dsv41_session_truncate(get(), position, nullptr, &out, error); });
    return out;
  }
  dsv41_replay_info truncate(uint64_t position, const dsv41_replay_options& options) {
    auto out = make<dsv41_replay_info>();
    detail::check([&](dsv41_error* error) { return dsv41_session_truncate(get(), position, &options, &out, error); });
    return out;
  }
  void reset() {
    detail::check([&](dsv41_error* error) { return dsv41_session_reset(get(), error); });
  }

  dsv41_replay_plan replay_plan(const Tokens& full) const { return replay_plan(full, nullptr); }
  dsv41_replay_plan replay_plan(const Tokens& full, const dsv41_replay_options& options) const {
    return replay_plan(full, &options);
  }
  void set_replay(const dsv41_replay_options& options) {
    detail::check([&](dsv41_error* error) { return dsv41_session_set_replay(get(), &options, error); });
  }
  // which: DSV41_REPLAY_* bits, 0: both.
  dsv41_run_result replay(uint32_t which = 0, const dsv41_run_options& options = make<dsv41_run_options>()) {
    auto result = make<dsv41_run_result>();
    detail::check([&](dsv41_error* error) { return dsv41_session_replay(get(), which, &options, &result, error); });
    return result;
  }
  dsv41_run_result make_exact(const dsv41_run_options& options = make<dsv41_run_options>()) {
    auto result = make<dsv41_run_result>();
    detail::check([&](dsv41_error* error) { return dsv41_session_make_exact(get(), &options, &result, error); });
    return result;
  }
  Provenance provenance() const {
    Provenance out;
    size_t n_ranges = 0, n_hits = 0;
    detail::check([&](dsv41_error* error) {
      return dsv41_session_provenance(get(), nullptr, 0, &n_ranges, nullptr, 0, &n_hits, error);
    });
    out.ranges.resize(n_ranges);
    out.hits.resize(n_hits);
    detail::check([&](dsv41_error* error) {
      return dsv41_session_provenance(get(), out.ranges.data(), n_ranges, &n_ranges, out.hits.data(), n_hits, &n_hits,
                                      error);
    });
    return out;
  }
  // parts: DSV41_DIGEST_* bits, 0: all.
  Digest digest(uint32_t parts = 0) const {
    Digest out{};
    detail::check([&](dsv41_error* error) { return dsv41_session_digest(get(), parts, out.data(), error); });
    return out;
  }
  std::vector<dsv41_page_desc> pages() const {
    return detail::fetch<std::vector<dsv41_page_desc>>(
        0, [&](dsv41_page_desc* buffer, size_t capacity, size_t* n, dsv41_error* error) {
          return dsv41_session_pages(get(), buffer, capacity, n, error);
        });
  }

  dsv41_session_info info() const {
    auto out = make<dsv41_session_info>();
    detail::check([&](dsv41_error* error) { return dsv41_session_info_get(get(), &out, error); });
    return out;
  }
  Tokens tokens(uint64_t from = 0) const {
    return detail::fetch<Tokens>(0, [&](int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
      return dsv41_session_tokens(get(), from, buffer, capacity, n, error);
    });
  }
  uint64_t common_prefix(const Tokens& tokens) const {
    uint64_t n = 0;
    const dsv41_input input = input_of(tokens);
    detail::check([&](dsv41_error* error) { return dsv41_session_common_prefix(get(), &input, &n, error); });
    return n;
  }
  std::vector<float> logits() const {
    return detail::fetch<std::vector<float>>(0, [&](float* buffer, size_t capacity, size_t* n, dsv41_error* error) {
      return dsv41_logits_copy(get(), buffer, capacity, n, error);
    });
  }
  std::vector<float> logprobs(uint64_t from) const {
    return detail::fetch<std::vector<float>>(0, [&](float* buffer, size_t capacity, size_t* n, dsv41_error* error) {
      return dsv41_logprobs_get(get(), from, buffer, capacity, n, error);
    });
  }

  // The largest size that a save can have now.
  uint64_t snapshot_size(const dsv41_snapshot_options& options = make<dsv41_snapshot_options>()) const {
    uint64_t bound = 0;
    detail::check([&](dsv41_error* error) { return dsv41_snapshot_size(get(), &options, &bound, error); });
    return bound;
  }
  dsv41_snapshot_info save(std::string_view path,
                           const dsv41_snapshot_options& options = make<dsv41_snapshot_options>()) const {
    auto info = make<dsv41_snapshot_info>();
    detail::check([&](dsv41_error* error) {
      return dsv41_snapshot_save_file(get(), path.data(), path.size(), &options, &info, error);
    });
    return info;
  }
  Bytes save(const dsv41_snapshot_options& options = make<dsv41_snapshot_options>()) const {
    return detail::fetch<Bytes>(static_cast<size_t>(snapshot_size(options)),
                                [&](void* buffer, size_t capacity, size_t* n, dsv41_error* error) {
                                  return dsv41_snapshot_save_buffer(get(), &options, buffer, capacity, n, error);
                                });
  }
  dsv41_snapshot_info save(const dsv41_writer& writer,
                           const dsv41_snapshot_options& options = make<dsv41_snapshot_options>()) const {
    auto info = make<dsv41_snapshot_info>();
    detail::check([&](dsv41_error* error) { return dsv41_snapshot_save_io(get(), &writer, &options, &info, error); });
    return info;
  }
  // write(const void* bytes, size_t size) returns whether to go on; false throws Error with status DSV41_HOST_CALLBACK.
  template <class F, std::enable_if_t<std::is_invocable_v<F&, const void*, size_t>, int> = 0>
  dsv41_snapshot_info save(F&& write, const dsv41_snapshot_options& options = make<dsv41_snapshot_options>()) const {
    detail::Writer<std::remove_reference_t<F>> writer(write);
    try {
      return save(writer.get(), options);
    } catch (const Error&) {
      writer.rethrow();
      throw;
    }
  }

  dsv41_session* get() const noexcept { return owner_.get(); }

 private:
  friend class Snapshot;
  friend class Match;
  explicit Session(detail::Owner<dsv41_session> owner) : owner_(std::move(owner)) {}

  dsv41_replay_plan replay_plan(const Tokens& full, const dsv41_replay_options* options) const {
    auto out = make<dsv41_replay_plan>();
    const dsv41_input input = input_of(full);
    detail::check([&](dsv41_error* error) { return dsv41_session_replay_plan(get(), &input, options, &out, error); });
    return out;
  }

  template <class F, class Call>
  static dsv41_run_result with_progress(F& progress, dsv41_run_options& options, Call&& call) {
    using Callback = detail::Callback<F, dsv41_progress>;
    Callback callback(progress);
    options.progress_fn = &Callback::call;
    options.progress_user = &callback;
    try {
      return call();
    } catch (const Error&) {
      callback.rethrow();
      throw;
    }
  }

  static dsv41_input input_of(const Tokens& tokens) {
    auto input = make<dsv41_input>();
    input.tokens = tokens.data();
    input.n_tokens = tokens.size();
    return input;
  }

  detail::Owner<dsv41_session> owner_;
};

inline dsv41_sample_result Sampler::sample(Session& session) {
  auto out = make<dsv41_sample_result>();
  detail::check([&](dsv41_error* error) { return dsv41_sample(get(), session.get(), &out, error); });
  return out;
}

class Snapshot {
 public:
  static Snapshot open_file(const Runtime& runtime, std::string_view path) {
    return Snapshot(detail::create<dsv41_snapshot>([&](dsv41_snapshot** out, dsv41_error* error) {
      return dsv41_snapshot_open_file(runtime.get(), path.data(), path.size(), out, error);
    }));
  }
  // The bytes must outlive the snapshot.
  static Snapshot open_buffer(const Runtime& runtime, const void* bytes, size_t size) {
    return Snapshot(detail::create<dsv41_snapshot>([&](dsv41_snapshot** out, dsv41_error* error) {
      return dsv41_snapshot_open_buffer(runtime.get(), bytes, size, out, error);
    }));
  }
  static Snapshot open_buffer(const Runtime& runtime, const Bytes& bytes) {
    return open_buffer(runtime, bytes.data(), bytes.size());
  }
  static Snapshot open_io(const Runtime& runtime, const dsv41_reader& reader) {
    return Snapshot(detail::create<dsv41_snapshot>([&](dsv41_snapshot** out, dsv41_error* error) {
      return dsv41_snapshot_open_io(runtime.get(), &reader, out, error);
    }));
  }

  dsv41_snapshot_info info() const {
    auto out = make<dsv41_snapshot_info>();
    detail::check([&](dsv41_error* error) { return dsv41_snapshot_info_get(get(), &out, error); });
    return out;
  }
  // level: DSV41_VERIFY_*. Throws Error with status DSV41_CHECKSUM or DSV41_CORRUPT where there is damage.
  dsv41_verify_report verify(uint32_t level = DSV41_VERIFY_CHUNKS) const {
    auto out = make<dsv41_verify_report>();
    detail::check([&](dsv41_error* error) { return dsv41_snapshot_verify(get(), level, &out, error); });
    return out;
  }
  Tokens tokens() const {
    return detail::fetch<Tokens>(0, [&](int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
      return dsv41_snapshot_tokens(get(), buffer, capacity, n, error);
    });
  }
  std::vector<uint32_t> host_ids() const {
    return detail::fetch<std::vector<uint32_t>>(0,
                                                [&](uint32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
                                                  return dsv41_snapshot_host_ids(get(), buffer, capacity, n, error);
                                                });
  }
  Bytes host_section(uint32_t id) const {
    return detail::fetch<Bytes>(0, [&](void* buffer, size_t capacity, size_t* n, dsv41_error* error) {
      return dsv41_snapshot_host_section(get(), id, buffer, capacity, n, error);
    });
  }
  Sampler sampler(const Model& model) const {
    return Sampler(detail::create<dsv41_sampler>([&](dsv41_sampler** out, dsv41_error* error) {
      return dsv41_snapshot_sampler(get(), model.get(), out, error);
    }));
  }
  dsv41_compat_report compatible(const Model& model) const {
    auto out = make<dsv41_compat_report>();
    detail::check([&](dsv41_error* error) { return dsv41_snapshot_compatible(get(), model.get(), &out, error); });
    return out;
  }

  // info, replay: what came back, what the next call has to do; nullptr: not wanted.
  Session restore(const Pool& pool, const dsv41_restore_options& options = make<dsv41_restore_options>(),
                  dsv41_restore_info* info = nullptr, dsv41_replay_info* replay = nullptr) const {
    return Session(detail::create<dsv41_session>([&](dsv41_session** out, dsv41_error* error) {
      return dsv41_snapshot_restore(get(), pool.get(), &options, out, info, replay, error);
    }));
  }
  dsv41_restore_info restore_into(Session& session,
                                  const dsv41_restore_options& options = make<dsv41_restore_options>(),
                                  dsv41_replay_info* replay = nullptr) const {
    auto info = make<dsv41_restore_info>();
    detail::check([&](dsv41_error* error) {
      return dsv41_snapshot_restore_into(get(), session.get(), &options, &info, replay, error);
    });
    return info;
  }
  // unwanted_parts: DSV41_PART_* bits.
  void rewrite(const dsv41_writer& writer, uint32_t unwanted_parts = 0,
               const dsv41_snapshot_options& options = make<dsv41_snapshot_options>()) const {
    detail::check(
        [&](dsv41_error* error) { return dsv41_snapshot_rewrite(get(), &writer, &options, unwanted_parts, error); });
  }

  dsv41_snapshot* get() const noexcept { return owner_.get(); }

 private:
  friend class Match;
  explicit Snapshot(detail::Owner<dsv41_snapshot> owner) : owner_(std::move(owner)) {}
  detail::Owner<dsv41_snapshot> owner_;
};

// What a lookup found; keeps it in the store.
class Match {
 public:
  dsv41_match_info info() const {
    auto out = make<dsv41_match_info>();
    detail::check([&](dsv41_error* error) { return dsv41_match_info_get(get(), &out, error); });
    return out;
  }
  Tokens tokens() const {
    return detail::fetch<Tokens>(0, [&](int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
      return dsv41_match_tokens(get(), buffer, capacity, n, error);
    });
  }
  dsv41_replay_plan replay_plan(const Tokens& full,
                                const dsv41_replay_options& options = make<dsv41_replay_options>()) const {
    auto out = make<dsv41_replay_plan>();
    auto input = make<dsv41_input>();
    input.tokens = full.data();
    input.n_tokens = full.size();
    detail::check([&](dsv41_error* error) { return dsv41_match_replay_plan(get(), &input, &options, &out, error); });
    return out;
  }
  Snapshot state() const {
    return Snapshot(detail::create<dsv41_snapshot>(
        [&](dsv41_snapshot** out, dsv41_error* error) { return dsv41_match_state(get(), out, error); }));
  }
  // info, replay: as Snapshot::restore.
  Session restore(const Store& store, const Pool& pool,
                  const dsv41_restore_options& options = make<dsv41_restore_options>(),
                  dsv41_restore_info* info = nullptr, dsv41_replay_info* replay = nullptr) const {
    return Session(detail::create<dsv41_session>([&](dsv41_session** out, dsv41_error* error) {
      return dsv41_store_restore(store.get(), get(), pool.get(), &options, out, info, replay, error);
    }));
  }

  dsv41_match* get() const noexcept { return owner_.get(); }

 private:
  friend class Store;
  explicit Match(dsv41_match* handle) : owner_(handle) {}
  detail::Owner<dsv41_match> owner_;
};

inline std::optional<Match> Store::lookup(const Model& model, const Tokens& tokens,
                                          const dsv41_lookup_options& options) const {
  auto input = make<dsv41_input>();
  input.tokens = tokens.data();
  input.n_tokens = tokens.size();
  dsv41_match* found = nullptr;
  const dsv41_status status = detail::check(
      [&](dsv41_error* error) { return dsv41_store_lookup(get(), model.get(), &input, &options, &found, error); });
  if (status == DSV41_MISS) return std::nullopt;
  return Match(found);
}

inline dsv41_put_result Store::put(Session& session, const dsv41_put_options& options) const {
  auto result = make<dsv41_put_result>();
  detail::check([&](dsv41_error* error) { return dsv41_store_put(get(), session.get(), &options, &result, error); });
  return result;
}

class TextStream {
 public:
  explicit TextStream(const Model& model)
      : owner_(detail::create<dsv41_textstream>([&](dsv41_textstream** out, dsv41_error* error) {
          return dsv41_textstream_create(model.get(), out, error);
        })) {}

  // The text that is complete now; valid until the next call on the stream.
  std::string_view push(int32_t token) {
    const char* text = nullptr;
    size_t size = 0;
    detail::check([&](dsv41_error* error) { return dsv41_textstream_push(get(), token, &text, &size, error); });
    return {text, size};
  }
  std::string_view flush() {
    const char* text = nullptr;
    size_t size = 0;
    detail::check([&](dsv41_error* error) { return dsv41_textstream_flush(get(), &text, &size, error); });
    return {text, size};
  }

  dsv41_textstream* get() const noexcept { return owner_.get(); }

 private:
  detail::Owner<dsv41_textstream> owner_;
};

struct ChatEvent {
  uint32_t kind = 0;  // DSV41_CHAT_*
  uint32_t call_idx = 0;
  std::string text;
  std::string value;
};

class ChatParser {
 public:
  explicit ChatParser(const Model& model, const dsv41_chatparse_options& options = make<dsv41_chatparse_options>())
      : owner_(detail::create<dsv41_chatparse>([&](dsv41_chatparse** out, dsv41_error* error) {
          return dsv41_chatparse_create(model.get(), &options, out, error);
        })) {}

  void push(int32_t token) {
    detail::check([&](dsv41_error* error) { return dsv41_chatparse_push(get(), token, error); });
  }
  void finish() {
    detail::check([&](dsv41_error* error) { return dsv41_chatparse_finish(get(), error); });
  }
  // Nothing when there is no event now.
  std::optional<ChatEvent> next() {
    auto event = make<dsv41_chat_event>();
    const dsv41_status status =
        detail::check([&](dsv41_error* error) { return dsv41_chatparse_next(get(), &event, error); });
    if (status == DSV41_END) return std::nullopt;
    return ChatEvent{event.kind, event.call_idx, std::string(event.text, event.text_size),
                     std::string(event.value, event.value_size)};
  }
  // part: DSV41_CHAT_PART_*.
  Tokens tokens(uint32_t part) const {
    return detail::fetch<Tokens>(0, [&](int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
      return dsv41_chatparse_tokens(get(), part, buffer, capacity, n, error);
    });
  }

  dsv41_chatparse* get() const noexcept { return owner_.get(); }

 private:
  detail::Owner<dsv41_chatparse> owner_;
};

}  // namespace hpp
}  // namespace dsv41

#endif  // DSV41_DSV41_HPP
