#include "snapshot/snapshot_samples.h"

#include <algorithm>
#include <stdexcept>

#include "base/wire.h"

namespace dsv41::test {
namespace {

using snapshot::SectionType;

constexpr int64_t kPage = 128, kWindow = 128;
constexpr int64_t kHeadDim = 32, kIndexHeadDim = 32, kEncoderLayers = 2, kDecoderLayers = 1, kVocabulary = 50;

struct Medium {
  int64_t first, n;
  Sha256Digest digest;
};

// The sections of one sample, made one after the other.
class SampleSections {
 public:
  explicit SampleSections(const Sample& sample) : sample_(sample) {
    for (int64_t i = 0; i < sample.n_tokens; ++i) ids_.push_back(static_cast<int32_t>(i * 7919 % 129'280));
    for (int64_t at = 30; sample.media && at + 40 <= sample.n_tokens; at += 100) {
      media_.push_back({at, 40, sha256("picture " + std::to_string(at))});
    }
    fingerprint_ = sha256("a model");
    make_chain();
  }

  std::vector<SectionContent> take() {
    add(SectionType::kIdentity, true, identity());
    if (sample_.kind != SampleKind::kState) {
      add(SectionType::kTokens, true, bytes_of(std::span(ids_)));
      add(SectionType::kTokenChain, false, bytes_of(std::span(chain_)));
    }
    if (!media_.empty()) add(SectionType::kMedia, true, media());
    add_planes();
    add(SectionType::kProvenance, true, provenance());
    if (sample_.kind != SampleKind::kPrefix) add_windows();
    if (sample_.decoder) add(SectionType::kLogits, false, noise(4 * kVocabulary, 90));
    if (sample_.host) add_host();
    return std::move(sections_);
  }

 private:
  int64_t n() const { return sample_.n_tokens; }
  int64_t low() const { return std::max<int64_t>(0, n() - kWindow - 3); }

  template <class T>
  static Bytes bytes_of(std::span<T> values) {
    const std::span<const std::byte> bytes = std::as_bytes(values);
    return Bytes(bytes.begin(), bytes.end());
  }
  static void put_digest(WireWriter& out, const Sha256Digest& digest) {
    out.put_bytes(std::as_bytes(std::span(digest)));
  }
  static void put_text(WireWriter& out, std::string_view text) {
    out.put(static_cast<uint32_t>(text.size()));
    out.put_bytes(std::as_bytes(std::span(text)));
  }
  static void hash_framed(Sha256& hash, std::span<const std::byte> bytes) {
    const uint64_t size = bytes.size();
    hash.update(std::as_bytes(std::span(&size, 1)));
    hash.update(bytes);
  }

  void make_chain() {
    const Sha256Digest layout = test_layout_id();
    Sha256 root;
    hash_framed(root, std::as_bytes(std::span(layout)));
    hash_framed(root, std::as_bytes(std::span(fingerprint_)));
    hash_framed(root, std::as_bytes(std::span(sample_.salt)));
    Sha256Digest parent = root.finish();
    for (int64_t page = 0; page <= n() / kPage; ++page) {
      WireWriter text;
      const int64_t begin = page * kPage, end = std::min(n(), begin + kPage);
      std::vector<Medium> own;
      for (const Medium& medium : media_) {
        if (medium.first >= begin && medium.first < end) own.push_back(medium);
      }
      put_digest(text, parent);
      text.put(static_cast<uint64_t>(end - begin));
      text.put(static_cast<uint64_t>(own.size()));
      for (int64_t i = begin; i < end; ++i) text.put(ids_[static_cast<size_t>(i)]);
      for (const Medium& medium : own) {
        text.put(static_cast<uint32_t>(medium.first - begin));
        put_digest(text, medium.digest);
      }
      parent = sha256(text.bytes());
      chain_.push_back(parent);
    }
  }

  Bytes identity() const {
    WireWriter out;
    out.put(sample_.kind);
    out.put(static_cast<uint32_t>(kPage));
    out.put(static_cast<uint64_t>(n()));
    put_digest(out, fingerprint_);
    put_digest(out, sha256(sample_.salt));
    put_digest(out, chain_.back());
    out.put(uint64_t{1'800'000'000'123'456'789});
    put_text(out, "cpu/avx512/1");
    put_text(out, "0.1.0");
    return out.take();
  }

  Bytes media() const {
    WireWriter out;
    for (const Medium& medium : media_) {
      out.put(static_cast<uint64_t>(medium.first));
      out.put(static_cast<uint64_t>(medium.n));
      put_digest(out, medium.digest);
    }
    return out.take();
  }

  Bytes provenance() const {
    WireWriter out;
    const uint32_t n_ranges = n() == 0 ? 0 : n() > 200 ? 2 : 1;
    out.put(n_ranges);
    if (n_ranges > 0) out.put(uint64_t{0}), out.put(uint32_t{0});
    if (n_ranges > 1) out.put(uint64_t{200}), out.put(uint32_t{2}), out.put(uint64_t{128}), out.put(uint64_t{200});
    return out.take();
  }

  void add_planes() {
    const int64_t first = sample_.kind == SampleKind::kState ? n() / kPage * kPage : 0;
    const auto entries = [&](int64_t ratio) { return static_cast<size_t>((n() - first) / ratio); };
    const size_t all = entries(2) + entries(1);
    add(SectionType::kMainCodes, true, noise(all * kHeadDim / 2, 16));
    add(SectionType::kMainScales, true, runs(all * kHeadDim / 16, 17), true);
    add(SectionType::kIndexCodes, true, noise(all * kIndexHeadDim / 2, 18));
    add(SectionType::kIndexScales, true, runs(all * kIndexHeadDim / 32, 19), true);
  }

  void add_windows() {
    WireWriter head;
    head.put(static_cast<uint64_t>(n()));
    head.put(uint32_t{1});
    head.put(uint32_t{sample_.decoder});
    head.put(static_cast<uint64_t>(low() / 2));
    head.put(static_cast<uint64_t>(low()));
    head.put(static_cast<uint64_t>(sample_.decoder ? low() : 0));
    head.put(static_cast<uint64_t>(sample_.decoder ? low() : 0));
    head.put(static_cast<uint64_t>((n() - 1) / 2 * 2));
    head.put(uint32_t{1});
    head.put(uint64_t{64});
    add(SectionType::kWindows, true, head.take());
    const size_t values = static_cast<size_t>((n() - low()) * kHeadDim);
    add(SectionType::kEncoderCodes, true, noise(values * kEncoderLayers, 25), true);
    add(SectionType::kEncoderScales, true, runs(values / 32 * kEncoderLayers, 26), true);
    if (sample_.decoder) {
      add(SectionType::kDecoderCodes, false, noise(values * kDecoderLayers, 27), true);
      add(SectionType::kDecoderScales, false, runs(values / 32 * kDecoderLayers, 28), true);
    }
    add(SectionType::kOpenRows, true, runs(8 * 2 * kHeadDim * 4, 29), true);
  }

  void add_host() {
    WireWriter sampler;
    const Bytes state = noise(40, 41);
    sampler.put(uint32_t{1});
    sampler.put(static_cast<uint64_t>(state.size()));
    sampler.put_bytes(state);
    add(SectionType::kSampler, false, sampler.take());
    add(SectionType::kHost, false, noise(5, 64), false, 3);
    add(SectionType::kHost, false, {}, false, 4);
  }

  void add(SectionType type, bool critical, Bytes raw, bool try_zstd = false, uint32_t id = 0) {
    sections_.push_back({section_options(type, 1024, try_zstd, critical, id), std::move(raw)});
  }

  const Sample& sample_;
  std::vector<int32_t> ids_;
  std::vector<Medium> media_;
  Sha256Digest fingerprint_;
  std::vector<Sha256Digest> chain_;  // at each page's end, then at n
  std::vector<SectionContent> sections_;
};

}  // namespace

std::vector<Sample> samples() {
  using Kind = SampleKind;
  return {
      {"prefix-0", Kind::kPrefix, 0, "", false, false, false},
      {"prefix-1", Kind::kPrefix, 1, "", false, false, false},
      {"prefix-127-media", Kind::kPrefix, 127, "", true, false, false},
      {"prefix-128", Kind::kPrefix, 128, "", false, false, true},
      {"prefix-129-salt", Kind::kPrefix, 129, "tenant", false, false, false},
      {"prefix-700-media", Kind::kPrefix, 700, "", true, false, false},
      {"full-0", Kind::kFull, 0, "", false, true, false},
      {"full-3", Kind::kFull, 3, "", false, false, false},
      {"full-255-decoder", Kind::kFull, 255, "", false, true, true},
      {"full-257-media-salt", Kind::kFull, 257, "another tenant", true, true, true},
      {"state-256", Kind::kState, 256, "", false, false, false},
      {"state-300-media", Kind::kState, 300, "", true, true, true},
  };
}

std::vector<SectionContent> sections_of(const Sample& sample) { return SampleSections(sample).take(); }

std::vector<SectionContent> sections_of(const std::string& name) {
  for (const Sample& sample : samples()) {
    if (sample.name == name) return sections_of(sample);
  }
  throw std::out_of_range("no sample of this name");
}

SectionContent& section_of(std::vector<SectionContent>& sections, SectionType type) {
  for (SectionContent& section : sections) {
    if (section.options.type == type) return section;
  }
  throw std::out_of_range("the sample has no such section");
}

}  // namespace dsv41::test
