// --plan: how much KV memory a number of sessions need, for a model that need not be on this machine.
#pragma once

#include "chat_options.h"

namespace dsv41_chat {

// Prints the plan on stdout. Returns an ExitCode.
int print_plan(const Options& options);

}  // namespace dsv41_chat
