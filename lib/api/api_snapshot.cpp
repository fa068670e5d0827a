// Snapshots: saving sessions into files, memory and functions of the host, and back.
#include "api/host_streams.h"
#include "api/snapshot_structs.h"
#include "session/model_plan.h"
#include "snapshot/snapshot_file.h"

using namespace dsv41;
using namespace dsv41::api;

namespace dsv41::api {
namespace {

dsv41_runtime& runtime_of(const dsv41_session& owner) { return *owner.pool->model->runtime.get(); }

void add(std::atomic<uint64_t>& counter, uint64_t n) { counter.fetch_add(n, std::memory_order_relaxed); }

// Abandons what was not committed, also when memory ends.
class SinkGuard {
 public:
  explicit SinkGuard(ByteSink& sink) : sink_(sink) {}
  ~SinkGuard() {
    if (!committed_) sink_.abandon();
  }
  SinkGuard(const SinkGuard&) = delete;
  SinkGuard& operator=(const SinkGuard&) = delete;
  Status commit() {
    DSV41_TRY(sink_.commit());
    committed_ = true;
    return {};
  }

 private:
  ByteSink& sink_;
  bool committed_ = false;
};

Status save(const dsv41_session& owner, ByteSink& sink, const SaveRequest& request, dsv41_snapshot_info* info) {
  SinkGuard guard(sink);
  session::SnapshotInfo written;
  DSV41_TRY(session::save_snapshot(*owner.session, sink, request.options(), &written));
  DSV41_TRY(guard.commit());
  add(runtime_of(owner).snapshots_saved, 1);
  add(runtime_of(owner).snapshot_bytes_saved, written.total_bytes);
  write_struct(to_host(written), info);
  return {};
}

Status read_path(const char* path, size_t size, std::string* out) {
  DSV41_TRY(check_span(path, size, "path"));
  if (size == 0) return Status(Code::kINVALID_ARG, "path is empty");
  out->assign(path, size);
  if (out->find('\0') != out->npos) return Status(Code::kINVALID_ARG, "path has a zero byte");
  return {};
}

Status open_snapshot(dsv41_runtime& owner, std::shared_ptr<ByteSource> source, dsv41_snapshot** out) {
  DSV41_TRY_ASSIGN(std::unique_ptr<session::SessionSnapshot> made, session::SessionSnapshot::open(std::move(source)));
  *out = std::make_unique<dsv41_snapshot>(owner, std::move(made)).release();
  return {};
}

Result<dsv41_compat_report> compare(dsv41_snapshot& owner, const dsv41_model& model) {
  const session::SnapshotInfo& info = owner.snapshot->info();
  DSV41_TRY_ASSIGN(const model::Fingerprint* const print, model.loaded->fingerprint());
  DSV41_TRY_ASSIGN(const Sha256Digest layout_id, session::layout_id_of(model.loaded->config()));
  dsv41_compat_report out{};
  out.status = static_cast<int32_t>(owner.snapshot->compatible(*model.loaded, /*strict_numeric_class=*/false).code());
  out.same_model = info.fingerprint == print->model;
  out.same_layout = info.layout_id == layout_id;
  out.same_numeric_class = info.numeric_class == model.backend->numeric_class();
  return out;
}

// A session of the snapshot in that pool; *done tells of this call alone.
Result<std::unique_ptr<session::Session>> restore(dsv41_snapshot& from, dsv41_pool& into, const RestoreRequest& request,
                                                  session::RestoreInfo* done) {
  const uint64_t n_read_before = from.snapshot->n_bytes_read();
  DSV41_TRY_ASSIGN(std::unique_ptr<session::Session> made, from.snapshot->restore(into.pool, request.options(), done));
  done->bytes_read = from.snapshot->n_bytes_read() - n_read_before;
  return made;
}

void count_restore(dsv41_runtime& runtime, const session::RestoreInfo& done) {
  add(runtime.snapshots_restored, 1);
  add(runtime.snapshot_bytes_restored, done.bytes_read);
}

Status verify(dsv41_snapshot& owner, snapshot::VerifyLevel level, dsv41_verify_report* report) {
  const Result<snapshot::VerifyReport> found = owner.snapshot->verify(level);
  if (!found.ok()) {
    // Every byte is as it was written, and what was written contradicts itself.
    if (found.status().code() == Code::kCORRUPT) write_struct(dsv41_verify_report{}, report);
    return found.status();
  }
  const snapshot::VerifyReport& seen = found.value();
  write_struct(to_host(seen), report);
  if (seen.ok()) return {};
  const std::string place = ", the first place is byte " + std::to_string(seen.first_bad_offset);
  if (seen.n_bad_chunks == 0 && seen.n_bad_padding > 0) {
    return Status(Code::kCORRUPT, std::to_string(seen.n_bad_padding) + " gaps are not zero" + place);
  }
  if (seen.n_bad_chunks == 0) return Status(Code::kCHECKSUM, "the hash of the file differs");
  return Status(Code::kCHECKSUM, std::to_string(seen.n_bad_chunks) + " of " + std::to_string(seen.n_chunks) +
                                     " chunks are damaged" + place);
}

Status describe(session::Session& session, dsv41_replay_info* replay, dsv41_replay_info* described) {
  return replay ? describe_replay(session, session.options().replay, described) : Status();
}

}  // namespace
}  // namespace dsv41::api

