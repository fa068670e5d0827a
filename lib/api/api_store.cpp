// Stores: opening, attaching to a pool, putting sessions there and finding them again, keeping.
#include "api/host_objects.h"
#include "api/store_structs.h"
#include "session/match_plan.h"
#include "session/model_plan.h"
#include "session/store_chain.h"

using namespace dsv41;
using namespace dsv41::api;

dsv41_store::dsv41_store(dsv41_runtime& parent, std::unique_ptr<HostObjects> host, std::shared_ptr<store::Store> made)
    : Handle(kKind), runtime(&parent), objects(std::move(host)), store(std::move(made)) {
  runtime->add_store(*this);
}

dsv41_store::~dsv41_store() {
  try {
    (void)store->flush(nullptr);  // what is written now still counts; failures were the host's to ask for
  } catch (...) {                 // no memory: the store writes it when it is closed
  }
  runtime->remove_store(*this);
}

namespace dsv41::api {
namespace {

Status open_store(dsv41_runtime& owner, const dsv41_store_options& given, dsv41_store** out) {
  DSV41_TRY(check_span(given.folder, given.folder_size, "options.folder"));
  store::StoreOptions wanted;
  DSV41_TRY(read_store_options(given, &wanted));
  if ((given.folder_size > 0) == (given.objects != nullptr)) {
    return Status(Code::kINVALID_ARG, "options: set either folder or objects");
  }
  std::unique_ptr<HostObjects> objects;
  if (given.objects) {
    dsv41_object_store host;
    DSV41_TRY(read_objects(given.objects, wanted.lock != store::LockMode::kReader, &host));
    objects = std::make_unique<HostObjects>(host);
    wanted.objects = objects->callbacks();
  } else {
    wanted.folder.assign(given.folder, given.folder_size);
  }
  wanted.clock = owner.wall_clock();
  DSV41_TRY_ASSIGN(std::shared_ptr<store::Store> made, store::Store::open(wanted));
  *out = std::make_unique<dsv41_store>(owner, std::move(objects), std::move(made)).release();
  return {};
}

// One line about what was opened, for the log.
std::string describe(const dsv41_store& owner) {
  const store::StoreStats stats = owner.store->stats();
  std::string text = owner.objects ? "the host's objects" : owner.store->options().folder;
  text += ", " + std::to_string(stats.n_pages) + " pages, " + std::to_string(stats.n_states) + " states";
  if (owner.store->read_only()) text += ", read only";
  if (stats.n_damaged_at_open) text += ", " + std::to_string(stats.n_damaged_at_open) + " damaged records";
  return text;
}

Status read_lookup_options(const dsv41_lookup_options* options, std::string* salt, session::LookupOptions* out) {
  dsv41_lookup_options given;
  DSV41_TRY(read_struct(options, "options", &given));
  DSV41_TRY(read_flag(given.exact_only, "exact_only", &out->exact_only));
  DSV41_TRY(read_flag(given.strict_numeric_class, "strict_numeric_class", &out->strict_numeric_class));
  DSV41_TRY(read_salt(given.salt, given.salt_size, salt));
  out->salt = std::as_bytes(std::span(*salt));
  if (given.max_tokens) out->max_tokens = to_signed(given.max_tokens);
  return {};
}

}  // namespace
}  // namespace dsv41::api

