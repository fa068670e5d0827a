#include "text/tokenizer.h"

#include <algorithm>
#include <functional>

#include "text/utf8.h"

namespace dsv41::text {
namespace {

// Takes the place of a byte that is no UTF-8 while pieces are cut: U+E000, of category Co.
constexpr std::string_view kStandIn = "\xee\x80\x80";

// `text` with a stand-in for each byte that is no UTF-8, and the places of these bytes.
struct Legible {
  std::string_view text;  // into `copy`, or the text itself where nothing had to be replaced
  std::string copy;
  std::vector<size_t> replaced;  // places of stand-ins in `text`, ascending
};

void make_legible(std::string_view text, Legible& out) {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) {
      out.copy += text.substr(done, at - done);
      for (int i = 0; i < step.n_bytes; ++i) {
        out.replaced.push_back(out.copy.size());
        out.copy += kStandIn;
      }
      done = at + step.n_bytes;
    }
    at += step.n_bytes;
  }
  if (out.replaced.empty()) {
    out.text = text;
    return;
  }
  out.copy += text.substr(done);
  out.text = out.copy;
}

// Ends of pieces of the legible text to ends of pieces of the original.
void move_to_original(const std::vector<size_t>& replaced, std::vector<size_t>& ends) {
  size_t n_before = 0;
  for (size_t& end : ends) {
    while (n_before < replaced.size() && replaced[n_before] < end) ++n_before;
    end -= n_before * (kStandIn.size() - 1);
  }
}

}  // namespace

// One call of encode: scratch memory and the pieces seen so far. The cache is direct-mapped and of fixed size; an entry
// points at ids that are already in the output.
class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, std::vector<int32_t>& out) : tokenizer_(tokenizer), out_(out) {}

  Status add_text(std::string_view text) {
    if (text.size() > kMaxTextBytes) return Status(Code::kLIMIT, "the text is longer than 2 GiB");
    Legible legible;
    make_legible(text, legible);
    DSV41_TRY(tokenizer_.splitter_.split(legible.text, ends_));
    if (!legible.replaced.empty()) move_to_original(legible.replaced, ends_);
    const bool with_cache = text.size() >= kMinCachedTextBytes;
    if (with_cache) cache_.resize(kNCacheEntries);
    size_t begin = 0;
    for (const size_t end : ends_) {
      const std::string_view piece = text.substr(begin, end - begin);
      if (with_cache && piece.size() <= kMaxCachedPieceBytes) {
        add_cached(piece);
      } else {
        tokenizer_.merger_.encode(piece, scratch_, out_);
      }
      begin = end;
    }
    return Status();
  }

 private:
  static constexpr size_t kMaxTextBytes = size_t{1} << 31;
  static constexpr size_t kMinCachedTextBytes = 256;
  static constexpr size_t kMaxCachedPieceBytes = 64;
  static constexpr size_t kNCacheEntries = 1024;

  struct Entry {
    std::string_view piece;  // into the text of the call
    size_t first_id = 0;     // in out_
    size_t n_ids = 0;
  };

  void add_cached(std::string_view piece) {
    Entry& entry = cache_[std::hash<std::string_view>()(piece) % kNCacheEntries];
    if (entry.piece == piece && entry.n_ids > 0) {
      for (size_t i = 0; i < entry.n_ids; ++i) {
        const int32_t id = out_[entry.first_id + i];
        out_.push_back(id);
      }
      return;
    }
    const size_t first_id = out_.size();
    tokenizer_.merger_.encode(piece, scratch_, out_);
    entry = {piece, first_id, out_.size() - first_id};
  }

  const Tokenizer& tokenizer_;
  std::vector<int32_t>& out_;
  BpeScratch scratch_;
  std::vector<size_t> ends_;
  std::vector<Entry> cache_;
};

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(std::string_view json) {
  DSV41_TRY_ASSIGN(const TokenizerFile file, TokenizerFile::read(json));
  DSV41_TRY_ASSIGN(PieceSplitter splitter, PieceSplitter::compile(file.patterns));
  return std::unique_ptr<Tokenizer>(new Tokenizer(file, std::move(splitter)));
}

Tokenizer::Tokenizer(const TokenizerFile& file, PieceSplitter splitter)
    : merger_(file.byte_ids, file.merges), splitter_(std::move(splitter)) {
  end_of_.push_back(0);
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const TokenizerFile::Token& token = file.tokens[id];
    bytes_ += token.bytes;
    end_of_.push_back(static_cast<uint32_t>(bytes_.size()));
    is_added_.push_back(token.is_added);
    if (!token.is_added) continue;
    added_.push_back({token.bytes, static_cast<int32_t>(id)});
    begins_added_[static_cast<uint8_t>(token.bytes[0])] = true;
  }
  std::sort(added_.begin(), added_.end(), [](const Added& a, const Added& b) { return a.literal < b.literal; });
}

Status Tokenizer::encode(std::string_view text, Literals literals, std::vector<int32_t>& out) const {
  const size_t n_before = out.size();
  Encoder encoder(*this, out);
  size_t done = 0;  // text[done, at) is not yet encoded
  Status status;
  if (literals == Literals::kSpecial) {
    for (size_t at = 0; at < text.size() && status.ok();) {
      const Added* added = begins_added_[static_cast<uint8_t>(text[at])] ? added_at(text.substr(at)) : nullptr;
      if (added == nullptr) {
        ++at;
        continue;
      }
      status = encoder.add_text(text.substr(done, at - done));
      out.push_back(added->id);
      at += added->literal.size();
      done = at;
    }
  }
  if (status.ok()) status = encoder.add_text(text.substr(done));
  if (!status.ok()) out.resize(n_before);
  return status;
}

// The added token with the longest literal that `text` begins with: the literals that share the first n bytes are a
// range of the sorted list, which gets smaller byte by byte.
const Tokenizer::Added* Tokenizer::added_at(std::string_view text) const {
  auto begin = added_.begin(), end = added_.end();
  const Added* longest = nullptr;
  for (size_t n = 0; n < text.size() && begin != end; ++n) {
    const auto byte = static_cast<uint8_t>(text[n]);
    begin = std::partition_point(begin, end, [&](const Added& added) {
      return added.literal.size() <= n || static_cast<uint8_t>(added.literal[n]) < byte;
    });
    end = std::partition_point(begin, end,
                               [&](const Added& added) { return static_cast<uint8_t>(added.literal[n]) == byte; });
    if (begin != end && begin->literal.size() == n + 1) longest = &*begin;
  }
  return longest;
}

Status Tokenizer::decode(std::span<const int32_t> ids, std::string& out) const {
  const size_t n_before = out.size();
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string_view bytes = token_bytes(ids[i]);
    if (bytes.empty()) {
      out.resize(n_before);
      return Status(Code::kINVALID_ARG,
                    "token " + std::to_string(i) + ": id " + std::to_string(ids[i]) + " does not exist");
    }
    out += bytes;
  }
  return Status();
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= n_ids()) return {};
  const auto at = static_cast<size_t>(id);
  return std::string_view(bytes_).substr(end_of_[at], end_of_[at + 1] - end_of_[at]);
}

bool Tokenizer::is_added(int32_t id) const { return id >= 0 && id < n_ids() && is_added_[static_cast<size_t>(id)]; }

int32_t Tokenizer::find_added(std::string_view literal) const {
  const auto at = std::lower_bound(added_.begin(), added_.end(), literal,
                                   [](const Added& added, std::string_view text) { return added.literal < text; });
  return at == added_.end() || at->literal != literal ? -1 : at->id;
}

}  // namespace dsv41::text
