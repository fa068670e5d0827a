#include "text/tokenizer_file.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/json.h"

namespace dsv41::text {
namespace {

constexpr uint64_t kMaxTotalBytes = 1u << 30;  // of all tokens

Status damaged(std::string message) { return Status(Code::kTOKENIZER, std::move(message)); }

bool is_absent(const Json* json) { return json == nullptr || json->is_null(); }
bool is_false_or_absent(const Json* json) { return is_absent(json) || (json->is_bool() && !json->as_bool()); }
bool is_empty_or_absent(const Json* json) {
  return is_absent(json) || (json->is_string() && json->as_string().empty());
}
bool is_string(const Json* json, std::string_view value) {
  return json != nullptr && json->is_string() && json->as_string() == value;
}

// Byte-level spelling to bytes; false if a character is not of the alphabet.
class ByteLevelDecoder {
 public:
  ByteLevelDecoder() {
    byte_of_.fill(-1);
    const std::array<uint16_t, 256> alphabet = byte_level_alphabet();
    for (int byte = 0; byte < 256; ++byte) byte_of_[alphabet[static_cast<size_t>(byte)]] = static_cast<int16_t>(byte);
  }

  bool decode(std::string_view spelling, std::string& bytes) const {
    bytes.clear();
    for (size_t i = 0; i < spelling.size(); ++i) {
      uint32_t c = static_cast<uint8_t>(spelling[i]);
      if (c >= 0x80) {
        if (c >> 5 != 6 || i + 1 == spelling.size()) return false;  // the alphabet ends at U+0143: two bytes
        c = (c & 31) << 6 | (static_cast<uint8_t>(spelling[++i]) & 63);
      }
      if (c >= byte_of_.size() || byte_of_[c] < 0) return false;
      bytes += static_cast<char>(byte_of_[c]);
    }
    return true;
  }

 private:
  std::array<int16_t, 0x144> byte_of_;
};

class Reader {
 public:
  explicit Reader(const Json& root) : root_(root) {}

  Result<TokenizerFile> read() {
    DSV41_TRY(check_root());
    DSV41_TRY(read_pre_tokenizer());
    DSV41_TRY(check_model());
    count_ids();
    DSV41_TRY(read_added_tokens());
    DSV41_TRY(read_vocab());
    DSV41_TRY(read_merges());
    return std::move(file_);
  }

 private:
  Status check_root() {
    if (!root_.is_object()) return damaged("the file is no JSON object");
    const Json* normalizer = root_.find("normalizer");
    if (!is_absent(normalizer)) {
      const Json* list = normalizer->find("normalizers");
      if (!is_string(normalizer->find("type"), "Sequence") || list == nullptr || !list->is_array() ||
          !list->items().empty()) {
        return damaged("a normalizer is not supported");
      }
    }
    for (const char* key : {"truncation", "padding"}) {
      if (!is_absent(root_.find(key))) return damaged(std::string(key) + " is not supported");
    }
    for (const char* key : {"decoder", "post_processor"}) {
      const Json* part = root_.find(key);
      if (!is_absent(part) && !is_string(part->find("type"), "ByteLevel")) {
        return damaged(std::string(key) + " is not ByteLevel");
      }
    }
    return Status();
  }

  // A ByteLevel, or a Sequence of isolating Splits and a ByteLevel.
  Status read_pre_tokenizer() {
    const Json* pre = root_.find("pre_tokenizer");
    if (is_absent(pre)) return damaged("no pre_tokenizer");
    if (!is_string(pre->find("type"), "Sequence")) return check_byte_level(*pre);
    const Json* list = pre->find("pretokenizers");
    if (list == nullptr || !list->is_array() || list->items().empty()) return damaged("an empty pre_tokenizer");
    const std::vector<Json>& steps = list->items();
    for (size_t i = 0; i + 1 < steps.size(); ++i) {
      const Json* pattern = steps[i].find("pattern");
      const Json* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
      if (!is_string(steps[i].find("type"), "Split") || !is_string(steps[i].find("behavior"), "Isolated") ||
          !is_false_or_absent(steps[i].find("invert")) || regex == nullptr || !regex->is_string()) {
        return damaged("step " + std::to_string(i) + " of the pre_tokenizer is not an isolating Split by a Regex");
      }
      file_.patterns.push_back(regex->as_string());
    }
    return check_byte_level(steps.back());
  }

