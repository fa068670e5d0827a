#include "chat_store.h"

namespace dsv41_chat {

using dsv41_samples::ApiError;
using dsv41_samples::call;
using dsv41_samples::explained;
using dsv41_samples::made_by;

ChatStore::ChatStore(dsv41_runtime* runtime, const std::string& folder) : folder_(folder) {
  try {
    store_ = dsv41_samples::opened_store(runtime, folder, DSV41_LOCK_WRITER_OR_READER);
  } catch (const ApiError& error) {
    throw StoreFailure(explained(error));
  }
}

void ChatStore::attach_to(dsv41_pool* pool) const {
  auto options = made_by(dsv41_attach_options_init);
  options.write_back = DSV41_WRITE_ON_SEAL;
  call(dsv41_pool_attach_store, pool, store_.get(), &options);
}

std::string ChatStore::put(dsv41_session* session, dsv41_cancel* cancel) const {
  if (read_only()) return {};
  auto state = made_by(dsv41_snapshot_options_init);
  state.cancel = cancel;
  auto options = made_by(dsv41_put_options_init);
  options.state = &state;
  try {
    const dsv41_status status =
        call(dsv41_store_put, store_.get(), session, &options, static_cast<dsv41_put_result*>(nullptr));
    return status == DSV41_NOT_ADMITTED ? "it has no room, or other pages stand in the way" : "";
  } catch (const ApiError& error) {
    return explained(error);
  }
}

dsv41_store_stats ChatStore::stats() const {
  auto stats = made_by(dsv41_store_stats_init);
  call(dsv41_store_stats_get, store_.get(), &stats);
  return stats;
}

}  // namespace dsv41_chat
