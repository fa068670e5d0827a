// One number over everything that a session's next token depends on: tokens, logits, records, valid window rows, open
// rows.
#pragma once

#include <string>

#include "session/session.h"

namespace dsv41::test {

std::string session_digest(const session::Session& session);  // hex of a SHA-256

}  // namespace dsv41::test