extern "C" {

dsv41_status dsv41_snapshot_size(dsv41_session* session, const dsv41_snapshot_options* options, uint64_t* bound,
                                 dsv41_error* error) {
  return run_call("dsv41_snapshot_size", error, want(session, Access::kDurablePoint),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_pointer(bound, "bound"));
                    SaveRequest request;
                    DSV41_TRY(request.read(options, owner));
                    DSV41_TRY_ASSIGN(*bound, session::snapshot_bound(*owner.session, request.options()));
                    return {};
                  });
}

dsv41_status dsv41_snapshot_save_file(dsv41_session* session, const char* path, size_t path_size,
                                      const dsv41_snapshot_options* options, dsv41_snapshot_info* info,
                                      dsv41_error* error) {
  return run_call("dsv41_snapshot_save_file", error, want(session, Access::kDurablePoint),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_optional_output(info, "info"));
                    std::string name;
                    DSV41_TRY(read_path(path, path_size, &name));
                    SaveRequest request;
                    DSV41_TRY(request.read(options, owner));
                    DSV41_TRY_ASSIGN(const std::unique_ptr<ByteSink> sink,
                                     create_file_sink(system_file_system(), name, request.durability()));
                    return save(owner, *sink, request, info);
                  });
}

dsv41_status dsv41_snapshot_save_buffer(dsv41_session* session, const dsv41_snapshot_options* options, void* buffer,
                                        size_t capacity, size_t* n, dsv41_error* error) {
  const auto body = [&](dsv41_session& owner) -> Status {
    auto* memory = static_cast<std::byte*>(buffer);
    DSV41_TRY(check_buffer(memory, capacity, n));
    SaveRequest request;
    DSV41_TRY(request.read(options, owner));
    DSV41_TRY_ASSIGN(const uint64_t bound, session::snapshot_bound(*owner.session, request.options()));
    // Nothing may be written into a buffer that is too small: a pass that only measures comes first.
    if (capacity < bound) {
      MeasuringSink measure({});
      DSV41_TRY(session::save_snapshot(*owner.session, measure, request.options(), nullptr));
      DSV41_TRY(check_capacity(measure.n_written(), capacity, n));
      if (capacity == 0) return {};
    }
    MeasuringSink sink({memory, capacity});
    DSV41_TRY(save(owner, sink, request, nullptr));
    *n = sink.n_written();
    return {};
  };
  return run_call("dsv41_snapshot_save_buffer", error, want(session, Access::kDurablePoint), body);
}

dsv41_status dsv41_snapshot_save_io(dsv41_session* session, const dsv41_writer* writer,
                                    const dsv41_snapshot_options* options, dsv41_snapshot_info* info,
                                    dsv41_error* error) {
  return run_call("dsv41_snapshot_save_io", error, want(session, Access::kDurablePoint),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_optional_output(info, "info"));
                    dsv41_writer given;
                    DSV41_TRY(read_writer(writer, &given));
                    SaveRequest request;
                    DSV41_TRY(request.read(options, owner));
                    WriterSink sink(given);
                    return save(owner, sink, request, info);
                  });
}

dsv41_status dsv41_snapshot_open_file(dsv41_runtime* runtime, const char* path, size_t path_size, dsv41_snapshot** out,
                                      dsv41_error* error) {
  return run_call("dsv41_snapshot_open_file", error, want(runtime, Access::kShared),
                  [&](dsv41_runtime& owner) -> Status {
                    DSV41_TRY(check_pointer(out, "out"));
                    std::string name;
                    DSV41_TRY(read_path(path, path_size, &name));
                    DSV41_TRY_ASSIGN(std::shared_ptr<ByteSource> source, open_file_source(system_file_system(), name));
                    return open_snapshot(owner, std::move(source), out).with_context(name);
                  });
}

