// How tightly golden files are compared (the ladder of the numerics):
//
//   1. backend ref against the strict files: every record byte, expert id, selection, argmax and greedy token equal,
//   logits
//      within kLogitTolerance. Both sides compute in fp64 between the same rounding points, so nothing excuses a
//      difference.
//   2. backend cpu against ref, one layer at a time on recorded inputs with ref's choices imposed: rms error of (out -
//   in) at
//      most kLayerRms of its rms.
//   3. backend cpu against ref, whole model, on nano only: within kBand times band.json, which says how far the
//   reference in
//      fp32 is from itself in fp64. (A random model amplifies one flipped bit without bound.)
#pragma once

namespace dsv41::test {

inline constexpr double kLogitTolerance = 1e-5;
inline constexpr double kLayerRms = 0.01;
inline constexpr double kBand = 2;

}  // namespace dsv41::test
