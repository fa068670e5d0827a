#include "api/host_streams.h"

#include "api/structs.h"

namespace dsv41::api {
namespace {

Status host_status(std::string_view function, int32_t value) {
  if (value == 0) return {};
  return Status(Code::kHOST_CALLBACK, std::string(function) + " returned " + std::to_string(value), value);
}

// One call of a host function that returns a status.
template <class F>
Status ask(std::string_view function, F&& call) {
  CallbackScope scope(CallbackScope::Rule::kSafeCalls);
  return host_status(function, call());
}

}  // namespace

Status WriterSink::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  return ask("write_fn", [&] { return given_.write_fn(given_.user, bytes.data(), bytes.size()); });
}

Status WriterSink::commit() {
  if (given_.sync_fn) DSV41_TRY(ask("sync_fn", [&] { return given_.sync_fn(given_.user); }));
  ended_ = true;
  if (!given_.commit_fn) return {};
  return ask("commit_fn", [&] { return given_.commit_fn(given_.user); });
}

void WriterSink::abandon() {
  if (std::exchange(ended_, true) || !given_.abort_fn) return;
  CallbackScope scope(CallbackScope::Rule::kSafeCalls);
  given_.abort_fn(given_.user);
}

Result<std::shared_ptr<ReaderSource>> ReaderSource::open(const dsv41_reader& given) {
  uint64_t size = 0;
  DSV41_TRY(ask("size_fn", [&] { return given.size_fn(given.user, &size); }));
  return std::shared_ptr<ReaderSource>(new ReaderSource(given, size));
}

ReaderSource::~ReaderSource() {
  if (!is_owner_ || !given_.close_fn) return;
  CallbackScope scope(CallbackScope::Rule::kSafeCalls);
  given_.close_fn(given_.user);
}

Status ReaderSource::read_at(uint64_t offset, std::span<std::byte> out) {
  if (out.empty()) return {};
  if (offset > size_ || out.size() > size_ - offset) {
    return Status(Code::kIO_SHORT, std::to_string(out.size()) + " bytes at " + std::to_string(offset) +
                                       " lie beyond the end, " + std::to_string(size_));
  }
  return ask("read_at_fn", [&] { return given_.read_at_fn(given_.user, offset, out.data(), out.size()); });
}

Status MeasuringSink::write(std::span<const std::byte> bytes) {
  const uint64_t room = memory_.size() - std::min<uint64_t>(n_written_, memory_.size());
  if (bytes.size() <= room && !bytes.empty()) std::memcpy(memory_.data() + n_written_, bytes.data(), bytes.size());
  n_written_ += bytes.size();
  return {};
}

Status read_writer(const dsv41_writer* writer, dsv41_writer* out) {
  DSV41_TRY(check_pointer(writer, "writer"));
  DSV41_TRY(read_struct(writer, "writer", out));
  return out->write_fn ? Status() : Status(Code::kINVALID_ARG, "writer.write_fn is NULL");
}

Status read_reader(const dsv41_reader* reader, dsv41_reader* out) {
  DSV41_TRY(check_pointer(reader, "reader"));
  DSV41_TRY(read_struct(reader, "reader", out));
  if (!out->read_at_fn) return Status(Code::kINVALID_ARG, "reader.read_at_fn is NULL");
  return out->size_fn ? Status() : Status(Code::kINVALID_ARG, "reader.size_fn is NULL");
}

}  // namespace dsv41::api