dsv41_status dsv41_snapshot_open_buffer(dsv41_runtime* runtime, const void* bytes, size_t size, dsv41_snapshot** out,
                                        dsv41_error* error) {
  return run_call("dsv41_snapshot_open_buffer", error, want(runtime, Access::kShared),
                  [&](dsv41_runtime& owner) -> Status {
                    DSV41_TRY(check_pointer(out, "out"));
                    const auto* memory = static_cast<const std::byte*>(bytes);
                    DSV41_TRY(check_span(memory, size, "bytes"));
                    return open_snapshot(owner, std::make_shared<SpanSource>(std::span(memory, size)), out);
                  });
}

dsv41_status dsv41_snapshot_open_io(dsv41_runtime* runtime, const dsv41_reader* reader, dsv41_snapshot** out,
                                    dsv41_error* error) {
  return run_call("dsv41_snapshot_open_io", error, want(runtime, Access::kShared), [&](dsv41_runtime& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    dsv41_reader given;
    DSV41_TRY(read_reader(reader, &given));
    DSV41_TRY_ASSIGN(const std::shared_ptr<ReaderSource> source, ReaderSource::open(given));
    DSV41_TRY(open_snapshot(owner, source, out));
    source->hand_over();
    return {};
  });
}

dsv41_status dsv41_snapshot_info_get(dsv41_snapshot* snapshot, dsv41_snapshot_info* out, dsv41_error* error) {
  return run_call("dsv41_snapshot_info_get", error, want(snapshot, Access::kExclusiveSafe),
                  [&](dsv41_snapshot& owner) -> Status {
                    DSV41_TRY(check_output(out, "out"));
                    dsv41_snapshot_info info = to_host(owner.snapshot->info());
                    info.format_major = owner.snapshot->reader().major_version();
                    info.format_minor = owner.snapshot->reader().minor_version();
                    write_struct(info, out);
                    return {};
                  });
}

dsv41_status dsv41_snapshot_verify(dsv41_snapshot* snapshot, uint32_t level, dsv41_verify_report* report,
                                   dsv41_error* error) {
  return run_call("dsv41_snapshot_verify", error, want(snapshot, Access::kExclusive),
                  [&](dsv41_snapshot& owner) -> Status {
                    DSV41_TRY(check_optional_output(report, "report"));
                    if (level > DSV41_VERIFY_DECODE) {
                      return Status(Code::kINVALID_ARG, "level is none of DSV41_VERIFY_*");
                    }
                    return verify(owner, static_cast<snapshot::VerifyLevel>(level), report);
                  });
}

dsv41_status dsv41_snapshot_tokens(dsv41_snapshot* snapshot, int32_t* buffer, size_t capacity, size_t* n,
                                   dsv41_error* error) {
  return run_call("dsv41_snapshot_tokens", error, want(snapshot, Access::kExclusive),
                  [&](dsv41_snapshot& owner) -> Status {
                    DSV41_TRY(check_buffer(buffer, capacity, n));
                    const session::SnapshotInfo& info = owner.snapshot->info();
                    const bool has_tokens = info.parts & session::kPartTokens;
                    if (has_tokens) DSV41_TRY(check_capacity(static_cast<size_t>(info.n_tokens), capacity, n));
                    if (has_tokens && capacity == 0) return {};
                    DSV41_TRY_ASSIGN(const std::vector<int32_t> tokens, owner.snapshot->tokens());
                    return write_buffer(std::span<const int32_t>(tokens), buffer, capacity, n);
                  });
}

dsv41_status dsv41_snapshot_host_ids(dsv41_snapshot* snapshot, uint32_t* buffer, size_t capacity, size_t* n,
                                     dsv41_error* error) {
  return run_call("dsv41_snapshot_host_ids", error, want(snapshot, Access::kExclusiveSafe),
                  [&](dsv41_snapshot& owner) -> Status {
                    DSV41_TRY(check_buffer(buffer, capacity, n));
                    const std::vector<uint32_t>& ids = owner.snapshot->info().host_ids;
                    return write_buffer(std::span<const uint32_t>(ids), buffer, capacity, n);
                  });
}

dsv41_status dsv41_snapshot_host_section(dsv41_snapshot* snapshot, uint32_t id, void* buffer, size_t capacity,
                                         size_t* n, dsv41_error* error) {
  return run_call("dsv41_snapshot_host_section", error, want(snapshot, Access::kExclusive),
                  [&](dsv41_snapshot& owner) -> Status {
                    auto* memory = static_cast<std::byte*>(buffer);
                    DSV41_TRY(check_buffer(memory, capacity, n));
                    const snapshot::Section* section = owner.snapshot->reader().find(snapshot::SectionType::kHost, id);
                    if (!section) return Status(Code::kNOT_FOUND, "there is no host section " + std::to_string(id));
                    DSV41_TRY(check_capacity(section->raw_bytes, capacity, n));
                    if (capacity == 0) return {};
                    DSV41_TRY_ASSIGN(const std::vector<std::byte> data, owner.snapshot->host_section(id));
                    return write_buffer(std::span<const std::byte>(data), memory, capacity, n);
                  });
}

