#include "support/session_digest.h"

#include <stdexcept>

#include "base/sha256.h"

namespace dsv41::test {

std::string session_digest(const session::Session& session, uint32_t parts) {
  Result<Sha256Digest> digest = session.digest(parts);
  if (!digest.ok()) throw std::runtime_error(std::string(digest.status().message()));
  return sha256_hex(digest.value());
}

}  // namespace dsv41::test
