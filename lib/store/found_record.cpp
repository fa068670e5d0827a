#include "store/found_record.h"

#include <utility>
#include <vector>

namespace dsv41::store {

Result<FoundRecord> decode_found(RecordKind kind, const RecordKey& key, std::span<const std::byte> start,
                                 uint64_t n_bytes, const ReadMore& read) {
  FoundRecord found;
  DSV41_TRY_ASSIGN(found.head, decode_head(start));
  const RecordHead& head = found.head;
  if (head.kind != kind || head.key != key) return Status(Code::kCORRUPT, "record: stands under another's name");
  if (head.record_bytes() != n_bytes) return Status(Code::kCORRUPT, "record: cut off or followed by something");
  const uint64_t n_front = kRecordHeadBytes + head.front_bytes();
  std::vector<std::byte> longer;
  if (start.size() < n_front) {
    longer.resize(n_front);
    DSV41_TRY(read(0, longer));
    start = longer;
  }
  DSV41_TRY_ASSIGN(RecordBody body, decode_front(head, start.subspan(kRecordHeadBytes, head.front_bytes())));
  found.hits = std::move(body.hits);
  if (kind == RecordKind::kState) found.ids = std::move(body.ids);
  return found;
}

}  // namespace dsv41::store
