// Pages of a snapshot into the pool: those that it has already are compared and shared, memory of the others is filled and
// then sealed page by page.
#pragma once

#include <span>

#include "session/chain_loader.h"
#include "session/plane_loader.h"
#include "session/snapshot_sections.h"

namespace dsv41::session {

// All full pages of `planes` through `chain`, which was made for their ids and has added none; the partly filled page
// behind them into `tail_image`, of just that size. `ranges`: what the records descend from, as the file has them. After a
// failure the chain has a part of the pages, or none.
Status restore_pages(PlaneLoader& planes, ChainLoader& chain, std::span<const ProvenanceRange> ranges,
                     std::span<std::byte> tail_image, const CancelFlag* cancel);

// The image of the partly filled page alone, of a file that has no others.
Status read_tail_image(PlaneLoader& planes, const kv::PageGeometry& geometry, std::span<std::byte> image);

}  // namespace dsv41::session
