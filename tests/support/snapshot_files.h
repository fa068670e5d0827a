// Snapshots of sessions in memory: saved, opened, restored. What must succeed and does not throws std::runtime_error, which
// doctest reports as the failure.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "session/session_snapshot.h"

namespace dsv41::test {

using session::RestoreInfo;
using session::RestoreOptions;
using session::SessionSnapshot;
using session::SnapshotInfo;
using session::SnapshotKind;
using session::SnapshotOptions;

using FileBytes = std::vector<std::byte>;

inline constexpr WallClock kFixedWall{[](void*) { return uint64_t{1234567890123456789}; }, nullptr};

inline void must_succeed(const Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

inline SnapshotOptions save_options(std::optional<SnapshotKind> kind) {
  SnapshotOptions options;
  options.kind = kind;
  options.wall = kFixedWall;
  return options;
}

inline FileBytes must_save(const session::Session& session, const SnapshotOptions& options,
                           SnapshotInfo* info = nullptr) {
  VectorSink sink;
  must_succeed(session::save_snapshot(session, sink, options, info));
  return std::move(sink.bytes());
}
inline FileBytes must_save(const session::Session& session, SnapshotKind kind) {
  return must_save(session, save_options(kind));
}

// Over bytes of its own.
class BytesSource final : public ByteSource {
 public:
  explicit BytesSource(FileBytes bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  Status read_at(uint64_t offset, std::span<std::byte> out) override { return SpanSource(bytes_).read_at(offset, out); }

 private:
  const FileBytes bytes_;
};

inline Result<std::unique_ptr<SessionSnapshot>> open_bytes(FileBytes bytes) {
  return SessionSnapshot::open(std::make_shared<BytesSource>(std::move(bytes)));
}
inline std::unique_ptr<SessionSnapshot> must_open(FileBytes bytes) {
  Result<std::unique_ptr<SessionSnapshot>> opened = open_bytes(std::move(bytes));
  must_succeed(opened.status());
  return std::move(opened).value();
}

inline RestoreOptions restore_options(const std::string& salt = "") {
  RestoreOptions options;
  options.session.max_tokens = 4096;
  options.session.salt = salt;
  return options;
}
inline Result<std::unique_ptr<session::Session>> restore(const FileBytes& bytes,
                                                         const std::shared_ptr<session::Pool>& pool,
                                                         const RestoreOptions& options = restore_options(),
                                                         RestoreInfo* info = nullptr) {
  DSV41_TRY_ASSIGN(const std::unique_ptr<SessionSnapshot> file, open_bytes(bytes));
  return file->restore(pool, options, info);
}
inline std::unique_ptr<session::Session> must_restore(const FileBytes& bytes,
                                                      const std::shared_ptr<session::Pool>& pool,
                                                      const RestoreOptions& options = restore_options(),
                                                      RestoreInfo* info = nullptr) {
  Result<std::unique_ptr<session::Session>> session = restore(bytes, pool, options, info);
  must_succeed(session.status());
  return std::move(session).value();
}

}  // namespace dsv41::test
