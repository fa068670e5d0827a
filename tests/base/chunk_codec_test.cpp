#include "base/chunk_codec.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace dsv41::test {
namespace {

using Bytes = std::vector<std::byte>;

// The first n_random bytes cannot be compressed, the rest to almost nothing.
Bytes partly_random(size_t n, size_t n_random) {
  std::mt19937_64 random(n);
  Bytes bytes(n, std::byte{0});
  for (size_t i = 0; i < n_random; ++i) bytes[i] = static_cast<std::byte>(random());
  return bytes;
}

Bytes encoded(const Bytes& raw) {
  ChunkCodec codec;
  const ChunkCodec::Encoded encoded = codec.encode(raw, true).value();
  REQUIRE(encoded.codec == Codec::kZstd);
  return {encoded.bytes.begin(), encoded.bytes.end()};
}

Code decode_code(const Bytes& stored, size_t raw_bytes, Codec codec = Codec::kZstd) {
  Bytes raw(raw_bytes);
  return ChunkCodec().decode(codec, stored, raw).code();
}

Bytes joined(std::initializer_list<Bytes> parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST_SUITE("base/chunk_codec") {
  TEST_CASE("chunks of every kind and size come back, through one object and after it has moved") {
    ChunkCodec codec;
    for (const size_t n :
         {size_t{0}, size_t{1}, size_t{2}, size_t{100}, size_t{4096}, size_t{131072}, size_t{1} << 20}) {
      for (const size_t n_random : {size_t{0}, n / 2, n}) {
        for (const int level : {kMinZstdLevel, 3, kMaxZstdLevel}) {
          CAPTURE(n);
          CAPTURE(n_random);
          CAPTURE(level);
          if (n == size_t{1} << 20 && level == kMaxZstdLevel) continue;  // seconds
          const Bytes raw = partly_random(n, n_random);
          const ChunkCodec::Encoded encoded = codec.encode(raw, true, level).value();
          const Bytes stored(encoded.bytes.begin(), encoded.bytes.end());
          CHECK(encoded.codec == (n >= 100 && n_random < n ? Codec::kZstd : Codec::kNone));
          Bytes back(n, std::byte{0xee});
          CHECK(codec.decode(encoded.codec, stored, back).ok());
          CHECK(back == raw);
          codec = ChunkCodec(std::move(codec));
        }
      }
    }
  }

  TEST_CASE("the same bytes give the same chunk, whatever was encoded before") {
    const Bytes raw = partly_random(10000, 3000), other = partly_random(50000, 20000);
    ChunkCodec codec;
    CHECK(codec.encode(other, true, 3).ok());
    const ChunkCodec::Encoded again = codec.encode(raw, true).value();
    CHECK(Bytes(again.bytes.begin(), again.bytes.end()) == encoded(raw));
  }

  TEST_CASE("without short matches chunks come back too, at every level, and the default level makes others") {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal(128, 1.2f);
    Bytes raw(100000);
    for (std::byte& b : raw) b = static_cast<std::byte>(normal(random));
    ChunkCodec codec;
    for (const int level : {kDefaultZstdLevel, 3}) {
      CAPTURE(level);
      const ChunkCodec::Encoded plain = codec.encode(raw, true, level).value();
      REQUIRE(plain.codec == Codec::kZstd);
      const Bytes with_short(plain.bytes.begin(), plain.bytes.end());
      const ChunkCodec::Encoded encoded = codec.encode(raw, true, level, /*long_matches=*/true).value();
      REQUIRE(encoded.codec == Codec::kZstd);
      const Bytes stored(encoded.bytes.begin(), encoded.bytes.end());
      CHECK((stored == with_short) == (level != kDefaultZstdLevel));
      CHECK(stored.size() <= with_short.size());
      Bytes back(raw.size());
      CHECK(codec.decode(Codec::kZstd, stored, back).ok());
      CHECK(back == raw);
      const ChunkCodec::Encoded again = codec.encode(raw, true, level).value();  // the choice does not stick
      CHECK(Bytes(again.bytes.begin(), again.bytes.end()) == with_short);
    }
  }

  TEST_CASE("a chunk is compressed only where that saves two in a hundred bytes") {
    ChunkCodec codec;
    bool seen[2] = {};
    // A mebibyte: zstd leaves a block alone that it could shrink by less than some 2 % itself, so the border is looked for
    // where only the last of eight blocks can be compressed.
    constexpr size_t kRaw = 1 << 20, kLeast = kRaw - 20971;
    for (size_t n_random = kLeast - 300; n_random <= kLeast + 100; n_random += 10) {
      CAPTURE(n_random);
      const Bytes raw = partly_random(kRaw, n_random);
      const ChunkCodec::Encoded encoded = codec.encode(raw, true).value();
      const bool compressed = encoded.codec == Codec::kZstd;
      seen[compressed] = true;
      if (compressed) CHECK(encoded.bytes.size() <= kLeast);
      if (!compressed) CHECK(encoded.bytes.data() == raw.data());
      // Random bytes stay as they are; frame, blocks and the run of zeros take some 50 bytes.
      if (n_random <= kLeast - 100) CHECK(compressed);
      if (n_random > kLeast) CHECK_FALSE(compressed);
    }
    CHECK((seen[0] && seen[1]));
  }

  TEST_CASE("a chunk that is not to be compressed is not") {
    const Bytes raw(1000, std::byte{0});
    ChunkCodec codec;
    const ChunkCodec::Encoded encoded = codec.encode(raw, false).value();
    CHECK(encoded.codec == Codec::kNone);
    CHECK(encoded.bytes.data() == raw.data());
  }

  TEST_CASE("levels outside the range are taken as its ends") {
    const Bytes raw = partly_random(20000, 1000);
    ChunkCodec codec;
    for (const auto& [level, same_as] : {std::pair(-5, kMinZstdLevel), {0, kMinZstdLevel}, {22, kMaxZstdLevel}}) {
      CAPTURE(level);
      const std::span<const std::byte> first = codec.encode(raw, true, same_as).value().bytes;
      const Bytes expected(first.begin(), first.end());
      CHECK(std::ranges::equal(codec.encode(raw, true, level).value().bytes, expected));
    }
  }

  TEST_CASE("stored bytes of another size than the raw ones are corrupt") {
    const Bytes raw = partly_random(5000, 1000);
    CHECK(decode_code(raw, 5000, Codec::kNone) == Code::kOK);
    CHECK(decode_code(raw, 4999, Codec::kNone) == Code::kCORRUPT);
    CHECK(decode_code(raw, 5001, Codec::kNone) == Code::kCORRUPT);
    const Bytes stored = encoded(raw);
    CHECK(decode_code(stored, 5000) == Code::kOK);
    for (const size_t n : {size_t{0}, size_t{4999}, size_t{5001}, size_t{100000}}) {
      CAPTURE(n);
      CHECK(decode_code(stored, n) == Code::kCORRUPT);
    }
  }

  TEST_CASE("a codec that nobody knows is not available") {
    CHECK(decode_code(Bytes(10), 10, Codec{2}) == Code::kCODEC_UNAVAILABLE);
    CHECK(decode_code(Bytes(10), 10, Codec{0xffffffff}) == Code::kCODEC_UNAVAILABLE);
  }

  TEST_CASE("only one frame of today's format is a chunk") {
    const Bytes half(500, std::byte{7});
    const Bytes frame = encoded(half);
    const Bytes skipped = bytes_of({0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 1});
    CHECK(decode_code(frame, 500) == Code::kOK);
    CHECK(decode_code(joined({frame, frame}), 1000) == Code::kCORRUPT);
    CHECK(decode_code(joined({frame, frame}), 500) == Code::kCORRUPT);
    CHECK(decode_code(joined({skipped, frame}), 500) == Code::kCORRUPT);
    CHECK(decode_code(joined({frame, skipped}), 500) == Code::kCORRUPT);
    CHECK(decode_code(joined({frame, bytes_of({0})}), 500) == Code::kCORRUPT);
    CHECK(decode_code(skipped, 0) == Code::kCORRUPT);
    for (const int old_version : {0x22, 0x23, 0x24, 0x25, 0x26, 0x27}) {
      CAPTURE(old_version);
      Bytes old = frame;
      old[0] = static_cast<std::byte>(old_version);
      CHECK(decode_code(old, 500) == Code::kCORRUPT);
    }
  }

  TEST_CASE("sizes that a frame claims are not believed") {
    // Magic, descriptor (8-byte size, no single segment), window, size, one raw last block of a byte.
    const Bytes magic = bytes_of({0x28, 0xb5, 0x2f, 0xfd}), last_block = bytes_of({9, 0, 0, 'x'});
    const auto frame = [&](int window, std::initializer_list<int> size) {
      return joined({magic, bytes_of({0xc0, window}), bytes_of(size), last_block});
    };
    CHECK(decode_code(frame(0, {1, 0, 0, 0, 0, 0, 0, 0}), 1) == Code::kOK);
    CHECK(decode_code(frame(0, {0, 0, 0, 0, 0, 0, 0, 0x40}), 1) == Code::kCORRUPT);
    CHECK(decode_code(frame(0, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}), 1) == Code::kCORRUPT);
    CHECK(decode_code(frame(0, {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}), 1) == Code::kCORRUPT);
    CHECK(decode_code(frame(0, {2, 0, 0, 0, 0, 0, 0, 0}), 2) == Code::kCORRUPT);     // gives one
    CHECK(decode_code(frame(0xff, {1, 0, 0, 0, 0, 0, 0, 0}), 1) == Code::kCORRUPT);  // a window of 3.75 TiB
    CHECK(decode_code(frame(0xa0, {1, 0, 0, 0, 0, 0, 0, 0}), 1) == Code::kOK);       // of 1 GiB, and not allocated
    // No size at all.
    CHECK(decode_code(joined({magic, bytes_of({0, 0}), last_block}), 1) == Code::kCORRUPT);
  }

  TEST_CASE("a frame that was cut off or damaged never does more than give other bytes") {
    const Bytes raw = partly_random(3000, 600);
    const Bytes stored = encoded(raw);
    for (size_t n = 0; n < stored.size(); ++n) {
      CAPTURE(n);
      CHECK(decode_code(Bytes(stored.begin(), stored.begin() + static_cast<ptrdiff_t>(n)), raw.size()) ==
            Code::kCORRUPT);
    }
    ChunkCodec codec;
    Bytes back(raw.size());
    size_t n_refused = 0;
    for (size_t bit = 0; bit < 8 * stored.size(); ++bit) {
      CAPTURE(bit);
      Bytes damaged = stored;
      damaged[bit / 8] ^= std::byte{1} << (bit % 8);
      const Status status = codec.decode(Codec::kZstd, damaged, back);
      CHECK((status.ok() || status.code() == Code::kCORRUPT));
      n_refused += !status.ok();
    }
    CHECK(n_refused > 0);
    CHECK(codec.decode(Codec::kZstd, stored, back).ok());  // and the object is none the worse for it
    CHECK(back == raw);
  }
}

}  // namespace
}  // namespace dsv41::test
