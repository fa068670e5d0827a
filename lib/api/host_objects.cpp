#include "api/host_objects.h"

#include "api/structs.h"

namespace dsv41::api {

static_assert(store::ObjectCallbacks::kMissing == DSV41_OBJECT_MISSING);

// They run on threads of the store, amid its own work: no call on a handle is allowed inside them.
store::ObjectCallbacks HostObjects::callbacks() {
  store::ObjectCallbacks out;
  out.user = this;
  out.get = [](void* user, const char* name, uint64_t offset, void* buffer, size_t capacity, size_t* n_copied,
               uint64_t* size) {
    const dsv41_object_store& given = static_cast<HostObjects*>(user)->given_;
    CallbackScope scope(CallbackScope::Rule::kStrict);
    return given.get_fn(given.user, name, offset, buffer, capacity, n_copied, size);
  };
  out.put = [](void* user, const char* name, const void* bytes, size_t size) {
    const dsv41_object_store& given = static_cast<HostObjects*>(user)->given_;
    CallbackScope scope(CallbackScope::Rule::kStrict);
    return given.put_fn(given.user, name, bytes, size);
  };
  if (given_.delete_fn)
    out.remove = [](void* user, const char* name) {
      const dsv41_object_store& given = static_cast<HostObjects*>(user)->given_;
      CallbackScope scope(CallbackScope::Rule::kStrict);
      return given.delete_fn(given.user, name);
    };
  if (given_.list_fn)
    out.list = [](void* user, const char* prefix, dsv41_object_visit_fn visit, void* visit_state) {
      const dsv41_object_store& given = static_cast<HostObjects*>(user)->given_;
      CallbackScope scope(CallbackScope::Rule::kStrict);
      return given.list_fn(given.user, prefix, visit, visit_state);
    };
  return out;
}

Status read_objects(const dsv41_object_store* objects, bool writes, dsv41_object_store* out) {
  DSV41_TRY(read_struct(objects, "options.objects", out));
  if (!out->get_fn) return Status(Code::kINVALID_ARG, "options.objects.get_fn is NULL");
  if (writes && !out->put_fn) return Status(Code::kINVALID_ARG, "options.objects.put_fn is NULL");
  return {};
}

}  // namespace dsv41::api