dsv41_status dsv41_snapshot_sampler(dsv41_snapshot* snapshot, dsv41_model* model, dsv41_sampler** out,
                                    dsv41_error* error) {
  const auto body = [&](dsv41_snapshot& owner, dsv41_model& of) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    DSV41_TRY_ASSIGN(session::Sampler made, owner.snapshot->sampler(*of.loaded));
    *out = std::make_unique<dsv41_sampler>(of, std::move(made)).release();
    return {};
  };
  return run_call("dsv41_snapshot_sampler", error, want(snapshot, Access::kExclusive), want(model, Access::kShared),
                  body);
}

dsv41_status dsv41_snapshot_compatible(dsv41_snapshot* snapshot, dsv41_model* model, dsv41_compat_report* report,
                                       dsv41_error* error) {
  const auto body = [&](dsv41_snapshot& owner, dsv41_model& with) -> Status {
    DSV41_TRY(check_output(report, "report"));
    DSV41_TRY_ASSIGN(const dsv41_compat_report found, compare(owner, with));
    write_struct(found, report);
    return {};
  };
  return run_call("dsv41_snapshot_compatible", error, want(snapshot, Access::kExclusive), want(model, Access::kShared),
                  body);
}

dsv41_status dsv41_snapshot_restore(dsv41_snapshot* snapshot, dsv41_pool* pool, const dsv41_restore_options* options,
                                    dsv41_session** out, dsv41_restore_info* info, dsv41_replay_info* replay,
                                    dsv41_error* error) {
  const auto body = [&](dsv41_snapshot& from, dsv41_pool& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    DSV41_TRY(check_optional_output(info, "info"));
    DSV41_TRY(check_optional_output(replay, "replay"));
    RestoreRequest request;
    DSV41_TRY(request.read(options, nullptr));
    session::RestoreInfo done;
    DSV41_TRY_ASSIGN(std::unique_ptr<session::Session> made, restore(from, owner, request, &done));
    dsv41_replay_info described{};
    DSV41_TRY(describe(*made, replay, &described));
    *out = std::make_unique<dsv41_session>(owner, std::move(made)).release();
    count_restore(*owner.model->runtime.get(), done);
    write_struct(to_host(done), info);
    write_struct(described, replay);
    return {};
  };
  return run_call("dsv41_snapshot_restore", error, want(snapshot, Access::kExclusive), want(pool, Access::kShared),
                  body);
}

dsv41_status dsv41_snapshot_restore_into(dsv41_snapshot* snapshot, dsv41_session* session,
                                         const dsv41_restore_options* options, dsv41_restore_info* info,
                                         dsv41_replay_info* replay, dsv41_error* error) {
  const auto body = [&](dsv41_snapshot& from, dsv41_session& owner) -> Status {
    DSV41_TRY(check_optional_output(info, "info"));
    DSV41_TRY(check_optional_output(replay, "replay"));
    RestoreRequest request;
    DSV41_TRY(request.read(options, &owner.session->options()));
    session::RestoreInfo done;
    DSV41_TRY_ASSIGN(std::unique_ptr<session::Session> made, restore(from, *owner.pool.get(), request, &done));
    dsv41_replay_info described{};
    DSV41_TRY(describe(*made, replay, &described));
    owner.session.swap(made);
    count_restore(runtime_of(owner), done);
    write_struct(to_host(done), info);
    write_struct(described, replay);
    return {};
  };
  return run_call("dsv41_snapshot_restore_into", error, want(snapshot, Access::kExclusive),
                  want(session, Access::kExclusive), body);
}

dsv41_status dsv41_snapshot_rewrite(dsv41_snapshot* snapshot, const dsv41_writer* writer,
                                    const dsv41_snapshot_options* options, uint32_t unwanted_parts,
                                    dsv41_error* error) {
  return run_call("dsv41_snapshot_rewrite", error, want(snapshot, Access::kExclusive),
                  [&](dsv41_snapshot& owner) -> Status {
                    dsv41_writer given;
                    DSV41_TRY(read_writer(writer, &given));
                    SaveRequest request;
                    DSV41_TRY(request.read(options, *owner.runtime.get()));
                    uint32_t unwanted = 0;
                    DSV41_TRY(read_parts(unwanted_parts, "unwanted_parts", &unwanted));
                    WriterSink sink(given);
                    SinkGuard guard(sink);
                    DSV41_TRY(owner.snapshot->rewrite(sink, request.options(), unwanted));
                    return guard.commit();
                  });
}

void dsv41_snapshot_release(dsv41_snapshot* snapshot) {
  if (snapshot) snapshot->release();
}

}  // extern "C"
