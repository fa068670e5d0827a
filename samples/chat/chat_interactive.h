// The talk on a terminal: a prompt, slash commands, streamed answers.
#pragma once

#include "chat_engine.h"
#include "chat_options.h"

namespace dsv41_chat {

// Returns an ExitCode when the user leaves.
int talk(Engine& engine, const Options& options);

}  // namespace dsv41_chat
