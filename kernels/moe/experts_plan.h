// How the rows of a step are sorted by expert, and where the intermediate values lie in the workspace.
//
// A slot is one (row, expert) pair. Slots are numbered by expert, then by row, so the slots of an expert are
// neighbours; every intermediate value is stored by slot. o lies over g and u, which are dead once the hidden rows are
// quantised; ref, which finishes one expert before the next, keeps the values of that expert behind o instead.
#pragma once

#include <cstdint>

#include "kernels/gemm/fp4_integers.h"
#include "kernels/moe/experts.h"

namespace dsv41::kernels {

// The slots of an expert that has rows.
struct ExpertPart {
  int32_t expert, first_slot, n_slots;
};

// Values of one expert's rows, for ref.
struct OneExpert {
  uint16_t* g = nullptr;      // [n_rows, inter] bf16
  uint16_t* u = nullptr;      // [n_rows, inter] bf16
  uint8_t* codes = nullptr;   // [n_rows, dim] e4m3
  uint8_t* scales = nullptr;  // [n_rows, dim / 32] e8m0
};

struct ExpertsPlan {
  int64_t n_slots = 0;            // n_rows * k, or what of these is of the call's experts
  int32_t* first_slot = nullptr;  // [n_experts + 1]
  int32_t* slot_row = nullptr;    // [n_slots]
  float* slot_weight = nullptr;   // [n_slots]
  int32_t* slot_of = nullptr;     // [n_rows, k]; -1: of another call
  ExpertPart* parts = nullptr;    // [n_parts], ascending; none is empty
  int64_t n_parts = 0;
  uint8_t* h_codes = nullptr;   // [n_slots, inter] e4m3
  uint8_t* h_scales = nullptr;  // [n_slots, inter / 32] e8m0
  // For targets that multiply in integers, by row: groups of x until g and u are there, then by slot groups of h.
  IntegerGroup* integers = nullptr;  // [n_rows, groups of dim] or [n_slots, groups of inter]
  uint8_t* usable = nullptr;         // [n_rows] or [n_slots]: 0 where prepare_integers refused a part of the row
  uint16_t* o = nullptr;             // [n_slots, dim] bf16
  uint16_t* g = nullptr;             // [n_slots, inter] bf16, under o
  uint16_t* u = nullptr;             // [n_slots, inter] bf16, under o
  OneExpert one;                     // behind o
};

// Lays the arrays out in args.workspace (which may be null to learn the size) and returns the bytes that they take.
uint64_t lay_out(const ExpertsArgs& args, ExpertsPlan* plan);

// Sorts the (row, expert) pairs of args into a plan that was laid out.
void build_plan(const ExpertsArgs& args, ExpertsPlan* plan);

}  // namespace dsv41::kernels
