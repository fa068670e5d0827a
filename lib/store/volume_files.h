// The small files of a store as bytes: `store` (its identity, twice) and `catalogue` (FORMAT.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "store/volume.h"

namespace dsv41::store {

inline constexpr uint64_t kStoreFileBytes = 4096 + 128;
inline constexpr uint64_t kMaxCatalogueBytes = uint64_t{1} << 30;

// Id and seed from the system's random source. IO when it gives none.
Result<StoreIdentity> draw_identity(uint64_t now_unix_ns);

std::vector<std::byte> encode_store_file(const StoreIdentity& identity);
struct StoreFile {
  StoreIdentity identity;
  bool both_whole = false;  // else one copy is damaged, and the file should be written anew
};
// CORRUPT: no copy is whole. FORMAT_VERSION.
Result<StoreFile> decode_store_file(std::span<const std::byte> bytes);

std::vector<std::byte> encode_catalogue(const Catalogue& catalogue);
// CORRUPT, CHECKSUM, FORMAT_VERSION.
Result<Catalogue> decode_catalogue(std::span<const std::byte> bytes);

}  // namespace dsv41::store
