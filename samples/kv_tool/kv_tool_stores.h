// What dsv41-kv does with the folder of a store. list, info, verify and dump only read, also while a program writes the
// store; gc, pin, unpin and remove have to be its writer, and answer LOCKED where another program is. Output and failures
// as in kv_tool_snapshots.h.
#pragma once

#include <string>

#include "kv_tool_texts.h"
#include "samples/common/api_calls.h"

namespace dsv41_kv {

// Whether the folder is one of a store.
bool is_store(const std::string& folder);

// One line for each record, each page before what stands on it.
ExitCode list_store(dsv41_runtime* runtime, const std::string& folder, bool as_json);

// How much is there.
ExitCode show_store(dsv41_runtime* runtime, const std::string& folder, bool as_json);

// Every record's head; deep: all of it, decompressed.
ExitCode verify_store(dsv41_runtime* runtime, const std::string& folder, bool deep, bool as_json);

// A key below: 32 hexadecimal digits, or the first of them where only one record begins so.

// A record, the pages below it and what stands on it, as one JSON value.
ExitCode dump_record(dsv41_runtime* runtime, const std::string& folder, const std::string& key);

// Removes what has expired, then the least recently used, until the folder takes at most target_bytes.
ExitCode shrink_store(dsv41_runtime* runtime, const std::string& folder, uint64_t target_bytes, bool as_json);

ExitCode pin_record(dsv41_runtime* runtime, const std::string& folder, const std::string& key,
                    const std::string& reason);
ExitCode unpin_record(dsv41_runtime* runtime, const std::string& folder, const std::string& key);
// The record and all that stands on it.
ExitCode remove_record(dsv41_runtime* runtime, const std::string& folder, const std::string& key);

}  // namespace dsv41_kv
