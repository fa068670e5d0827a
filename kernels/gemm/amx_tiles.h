// The tile registers of AMX as a class: what tile_unit.h computes with. software_tiles.h is the same in plain loops.
//
// A thread's tiles have a shape only between construction and destruction, which costs a few dozen cycles; nothing may
// call into other code that uses tiles meanwhile. Afterwards the registers are released, so that the system has no tile
// state to keep for the thread. Inline assembly instead of intrinsics, since GCC 12 takes the operand of the load of
// the shape for 8 bytes instead of 64 and drops stores to the rest, and since its intrinsics take no tile number from a
// template.
//
// Sources: Intel SDM volume 2 (LDTILECFG, TILELOADD, TDPBF16PS).
#pragma once

#include <cstdint>

namespace dsv41::kernels {

inline constexpr int kTiles = 8;
inline constexpr int kTileLineBytes = 64;  // a line of a tile: 16 floats or 32 BF16 values
inline constexpr int kTileLines = 16;      // at most

// Lines of each tile; all are 64 bytes wide.
struct TileShape {
  uint8_t lines[kTiles];
};

#if defined(__x86_64__)

class HardwareTiles {
 public:
  explicit HardwareTiles(const TileShape& shape) {
    Configuration configuration = {};
    configuration.palette = 1;
    for (int i = 0; i < kTiles; ++i) {
      configuration.line_bytes[i] = kTileLineBytes;
      configuration.lines[i] = shape.lines[i];
    }
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  ~HardwareTiles() { asm volatile("tilerelease" : : : "memory"); }
  HardwareTiles(const HardwareTiles&) = delete;
  HardwareTiles& operator=(const HardwareTiles&) = delete;

  template <int kTile>
  void load(const void* from, int64_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride_bytes), "i"(kTile) : "memory");
  }
  template <int kTile>
  void store(void* to, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride_bytes), "i"(kTile) : "memory");
  }
  // sum[m][n] += products of the 32 values in line m of a with column n of b: its line k holds values 2 k and 2 k + 1
  // of each column side by side.
  template <int kSum, int kA, int kB>
  void add_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }

 private:
  struct Configuration {  // as the instruction reads it
    uint8_t palette, start_line, reserved[14];
    uint16_t line_bytes[kTiles], reserved_bytes[8];
    uint8_t lines[kTiles], reserved_lines[8];
  };
  static_assert(sizeof(Configuration) == 64);
};

#endif

}  // namespace dsv41::kernels
