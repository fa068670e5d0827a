// Between the structs of the C API and those of the session room: what a save or a restore is asked for, and what it tells.
#pragma once

#include <optional>
#include <vector>

#include "api/host_calls.h"
#include "api/session_structs.h"
#include "session/session_snapshot.h"

namespace dsv41::api {

// The options of one save, with what they point to kept in place and locked for as long as this lives.
class SaveRequest {
 public:
  // options: null for defaults. Of `owner` alone: how it is saved at a durable point, and its vocabulary.
  Status read(const dsv41_snapshot_options* options, const dsv41_session& owner);
  // Of a rewrite: what is not about compression is not looked at.
  Status read(const dsv41_snapshot_options* options, const dsv41_runtime& runtime);

  const session::SnapshotOptions& options() const { return wanted_; }
  Durability durability() const { return durability_; }

 private:
  Status read_common(const dsv41_snapshot_options* options, const dsv41_runtime& runtime,
                     dsv41_snapshot_options* given);
  Status read_kind(uint32_t kind, const dsv41_session& owner);
  Status read_sampler(dsv41_sampler* sampler, const dsv41_session& owner);
  Status read_host_sections(const dsv41_host_section* sections, size_t n);

  session::SnapshotOptions wanted_;
  Durability durability_ = Durability::kFull;
  std::optional<CancelUse> cancel_;
  std::optional<Use> sampler_;
  std::vector<session::HostSection> host_;
};

// The options of one restore. `own` (may be null): the session whose limits, policies and salt stay.
class RestoreRequest {
 public:
  Status read(const dsv41_restore_options* options, const session::SessionOptions* own);
  // The salt that a lookup was made with; NAMESPACE_MISMATCH when the options have another one.
  Status take_salt(std::string_view salt);
  const session::RestoreOptions& options() const { return wanted_; }

 private:
  session::RestoreOptions wanted_;
  std::optional<CancelUse> cancel_;
};

// The version of the format is the one that is written.
dsv41_snapshot_info to_host(const session::SnapshotInfo& info);
// Bits of DSV41_PART_*.
Status read_parts(uint32_t parts, std::string_view name, uint32_t* out);

dsv41_restore_info to_host(const session::RestoreInfo& info);
dsv41_verify_report to_host(const snapshot::VerifyReport& report);

}  // namespace dsv41::api
