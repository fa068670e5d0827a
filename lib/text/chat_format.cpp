#include "text/chat_format.h"

#include <string>

namespace dsv41::text {
namespace {

constexpr std::string_view kTaskNames[kNChatTasks] = {"none",   "action", "query",   "authority",
                                                      "domain", "title",  "read_url"};

}  // namespace

std::string_view chat_task_name(ChatTask task) { return kTaskNames[static_cast<size_t>(task)]; }

Result<ChatTokens> ChatTokens::find(const Tokenizer& tokenizer) {
  ChatTokens tokens;
  const struct {
    int32_t* id;
    std::string_view literal;
  } required[] = {{&tokens.bos, kBosLiteral},
                  {&tokens.eos, kEosLiteral},
                  {&tokens.system, kSystemLiteral},
                  {&tokens.user, kUserLiteral},
                  {&tokens.assistant, kAssistantLiteral},
                  {&tokens.think, kThinkLiteral},
                  {&tokens.end_think, kEndThinkLiteral},
                  {&tokens.dsml, kDsmlLiteral}};
  for (const auto& [id, literal] : required) {
    *id = tokenizer.find_added(literal);
    if (*id < 0) {
      return Status(Code::kTOKENIZER, "the vocabulary has no token " + std::string(literal) + " of the chat format");
    }
  }
  tokens.pad = tokenizer.find_added(kPadLiteral);
  tokens.latest_reminder = tokenizer.find_added(kLatestReminderLiteral);
  tokens.image = tokenizer.find_added(kImageLiteral);
  for (int i = 1; i < kNChatTasks; ++i) {
    tokens.task[i] = tokenizer.find_added("<｜" + std::string(kTaskNames[i]) + "｜>");
  }
  return tokens;
}

}  // namespace dsv41::text