extern "C" {

dsv41_status dsv41_store_open(dsv41_runtime* runtime, const dsv41_store_options* options, dsv41_store** out,
                              dsv41_error* error) {
  return run_call("dsv41_store_open", error, want(runtime, Access::kShared), [&](dsv41_runtime& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    DSV41_TRY(check_pointer(options, "options"));
    dsv41_store_options given;
    DSV41_TRY(read_struct(options, "options", &given));
    dsv41_store* made = nullptr;
    Status opened = open_store(owner, given, &made);
    if (!opened.ok()) {
      owner.log(DSV41_LOG_ERROR, "store not opened: " + std::string(opened.message()));
      return opened;
    }
    *out = made;
    const bool damaged = made->store->stats().n_damaged_at_open > 0;
    owner.log(damaged ? DSV41_LOG_WARN : DSV41_LOG_INFO, "store opened: " + describe(*made));
    return {};
  });
}

void dsv41_store_release(dsv41_store* store) {
  if (store) store->release();
}

dsv41_status dsv41_pool_attach_store(dsv41_pool* pool, dsv41_store* store, const dsv41_attach_options* options,
                                     dsv41_error* error) {
  const auto body = [&](dsv41_pool& owner, dsv41_store& with) -> Status {
    if (owner.model->runtime.get() != with.runtime.get()) {
      return Status(Code::kINVALID_ARG, "pool and store descend from different runtimes");
    }
    dsv41_attach_options given;
    DSV41_TRY(read_struct(options, "options", &given));
    session::WriteBack write_back;
    switch (given.write_back) {
      case DSV41_WRITE_ON_DEMAND: write_back = session::WriteBack::kOnDemand; break;
      case DSV41_WRITE_ON_SEAL: write_back = session::WriteBack::kOnSeal; break;
      default: return Status(Code::kINVALID_ARG, "options.write_back is none of DSV41_WRITE_*");
    }
    DSV41_TRY(owner.pool->attach_store(with.store, write_back));
    owner.store = Ref<dsv41_store>(&with);  // whoever attaches a second one has been told STATE
    return {};
  };
  return run_call("dsv41_pool_attach_store", error, want(pool, Access::kShared), want(store, Access::kShared), body);
}

dsv41_status dsv41_store_lookup(dsv41_store* store, dsv41_model* model, const dsv41_input* input,
                                const dsv41_lookup_options* options, dsv41_match** out, dsv41_error* error) {
  const auto body = [&](dsv41_store& owner, dsv41_model& of) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    std::span<const int32_t> tokens;
    DSV41_TRY(read_tokens(input, "input", &tokens));
    std::string salt;
    session::LookupOptions wanted;
    DSV41_TRY(read_lookup_options(options, &salt, &wanted));
    DSV41_TRY_ASSIGN(const Sha256Digest layout_id, session::layout_id_of(of.loaded->config()));
    DSV41_TRY_ASSIGN(session::StoreMatch found, session::lookup(owner.store, *of.loaded, layout_id, tokens, wanted));
    if (found.n_tokens() == 0) return Status(Code::kMISS, "the store has nothing of these tokens");
    *out = std::make_unique<dsv41_match>(owner, of, std::move(found)).release();
    return {};
  };
  return run_call("dsv41_store_lookup", error, want(store, Access::kShared), want(model, Access::kShared), body);
}

dsv41_status dsv41_match_info_get(dsv41_match* match, dsv41_match_info* out, dsv41_error* error) {
  return run_call("dsv41_match_info_get", error, want(match, Access::kExclusiveSafe),
                  [&](dsv41_match& owner) -> Status {
                    DSV41_TRY(check_output(out, "out"));
                    write_struct(to_host(owner.match), out);
                    return {};
                  });
}

dsv41_status dsv41_match_tokens(dsv41_match* match, int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
  return run_call("dsv41_match_tokens", error, want(match, Access::kExclusiveSafe), [&](dsv41_match& owner) -> Status {
    DSV41_TRY(check_buffer(buffer, capacity, n));
    return write_buffer(std::span<const int32_t>(owner.match.tokens), buffer, capacity, n);
  });
}

dsv41_status dsv41_match_replay_plan(dsv41_match* match, const dsv41_input* full, const dsv41_replay_options* options,
                                     dsv41_replay_plan* out, dsv41_error* error) {
  return run_call("dsv41_match_replay_plan", error, want(match, Access::kExclusive), [&](dsv41_match& owner) -> Status {
    DSV41_TRY(check_output(out, "out"));
    std::span<const int32_t> tokens;
    DSV41_TRY(read_tokens(full, "full", &tokens));
    session::ReplayPolicy policy;
    DSV41_TRY(read_policy(options, session::ReplayPolicy{}, &policy));
    DSV41_TRY_ASSIGN(const session::RunPlan plan,
                     session::plan_match(owner.match, *owner.model->loaded, tokens, policy));
    write_struct(to_host(plan), out);
    return {};
  });
}

