#include "text/piece_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace dsv41::text {
namespace {

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, MatchDataFree>;

std::string with_white_space_property(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's' || escaped == 'S') {
      out += escaped == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    } else {
      out += '\\';
      out += escaped;
    }
  }
  return out;
}

std::string message_of(int error) {
  unsigned char text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// Appends the ends of the pieces of text[begin, end).
Status split_piece(const pcre2_code* code, std::string_view text, size_t begin, size_t end, pcre2_match_data* data,
                   std::vector<size_t>& ends) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() + begin);
  const size_t n = end - begin;
  size_t at = 0;
  while (at < n) {
    const int rc = pcre2_match(code, subject, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data, nullptr);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc == PCRE2_ERROR_NOMEMORY) return Status(Code::kNO_MEMORY, "no memory to cut a text into pieces");
    if (rc < 0) return Status(Code::kLIMIT, "a text cannot be cut into pieces: " + message_of(rc));
    const size_t* match = pcre2_get_ovector_pointer(data);
    if (match[0] > at) ends.push_back(begin + match[0]);
    ends.push_back(begin + match[1]);
    at = match[1];
  }
  if (at < n) ends.push_back(end);
  return Status();
}

}  // namespace

struct PieceSplitter::Pattern {
  std::unique_ptr<pcre2_code, CodeFree> code;
};

PieceSplitter::PieceSplitter() = default;
PieceSplitter::PieceSplitter(PieceSplitter&&) noexcept = default;
PieceSplitter& PieceSplitter::operator=(PieceSplitter&&) noexcept = default;
PieceSplitter::~PieceSplitter() = default;

Result<PieceSplitter> PieceSplitter::compile(const std::vector<std::string>& patterns) {
  PieceSplitter splitter;
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string pattern = with_white_space_property(patterns[i]);
    int error = 0;
    size_t error_offset = 0;
    // NEVER_BACKSLASH_C: \C could end a match inside a character.
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &error_offset, nullptr);
    if (code == nullptr) {
      return Status(Code::kTOKENIZER, "pattern " + std::to_string(i) + " of the pre-tokenizer: " + message_of(error));
    }
    splitter.patterns_.push_back({std::unique_ptr<pcre2_code, CodeFree>(code)});
    // Without machine code (no support, no executable memory) PCRE2 interprets the pattern, with the same matches.
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  return splitter;
}

Status PieceSplitter::split(std::string_view text, std::vector<size_t>& ends) const {
  ends.clear();
  if (text.empty()) return Status();
  ends.push_back(text.size());
  if (patterns_.empty()) return Status();
  const MatchData data(pcre2_match_data_create(1, nullptr));
  if (data == nullptr) return Status(Code::kNO_MEMORY, "no memory to cut a text into pieces");
  std::vector<size_t> before;
  for (const Pattern& pattern : patterns_) {
    before.swap(ends);
    ends.clear();
    size_t begin = 0;
    for (const size_t end : before) {
      DSV41_TRY(split_piece(pattern.code.get(), text, begin, end, data.get(), ends));
      begin = end;
    }
  }
  return Status();
}

}  // namespace dsv41::text
