#include "backend/registry.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/placement.h"

namespace dsv41::backend {

const std::vector<const char*>& backend_names() {
  static const std::vector<const char*> names = {"cpu", "ref"};
  return names;
}

Status check_placement(const BackendOptions& options) { return placement_here(options).status(); }

Result<std::shared_ptr<Backend>> create_backend(std::string_view name, const BackendOptions& options) {
  if (name == "cpu") return create_cpu_backend(options);
  if (name == "ref") return create_ref_backend(options);
  return Status(Code::kBACKEND_UNAVAILABLE,
                "no backend \"" + std::string(name.substr(0, 40)) + "\" in this build (cpu, ref)");
}

}  // namespace dsv41::backend