dsv41_status dsv41_match_state(dsv41_match* match, dsv41_snapshot** out, dsv41_error* error) {
  return run_call("dsv41_match_state", error, want(match, Access::kExclusive), [&](dsv41_match& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    if (!owner.match.state) return Status(Code::kNOT_FOUND, "the match has pages alone");
    DSV41_TRY_ASSIGN(std::unique_ptr<session::SessionSnapshot> state,
                     session::read_state(*owner.match.store, owner.match.state, nullptr));
    *out = std::make_unique<dsv41_snapshot>(*owner.store->runtime.get(), std::move(state)).release();
    return {};
  });
}

void dsv41_match_release(dsv41_match* match) {
  if (match) match->release();
}

dsv41_status dsv41_store_restore(dsv41_store* store, dsv41_match* match, dsv41_pool* pool,
                                 const dsv41_restore_options* options, dsv41_session** out, dsv41_restore_info* info,
                                 dsv41_replay_info* replay, dsv41_error* error) {
  const auto body = [&](dsv41_store& from, dsv41_match& found, dsv41_pool& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    DSV41_TRY(check_optional_output(info, "info"));
    DSV41_TRY(check_optional_output(replay, "replay"));
    if (found.store.get() != &from) return Status(Code::kINVALID_ARG, "the match is of another store");
    RestoreRequest request;
    DSV41_TRY(request.read(options, nullptr));
    const auto* salt = reinterpret_cast<const char*>(found.match.salt.data());
    DSV41_TRY(request.take_salt(std::string_view(salt, found.match.salt.size())));
    session::RestoreInfo done;
    DSV41_TRY_ASSIGN(std::unique_ptr<session::Session> made,
                     session::restore_match(found.match, owner.pool, request.options(), &done));
    dsv41_replay_info described{};
    if (replay) DSV41_TRY(describe_replay(*made, made->options().replay, &described));
    *out = std::make_unique<dsv41_session>(owner, std::move(made)).release();
    write_struct(to_host(done), info);
    write_struct(described, replay);
    return {};
  };
  return run_call("dsv41_store_restore", error, want(store, Access::kShared), want(match, Access::kExclusive),
                  want(pool, Access::kShared), body);
}

dsv41_status dsv41_store_put(dsv41_store* store, dsv41_session* session, const dsv41_put_options* options,
                             dsv41_put_result* result, dsv41_error* error) {
  const auto body = [&](dsv41_store& into, dsv41_session& owner) -> Status {
    DSV41_TRY(check_optional_output(result, "result"));
    PutRequest request;
    DSV41_TRY(request.read(options, owner));
    DSV41_TRY_ASSIGN(const session::StorePutResult done,
                     session::put_session(*into.store, *owner.session, request.options()));
    write_struct(to_host(done), result);
    return admission(done.outcome);
  };
  return run_call("dsv41_store_put", error, want(store, Access::kSharedSafe), want(session, Access::kDurablePoint),
                  body);
}

dsv41_status dsv41_store_pin(dsv41_store* store, const uint8_t key[16], const char* reason, size_t reason_size,
                             dsv41_error* error) {
  return run_call("dsv41_store_pin", error, want(store, Access::kShared), [&](dsv41_store& owner) -> Status {
    store::RecordKey wanted;
    DSV41_TRY(read_key(key, &wanted));
    DSV41_TRY(check_span(reason, reason_size, "reason"));
    constexpr size_t kMaxReasonBytes = 4096;
    if (reason_size > kMaxReasonBytes) return Status(Code::kLIMIT, "reason has more than 4,096 bytes");
    return owner.store->pin(wanted, std::string_view(reason ? reason : "", reason_size));
  });
}

dsv41_status dsv41_store_unpin(dsv41_store* store, const uint8_t key[16], dsv41_error* error) {
  return run_call("dsv41_store_unpin", error, want(store, Access::kShared), [&](dsv41_store& owner) -> Status {
    store::RecordKey wanted;
    DSV41_TRY(read_key(key, &wanted));
    return owner.store->unpin(wanted);
  });
}

