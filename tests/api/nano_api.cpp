#include "api/nano_api.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>

namespace dsv41::test {

const Runtime& nano_runtime() {
  static const Runtime runtime = [] {
    auto options = make<dsv41_runtime_options>();
    options.n_threads = 2;
    return Runtime(options);
  }();
  return runtime;
}

const Model& nano_model() {
  static const Model model(nano_runtime(), kNanoFolder);
  return model;
}

Tokens chat_prompt(const Model& model, std::string_view user_text) {
  return model.chat_render(R"({"messages": [{"role": "user", "content": ")" + std::string(user_text) + "\"}]}");
}

std::string greedy_reply(const Model& model, const Pool& pool, const Tokens& prompt, uint64_t max_new_tokens) {
  Session session(pool);
  Sampler sampler(model);
  session.prefill(prompt);
  auto options = make<dsv41_generate_options>();
  options.max_new_tokens = max_new_tokens;
  std::string reply;
  session.generate(
      sampler,
      [&](const dsv41_token_event& event) {
        reply.append(event.text, event.text_size);
        return true;
      },
      options);
  return reply;
}

Tokens filler_tokens(const Model& model, size_t n) {
  const Tokens sentence = model.tokenize("Remember this. Greta's age is 19. What is 69 + 14? Tom had 98 cherries. ");
  Tokens tokens = {model.special_token(DSV41_SPECIAL_BOS)};
  for (size_t i = 0; tokens.size() < n; ++i) tokens.push_back(sentence[i % sentence.size()]);
  tokens.resize(n);
  return tokens;
}

dsv41_status status_of(const std::function<void()>& call, int32_t* host_code) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.what() != std::string());
    if (host_code) *host_code = error.host_code();
    return error.status();
  }
  return DSV41_OK;
}

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t all_pages = 0, resident_pages = 0;
  statm >> all_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace dsv41::test
