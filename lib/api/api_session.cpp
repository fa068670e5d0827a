// Sessions without running the model: create, fork, cut, look into, plan.
#include "api/call.h"
#include "api/handles.h"
#include "api/session_structs.h"

using namespace dsv41;
using namespace dsv41::api;

namespace dsv41::api {
namespace {

Status read_session_options(const dsv41_session_options* options, session::SessionOptions* out) {
  dsv41_session_options given;
  DSV41_TRY(read_struct(options, "options", &given));
  return read_session_fields(given, out);
}

// How many of the session's first pages others hold too. A chain is held through its last page, so whoever holds one
// page holds all below it.
uint64_t n_shared_pages(const session::Session& session) {
  const kv::SequenceKv& kv = session.kv();
  uint64_t n = static_cast<uint64_t>(session.n_pages());
  if (session.shares_memory()) return n;
  n = std::min(n, static_cast<uint64_t>(kv.n_sealed()));
  while (n > 0 && kv.pool().sharing(kv.pages()[n - 1]).n_sharers <= 1) --n;
  return n;
}

std::vector<dsv41_page_desc> describe_pages(const session::Session& session) {
  const kv::SequenceKv& kv = session.kv();
  const std::vector<session::ProvenanceRange> ranges = session.provenance();
  const uint64_t n_shared = n_shared_pages(session);
  std::vector<dsv41_page_desc> pages(static_cast<size_t>(session.n_pages()));
  size_t range = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    const int64_t first = static_cast<int64_t>(i) * kv::kPageTokens;
    const int64_t end = std::min(first + kv::kPageTokens, session.position());
    while (range + 1 < ranges.size() && ranges[range].end < end) ++range;
    const kv::Provenance& hits = ranges[range].provenance;
    dsv41_page_desc& page = pages[i];
    page.first_token = static_cast<uint64_t>(first);
    page.n_tokens = static_cast<uint32_t>(end - first);
    page.sealed = static_cast<int64_t>(i) < kv.n_sealed();
    page.indexed = page.sealed && kv.pool().sharing(kv.pages()[i]).indexed;
    page.shared = i < n_shared;
    page.n_hits = hits ? static_cast<uint32_t>(hits->size()) : 0;
  }
  return pages;
}

}  // namespace
}  // namespace dsv41::api

extern "C" {

dsv41_status dsv41_session_create(dsv41_pool* pool, const dsv41_session_options* options, dsv41_session** out,
                                  dsv41_error* error) {
  return run_call("dsv41_session_create", error, want(pool, Access::kShared), [&](dsv41_pool& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    session::SessionOptions wanted;
    DSV41_TRY(read_session_options(options, &wanted));
    DSV41_TRY_ASSIGN(std::unique_ptr<session::Session> made, session::Session::create(owner.pool, wanted));
    *out = std::make_unique<dsv41_session>(owner, std::move(made)).release();
    return {};
  });
}

dsv41_status dsv41_session_fork(dsv41_session* session, uint64_t position, dsv41_session** out, dsv41_replay_info* info,
                                dsv41_error* error) {
  return run_call("dsv41_session_fork", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    DSV41_TRY(check_optional_output(info, "info"));
    DSV41_TRY_ASSIGN(std::unique_ptr<session::Session> made, owner.session->fork(to_signed(position)));
    dsv41_replay_info described{};
    if (info) DSV41_TRY(describe_replay(*made, made->options().replay, &described));
    *out = std::make_unique<dsv41_session>(*owner.pool.get(), std::move(made)).release();
    write_struct(described, info);
    return {};
  });
}

dsv41_status dsv41_session_truncate(dsv41_session* session, uint64_t position, const dsv41_replay_options* options,
                                    dsv41_replay_info* info, dsv41_error* error) {
  return run_call("dsv41_session_truncate", error, want(session, Access::kExclusive),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_optional_output(info, "info"));
                    session::ReplayPolicy policy;
                    DSV41_TRY(read_policy(options, owner.session->options().replay, &policy));
                    DSV41_TRY(poison_on_exception(owner, [&] { return owner.session->truncate(to_signed(position)); }));
                    if (!info) return {};
                    dsv41_replay_info described;
                    DSV41_TRY(describe_replay(*owner.session, policy, &described));
                    write_struct(described, info);
                    return {};
                  });
}

dsv41_status dsv41_session_reset(dsv41_session* session, dsv41_error* error) {
  return run_call("dsv41_session_reset", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
    owner.session->reset();
    return {};
  });
}

dsv41_status dsv41_session_info_get(dsv41_session* session, dsv41_session_info* out, dsv41_error* error) {
  return run_call("dsv41_session_info_get", error, want(session, Access::kReadSafe),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_output(out, "out"));
                    const session::Session& state = *owner.session;
                    fill_struct(out, [&](dsv41_session_info& info) {
                      info.encoder = encoder_policy(state.options().replay);
                      info.decoder = decoder_policy(state.options().replay);
                      info.strict_numeric_class = state.options().replay.strict_numeric_class;
                      info.has_logits = state.has_logits();
                      info.is_exact = state.is_exact();
                      info.encoder_windows_intact = state.encoder_windows_intact();
                      info.decoder_windows_intact = state.decoder_windows_intact();
                      info.position = static_cast<uint64_t>(state.position());
                      info.max_tokens = static_cast<uint64_t>(state.max_tokens());
                      info.n_pages = static_cast<uint64_t>(state.n_pages());
                      info.n_pages_shared = n_shared_pages(state);
                    });
                    return {};
                  });
}

