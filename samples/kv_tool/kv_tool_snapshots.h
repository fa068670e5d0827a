// What dsv41-kv does with snapshot files. Each function prints to stdout, as text or as one JSON value, and gives the
// exit code; what the library answers with a failure comes as ApiError.
#pragma once

#include <string>

#include "kv_tool_texts.h"
#include "samples/common/api_calls.h"

namespace dsv41_kv {

// One line for each *.dsv41 file of a folder, by name. A file that cannot be opened gets a line too, and the exit code
// of the last of them.
ExitCode list_snapshots(dsv41_runtime* runtime, const std::string& folder, bool as_json);

// What the file says of itself.
ExitCode show_snapshot(dsv41_runtime* runtime, const std::string& path, bool as_json);

// Every byte against its checksum; deep: decompresses all and compares the sections with each other.
ExitCode verify_snapshot(dsv41_runtime* runtime, const std::string& path, bool deep, bool as_json);

// Everything but KV memory as one JSON value: what `info` tells, the tokens, the host's data.
ExitCode dump_snapshot(dsv41_runtime* runtime, const std::string& path);

}  // namespace dsv41_kv
