// SessionState: the parts of a session that snapshots save and put back; the only way to them from outside the session's
// own files.
#pragma once

#include "session/session.h"

namespace dsv41::session {

struct SessionState {
  // What a session gets in place of all it had. `kv` holds the pages of the first `position` tokens.
  struct Parts {
    kv::KvRef kv;
    int64_t position = 0;
    std::vector<int32_t> tail;                     // tokens behind the full sealed pages
    std::vector<ProvenanceRange> tail_provenance;  // of their rows: from the first of them on, without gaps
    kv::WindowRows encoder{0, 0, false}, decoder{0, 0, false};
    int64_t open_low = 0;
    kv::Provenance windows_provenance;
    std::shared_ptr<const std::vector<float>> logits;
    bool other_class = false;  // some of it is of another numeric class than the backend's
  };
  static void put(Session& session, Parts parts) {
    session.kv_ = std::move(parts.kv);
    session.position_ = parts.position;
    session.tail_ = std::move(parts.tail);
    session.tail_provenance_.clear();
    for (const ProvenanceRange& range : parts.tail_provenance) {
      session.tail_provenance_.push_back({range.first, range.provenance});
    }
    session.encoder_ = parts.encoder;
    session.decoder_ = parts.decoder;
    session.open_low_ = parts.open_low;
    session.windows_provenance_ = std::move(parts.windows_provenance);
    session.logits_ = std::move(parts.logits);
    session.logprobs_ = nullptr;
    session.n_stored_ = -1;
    session.other_class_ = parts.other_class;
  }
  static void note_other_class(Session& session) { session.other_class_ = true; }

  static const kv::PrefixRootRef& root(const Session& session) { return session.root_; }
  static const kv::WindowRows& encoder(const Session& session) { return session.encoder_; }
  static const kv::WindowRows& decoder(const Session& session) { return session.decoder_; }
  static int64_t open_low(const Session& session) { return session.open_low_; }
  static bool has_open_row(const Session& session) { return session.has_open_row(session.position_); }
  static const kv::Provenance& windows_provenance(const Session& session) { return session.windows_provenance_; }
  static kv::Provenance provenance_of(const Session& session, int64_t token) { return session.provenance_of(token); }
};

}  // namespace dsv41::session