  static Status check_byte_level(const Json& step) {
    const Json* use_regex = step.find("use_regex");  // absent means true
    if (!is_string(step.find("type"), "ByteLevel") || is_absent(use_regex) || !is_false_or_absent(use_regex)) {
      return damaged("the pre_tokenizer does not end in ByteLevel without a regex of its own");
    }
    const Json* prefix_space = step.find("add_prefix_space");  // absent means true
    if (is_absent(prefix_space) || !is_false_or_absent(prefix_space))
      return damaged("add_prefix_space is not supported");
    return Status();
  }

  Status check_model() {
    model_ = root_.find("model");
    if (model_ == nullptr || !is_string(model_->find("type"), "BPE")) return damaged("the model is not BPE");
    for (const char* key : {"dropout", "unk_token"}) {
      if (!is_absent(model_->find(key))) return damaged(std::string(key) + " is not supported");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!is_empty_or_absent(model_->find(key))) return damaged(std::string(key) + " is not supported");
    }
    for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"}) {
      if (!is_false_or_absent(model_->find(key))) return damaged(std::string(key) + " is not supported");
    }
    return Status();
  }

  // Ids may have gaps, but a wild one must not make a huge table.
  void count_ids() {
    const Json* added = root_.find("added_tokens");
    const Json* vocab = model_->find("vocab");
    size_t n = 1024;
    if (added != nullptr && added->is_array()) n += 2 * added->items().size();
    if (vocab != nullptr && vocab->is_object()) n += 2 * vocab->members().size();
    max_id_ = static_cast<int64_t>(std::min<size_t>(n, INT32_MAX - 1));
  }