dsv41_status dsv41_session_tokens(dsv41_session* session, uint64_t from, int32_t* buffer, size_t capacity, size_t* n,
                                  dsv41_error* error) {
  return run_call("dsv41_session_tokens", error, want(session, Access::kExclusive),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_buffer(buffer, capacity, n));
                    const uint64_t position = static_cast<uint64_t>(owner.session->position());
                    if (from > position) {
                      return Status(Code::kINVALID_ARG, "from is " + std::to_string(from) + ", the session has " +
                                                            std::to_string(position) + " tokens");
                    }
                    const size_t n_wanted = static_cast<size_t>(position - from);
                    DSV41_TRY(check_capacity(n_wanted, capacity, n));
                    if (capacity == 0) return {};
                    owner.session->copy_tokens(static_cast<int64_t>(from), owner.session->position(), buffer);
                    return {};
                  });
}

dsv41_status dsv41_session_common_prefix(dsv41_session* session, const dsv41_input* input, uint64_t* out,
                                         dsv41_error* error) {
  return run_call("dsv41_session_common_prefix", error, want(session, Access::kExclusive),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_pointer(out, "out"));
                    std::span<const int32_t> tokens;
                    DSV41_TRY(read_tokens(input, "input", &tokens));
                    *out = static_cast<uint64_t>(owner.session->common_prefix(tokens));
                    return {};
                  });
}

dsv41_status dsv41_session_digest(dsv41_session* session, uint32_t parts, uint8_t out[32], dsv41_error* error) {
  return run_call(
      "dsv41_session_digest", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
        DSV41_TRY(check_pointer(out, "out"));
        DSV41_TRY_ASSIGN(const Sha256Digest digest, owner.session->digest(parts ? parts : uint32_t{DSV41_DIGEST_ALL}));
        std::memcpy(out, digest.data(), digest.size());
        return {};
      });
}

dsv41_status dsv41_session_pages(dsv41_session* session, dsv41_page_desc* buffer, size_t capacity, size_t* n,
                                 dsv41_error* error) {
  return run_call("dsv41_session_pages", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
    DSV41_TRY(check_buffer(buffer, capacity, n));
    const std::vector<dsv41_page_desc> pages = describe_pages(*owner.session);
    return write_buffer(std::span<const dsv41_page_desc>(pages), buffer, capacity, n);
  });
}

void dsv41_session_release(dsv41_session* session) {
  if (session) session->release();
}

dsv41_status dsv41_session_replay_plan(dsv41_session* session, const dsv41_input* full,
                                       const dsv41_replay_options* options, dsv41_replay_plan* out,
                                       dsv41_error* error) {
  return run_call("dsv41_session_replay_plan", error, want(session, Access::kExclusive),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_output(out, "out"));
                    std::span<const int32_t> tokens;
                    DSV41_TRY(read_tokens(full, "full", &tokens));
                    session::ReplayPolicy policy;
                    DSV41_TRY(read_policy(options, owner.session->options().replay, &policy));
                    DSV41_TRY_ASSIGN(const session::RunPlan plan, owner.session->plan_sync(tokens, policy));
                    write_struct(to_host(plan), out);
                    return {};
                  });
}

dsv41_status dsv41_session_set_replay(dsv41_session* session, const dsv41_replay_options* options, dsv41_error* error) {
  return run_call("dsv41_session_set_replay", error, want(session, Access::kExclusive),
                  [&](dsv41_session& owner) -> Status {
                    session::ReplayPolicy policy;
                    DSV41_TRY(read_policy(options, session::ReplayPolicy{}, &policy));
                    owner.session->set_replay(policy);
                    return {};
                  });
}

dsv41_status dsv41_session_provenance(dsv41_session* session, dsv41_range* ranges, size_t range_capacity,
                                      size_t* n_ranges, uint64_t* hits, size_t hit_capacity, size_t* n_hits,
                                      dsv41_error* error) {
  return run_call("dsv41_session_provenance", error, want(session, Access::kExclusive),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_pointer(n_ranges, "n_ranges"));
                    DSV41_TRY(check_pointer(n_hits, "n_hits"));
                    DSV41_TRY(check_span(ranges, range_capacity, "ranges"));
                    DSV41_TRY(check_span(hits, hit_capacity, "hits"));
                    std::vector<dsv41_range> all_ranges;
                    std::vector<uint64_t> all_hits;
                    for (const session::ProvenanceRange& range : owner.session->provenance()) {
                      const size_t first_hit = all_hits.size();
                      if (range.provenance)
                        all_hits.insert(all_hits.end(), range.provenance->begin(), range.provenance->end());
                      all_ranges.push_back({static_cast<uint64_t>(range.first), static_cast<uint64_t>(range.end),
                                            first_hit, all_hits.size() - first_hit});
                    }
                    const Status ranges_fit = check_capacity(all_ranges.size(), range_capacity, n_ranges);
                    const Status hits_fit = check_capacity(all_hits.size(), hit_capacity, n_hits);
                    DSV41_TRY(ranges_fit);
                    DSV41_TRY(hits_fit);
                    DSV41_TRY(write_buffer(std::span<const dsv41_range>(all_ranges), ranges, range_capacity, n_ranges));
                    return write_buffer(std::span<const uint64_t>(all_hits), hits, hit_capacity, n_hits);
                  });
}

}  // extern "C"
