// ChatStore: the folder of --store. Pages of KV memory go there as they become full, and after each answer what lies
// behind the last full page, so that another run of the program takes from there what it would have to compute.
#pragma once

#include <dsv41/dsv41.h>

#include <stdexcept>
#include <string>

#include "samples/common/api_calls.h"

namespace dsv41_chat {

// The folder cannot be used; the text says why.
class StoreFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ChatStore {
 public:
  // Opens the folder, or makes it. Where another program writes it, it is opened for reading. Throws StoreFailure.
  ChatStore(dsv41_runtime* runtime, const std::string& folder);

  // Makes sessions of the pool look in the store. Before the pool's first session. Throws ApiError.
  void attach_to(dsv41_pool* pool) const;

  // Hands a session over. A thread of the library writes it; what it could not write shows in the statistics. Gives what
  // went wrong, in words; empty if nothing did. Where the folder is only read it does nothing.
  std::string put(dsv41_session* session, dsv41_cancel* cancel) const;

  const std::string& folder() const { return folder_; }
  bool read_only() const { return stats().read_only != 0; }
  dsv41_store_stats stats() const;

 private:
  std::string folder_;
  dsv41_samples::Store store_;
};

}  // namespace dsv41_chat