  Status read_added_tokens() {
    const Json* list = root_.find("added_tokens");
    if (is_absent(list)) return Status();
    if (!list->is_array()) return damaged("added_tokens is no list");
    for (const Json& entry : list->items()) {
      const Json* content = entry.find("content");
      const Json* id = entry.find("id");
      if (content == nullptr || !content->is_string() || content->as_string().empty() || id == nullptr) {
        return damaged("an added token without content or id");
      }
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        if (!is_false_or_absent(entry.find(key))) {
          return damaged("added token " + content->as_string() + ": " + key + " is not supported");
        }
      }
      DSV41_TRY(put(*id, content->as_string(), true));
      int64_t number = 0;
      id->to_int64(&number);
      if (!added_.emplace(content->as_string(), static_cast<int32_t>(number)).second) {
        return damaged("added token " + content->as_string() + " stands twice");
      }
    }
    return Status();
  }

  Status read_vocab() {
    const Json* vocab = model_->find("vocab");
    if (vocab == nullptr || !vocab->is_object()) return damaged("no vocab");
    file_.byte_ids.fill(-1);
    const ByteLevelDecoder decoder;
    std::string bytes;
    base_.reserve(vocab->members().size());
    for (const auto& [spelling, id] : vocab->members()) {
      const auto added = added_.find(spelling);
      int64_t number = -1;
      if (added != added_.end() && id.is_integer() && id.to_int64(&number) && number == added->second) continue;
      if (!decoder.decode(spelling, bytes) || bytes.empty()) {
        return damaged("vocabulary entry \"" + spelling + "\" is not spelled in the byte-level alphabet");
      }
      DSV41_TRY(put(id, bytes, false));
      id.to_int64(&number);
      base_.emplace(spelling, static_cast<int32_t>(number));
      if (bytes.size() == 1) file_.byte_ids[static_cast<uint8_t>(bytes[0])] = static_cast<int32_t>(number);
    }
    for (size_t byte = 0; byte < 256; ++byte) {
      if (file_.byte_ids[byte] < 0) return damaged("the vocabulary has no token for byte " + std::to_string(byte));
    }
    return Status();
  }

  // Puts a token at its id.
  Status put(const Json& id, std::string_view bytes, bool is_added) {
    int64_t number = -1;
    if (!id.is_integer() || !id.to_int64(&number) || number < 0 || number > max_id_) {
      return damaged("the id of \"" + std::string(bytes) + "\" is no whole number from 0 to " +
                     std::to_string(max_id_));
    }
    const auto at = static_cast<size_t>(number);
    if (at >= file_.tokens.size()) file_.tokens.resize(at + 1);
    if (!file_.tokens[at].bytes.empty()) return damaged("two tokens have id " + std::to_string(number));
    n_bytes_ += bytes.size();
    if (n_bytes_ > kMaxTotalBytes) return damaged("the tokens are too long");
    file_.tokens[at] = {std::string(bytes), is_added};
    return Status();
  }

  Status read_merges() {
    const Json* merges = model_->find("merges");
    if (merges == nullptr || !merges->is_array()) return damaged("no merges");
    file_.merges.reserve(merges->items().size());
    std::unordered_set<uint64_t> seen;
    seen.reserve(merges->items().size());
    std::string joined;
    for (const Json& merge : merges->items()) {
      std::string_view left, right;
      const std::string place = "merge " + std::to_string(file_.merges.size());
      if (!sides(merge, &left, &right)) return damaged(place + " is no pair");
      const auto left_at = base_.find(left), right_at = base_.find(right);
      joined.assign(left);
      joined += right;
      const auto joined_at = base_.find(joined);
      if (left_at == base_.end() || right_at == base_.end() || joined_at == base_.end()) {
        return damaged(place + " (" + joined + "): a part or the whole is not in the vocabulary");
      }
      file_.merges.push_back({left_at->second, right_at->second, joined_at->second});
      const uint64_t pair =
          uint64_t{static_cast<uint32_t>(left_at->second)} << 32 | static_cast<uint32_t>(right_at->second);
      if (!seen.insert(pair).second) return damaged(place + " (" + joined + ") stands twice");
    }
    return Status();
  }

  // "left right" or ["left", "right"].
  static bool sides(const Json& merge, std::string_view* left, std::string_view* right) {
    if (merge.is_array()) {
      const std::vector<Json>& pair = merge.items();
      if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) return false;
      *left = pair[0].as_string();
      *right = pair[1].as_string();
    } else {
      if (!merge.is_string()) return false;
      const std::string_view both = merge.as_string();
      const size_t space = both.find(' ');
      if (space == std::string_view::npos) return false;
      *left = both.substr(0, space);
      *right = both.substr(space + 1);
    }
    return !left->empty() && !right->empty();
  }

  const Json& root_;
  const Json* model_ = nullptr;
  TokenizerFile file_;
  int64_t max_id_ = 0;
  uint64_t n_bytes_ = 0;
  std::unordered_map<std::string_view, int32_t> added_;  // by literal
  std::unordered_map<std::string_view, int32_t> base_;   // by byte-level spelling
};

}  // namespace

std::array<uint16_t, 256> byte_level_alphabet() {
  std::array<uint16_t, 256> alphabet;
  uint16_t next = 256;
  for (uint16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte < 127) || (byte >= 161 && byte != 173);
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}

Result<TokenizerFile> TokenizerFile::read(std::string_view json) {
  Result<Json> root = Json::parse(json);
  if (!root.ok()) return damaged(std::string(root.status().message()));
  return Reader(root.value()).read();
}

}  // namespace dsv41::text
