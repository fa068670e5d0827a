// What the trials of faults of stores share: a store in a folder of its own that processes open one after the other, each
// with a pool of its own.
#pragma once

#include <stdexcept>

#include "regress/reuse_oracles.h"
#include "session/session_store.h"
#include "support/temp_folder.h"

namespace dsv41::test {

template <class T>
T must_have(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(std::string(result.status().message()));
  return std::move(result).value();
}

// A pool over a store. Pages go there as they fill.
inline std::shared_ptr<session::Pool> pool_with_store(const Oracles& model, const std::shared_ptr<store::Store>& store,
                                                      session::PoolOptions options = reuse_options()) {
  std::shared_ptr<session::Pool> pool = model.pool(options);
  const Status status = pool->attach_store(store, session::WriteBack::kOnSeal);
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  return pool;
}

class StoreTrial {
 public:
  // Writes are done when put returns.
  std::shared_ptr<store::Store> open() const {
    store::StoreOptions options;
    options.folder = folder_.file("store");
    options.background = false;
    return must_have(store::Store::open(options));
  }
  std::shared_ptr<session::Pool> pool(const Oracles& model, const std::shared_ptr<store::Store>& store) const {
    return pool_with_store(model, store);
  }
  session::StorePutResult put(store::Store& store, session::Session& session,
                              session::SnapshotKind kind = session::SnapshotKind::kPrefix) const {
    session::StorePutOptions options;
    options.state.kind = kind;
    options.flush = true;
    return must_have(session::put_session(store, session, options));
  }
  session::StorePutResult put_pages(store::Store& store, session::Session& session) const {
    session::StorePutOptions options;
    options.pages_only = true;
    return must_have(session::put_session(store, session, options));
  }

 private:
  TempFolder folder_;
};

}  // namespace dsv41::test
