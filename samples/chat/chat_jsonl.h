// --jsonl: a list of conversations in, one line of JSON per conversation out. The format stands in the footer of
// --help.
#pragma once

#include <iosfwd>

#include "chat_engine.h"
#include "chat_options.h"

namespace dsv41_chat {

// Answers every line of `input` in order, each in a new session, on stdout. Blank lines are skipped. Returns an
// ExitCode.
int answer_jsonl(Engine& engine, const Options& options, std::istream& input);

}  // namespace dsv41_chat
