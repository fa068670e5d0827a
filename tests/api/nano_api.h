// The nano model through the public API, for tests: one runtime and model per process, pools and sessions per test.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "dsv41/dsv41.hpp"
#include "support/sanitizers.h"

namespace dsv41::test {

// Sanitizers slow every call down; the address sanitizer also keeps freed memory for a while.
inline constexpr bool kSanitized = DSV41_ADDRESS_SANITIZER || DSV41_THREAD_SANITIZER;

inline const std::string kNanoFolder = DSV41_SOURCE_DIR "/samples/nano";

// Made at the first call; kept for the life of the process.
const Runtime& nano_runtime();
const Model& nano_model();

// {"messages": [{"role": "user", "content": TEXT}]}, rendered.
Tokens chat_prompt(const Model& model, std::string_view user_text);
// Greedy reply to a prompt in a new session of the pool.
std::string greedy_reply(const Model& model, const Pool& pool, const Tokens& prompt, uint64_t max_new_tokens = 64);
// Tokens of some plain text, repeated to the length wanted.
Tokens filler_tokens(const Model& model, size_t n);

// What the call answers, where the wrapper would throw; host_code (null: not wanted): the host's value. Checks that a
// failure has a text.
dsv41_status status_of(const std::function<void()>& call, int32_t* host_code = nullptr);

// Resident memory of this process.
uint64_t resident_bytes();

}  // namespace dsv41::test
