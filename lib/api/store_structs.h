// Between the structs of the C API and those of the store and session rooms: options, matches, reports.
#pragma once

#include "api/snapshot_structs.h"
#include "session/session_store.h"

namespace dsv41::api {

// All but where the records are, and the clock.
Status read_store_options(const dsv41_store_options& given, store::StoreOptions* out);
Status read_key(const uint8_t* key, store::RecordKey* out);

// The options of one put, with what they point to.
class PutRequest {
 public:
  Status read(const dsv41_put_options* options, const dsv41_session& owner);
  const session::StorePutOptions& options() const { return wanted_; }

 private:
  SaveRequest state_;
  session::StorePutOptions wanted_;
};

dsv41_match_info to_host(const session::StoreMatch& match);
dsv41_put_result to_host(const session::StorePutResult& result);
// NOT_ADMITTED with the reason, where the store has declined.
Status admission(store::PutOutcome outcome);
dsv41_store_entry to_host(const store::RecordInfo& record);
dsv41_gc_report to_host(const store::GcReport& report);
dsv41_store_verify_report to_host(const store::StoreVerifyReport& report);
dsv41_store_stats to_host(const store::StoreStats& stats, bool read_only);

}  // namespace dsv41::api
