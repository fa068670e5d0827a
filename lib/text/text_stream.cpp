#include "text/text_stream.h"

namespace dsv41::text {

Status TextStream::push(int32_t id, std::string& out) {
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (bytes.empty()) return Status(Code::kINVALID_ARG, "token id " + std::to_string(id) + " does not exist");
  utf8_.append(bytes, out);
  return Status();
}

}  // namespace dsv41::text
