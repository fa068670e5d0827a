// The rules of the tree, each as a function from a SourceTree to the list of its faults.
#pragma once

#include "tools/source_tree.h"

namespace dsv41::test {

// Which room may include which: api -> session and everything below; session -> model, kv, text, snapshot, store;
// model, kv -> backend, tensor; backend -> kernels, tensor; kernels -> tensor; text, snapshot, store -> base only;
// everyone -> base and itself. Samples, bindings and the tests of the ABI and the API see the public header and nothing
// of lib or kernels, the api room sees both, and nobody else sees the public header. CUDA headers appear only under
// lib/backend/cuda and in *_cuda.cu.
Faults include_edge_faults(const SourceTree& tree);

// Every .c, .cpp and .cu file is named by a CMakeLists.txt of its folder or of one above, none is found by a glob, and
// no two sources or headers share a file name.
Faults source_list_faults(const SourceTree& tree);

// lib and kernels call nothing that ends the process, prints, or reads the environment, and start threads in
// base/library_thread.h alone.
Faults forbidden_call_faults(const SourceTree& tree);

}  // namespace dsv41::test
