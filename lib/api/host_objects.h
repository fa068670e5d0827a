// The host's objects as the store room wants them: dsv41_object_store behind store::ObjectCallbacks.
#pragma once

#include "api/call.h"
#include "store/object_volume.h"

namespace dsv41::api {

// Must outlive the store.
class HostObjects {
 public:
  explicit HostObjects(const dsv41_object_store& given) : given_(given) {}
  HostObjects(const HostObjects&) = delete;
  HostObjects& operator=(const HostObjects&) = delete;

  store::ObjectCallbacks callbacks();  // refer to this object

 private:
  const dsv41_object_store given_;
};

// writes: whether the store is to be written.
Status read_objects(const dsv41_object_store* objects, bool writes, dsv41_object_store* out);

}  // namespace dsv41::api
