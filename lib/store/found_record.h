// What stands in front of a record that stands alone: the file of a state, an object of the host's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "store/volume.h"

namespace dsv41::store {

// As many bytes as hold the front of nearly every record.
inline constexpr uint64_t kUsualFrontBytes = 4096;

// `start`: the first bytes of a record of n_bytes, kUsualFrontBytes or all there are. More, where they are needed, come
// from `read`, which fills `out` from that offset on. CORRUPT and what decode_head tells, or what `read` tells; also
// CORRUPT when it is not the record that its name promises.
using ReadMore = std::function<Status(uint64_t offset, std::span<std::byte> out)>;
Result<FoundRecord> decode_found(RecordKind kind, const RecordKey& key, std::span<const std::byte> start,
                                 uint64_t n_bytes, const ReadMore& read);

// The codes by which bytes are known to be damaged; others are a failure of the medium, and so is IO_SHORT: a file that
// gives less than its size says.
inline bool is_damage(Code code) {
  return code == Code::kCORRUPT || code == Code::kCHECKSUM || code == Code::kFORMAT_VERSION;
}

}  // namespace dsv41::store