dsv41_status dsv41_store_remove(dsv41_store* store, const uint8_t key[16], dsv41_error* error) {
  return run_call("dsv41_store_remove", error, want(store, Access::kShared), [&](dsv41_store& owner) -> Status {
    store::RecordKey wanted;
    DSV41_TRY(read_key(key, &wanted));
    return owner.store->remove(wanted);
  });
}

dsv41_status dsv41_store_gc(dsv41_store* store, uint64_t target_bytes, dsv41_cancel* cancel, dsv41_gc_report* report,
                            dsv41_error* error) {
  return run_call("dsv41_store_gc", error, want(store, Access::kShared), [&](dsv41_store& owner) -> Status {
    DSV41_TRY(check_optional_output(report, "report"));
    const CancelUse use(cancel);
    DSV41_TRY(use.status());
    DSV41_TRY_ASSIGN(const store::GcReport done, owner.store->gc(target_bytes, use.flag()));
    write_struct(to_host(done), report);
    return {};
  });
}

dsv41_status dsv41_store_flush(dsv41_store* store, dsv41_cancel* cancel, dsv41_error* error) {
  return run_call("dsv41_store_flush", error, want(store, Access::kShared), [&](dsv41_store& owner) -> Status {
    const CancelUse use(cancel);
    DSV41_TRY(use.status());
    return owner.store->flush(use.flag());
  });
}

dsv41_status dsv41_store_iter_create(dsv41_store* store, dsv41_store_iter** out, dsv41_error* error) {
  return run_call("dsv41_store_iter_create", error, want(store, Access::kShared), [&](dsv41_store& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    *out = std::make_unique<dsv41_store_iter>(owner, owner.store->list()).release();
    return {};
  });
}

dsv41_status dsv41_store_iter_next(dsv41_store_iter* iter, dsv41_store_entry* out, dsv41_error* error) {
  return run_call("dsv41_store_iter_next", error, want(iter, Access::kExclusiveSafe),
                  [&](dsv41_store_iter& owner) -> Status {
                    DSV41_TRY(check_output(out, "out"));
                    if (owner.next == owner.records.size()) return Status(Code::kEND, "no more records");
                    write_struct(to_host(owner.records[owner.next++]), out);
                    return {};
                  });
}

void dsv41_store_iter_release(dsv41_store_iter* iter) {
  if (iter) iter->release();
}

dsv41_status dsv41_store_verify(dsv41_store* store, uint32_t deep, dsv41_cancel* cancel,
                                dsv41_store_verify_report* report, dsv41_error* error) {
  return run_call("dsv41_store_verify", error, want(store, Access::kShared), [&](dsv41_store& owner) -> Status {
    DSV41_TRY(check_optional_output(report, "report"));
    if (deep > 1) return Status(Code::kINVALID_ARG, "deep is neither 0 nor 1");
    const CancelUse use(cancel);
    DSV41_TRY(use.status());
    DSV41_TRY_ASSIGN(const store::StoreVerifyReport found, owner.store->verify(deep != 0, use.flag()));
    write_struct(to_host(found), report);
    if (found.n_bad == 0) return {};
    return Status(Code::kCORRUPT, std::to_string(found.n_bad) + " of " + std::to_string(found.n_records) +
                                      " records are damaged; the first: " + found.first_problem);
  });
}

dsv41_status dsv41_store_stats_get(dsv41_store* store, dsv41_store_stats* out, dsv41_error* error) {
  return run_call("dsv41_store_stats_get", error, want(store, Access::kSharedSafe), [&](dsv41_store& owner) -> Status {
    DSV41_TRY(check_output(out, "out"));
    write_struct(to_host(owner.store->stats(), owner.store->read_only()), out);
    return {};
  });
}

dsv41_status dsv41_store_refresh(dsv41_store* store, dsv41_error* error) {
  return run_call("dsv41_store_refresh", error, want(store, Access::kShared),
                  [&](dsv41_store& owner) -> Status { return owner.store->refresh(); });
}

}  // extern "C"
