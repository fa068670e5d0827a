// One number over everything that a session's next token depends on: tokens, logits, records, valid window rows, open
// rows.
#pragma once

#include <string>

#include "session/session.h"

namespace dsv41::test {

// Hex of the SHA-256 that the library makes over the parts.
std::string session_digest(const session::Session& session, uint32_t parts = session::kDigestAll);

}  // namespace dsv41::test
