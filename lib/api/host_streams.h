// Host functions as byte sink and byte source: dsv41_writer, dsv41_reader. What they return is handed back as
// HOST_CALLBACK.
#pragma once

#include "api/call.h"
#include "base/byte_stream.h"

namespace dsv41::api {

// Calls abort_fn unless commit_fn was called, at the latest when it is destroyed.
class WriterSink final : public ByteSink {
 public:
  // `given`: checked by read_writer.
  explicit WriterSink(const dsv41_writer& given) : given_(given) {}
  ~WriterSink() override { abandon(); }
  WriterSink(const WriterSink&) = delete;
  WriterSink& operator=(const WriterSink&) = delete;

  Status write(std::span<const std::byte> bytes) override;
  Status commit() override;
  void abandon() override;

 private:
  const dsv41_writer given_;
  bool ended_ = false;  // commit_fn or abort_fn was called
};

// Calls close_fn when it is destroyed, from hand_over() on.
class ReaderSource final : public ByteSource {
 public:
  // `given`: checked by read_reader. Asks for the size.
  static Result<std::shared_ptr<ReaderSource>> open(const dsv41_reader& given);
  ~ReaderSource() override;
  ReaderSource(const ReaderSource&) = delete;
  ReaderSource& operator=(const ReaderSource&) = delete;

  uint64_t size() const override { return size_; }
  Status read_at(uint64_t offset, std::span<std::byte> out) override;
  // The host's object is this one's to close now.
  void hand_over() { is_owner_ = true; }

 private:
  ReaderSource(const dsv41_reader& given, uint64_t size) : given_(given), size_(size) {}

  const dsv41_reader given_;
  const uint64_t size_;
  bool is_owner_ = false;
};

// Takes everything in and keeps what fits: one pass copies and measures.
class MeasuringSink final : public ByteSink {
 public:
  explicit MeasuringSink(std::span<std::byte> memory) : memory_(memory) {}
  Status write(std::span<const std::byte> bytes) override;
  Status commit() override { return {}; }
  void abandon() override {}
  uint64_t n_written() const { return n_written_; }

 private:
  std::span<std::byte> memory_;
  uint64_t n_written_ = 0;
};

Status read_writer(const dsv41_writer* writer, dsv41_writer* out);
Status read_reader(const dsv41_reader* reader, dsv41_reader* out);

}  // namespace dsv41::api
