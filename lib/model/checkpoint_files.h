// CheckpointFiles: the files of a checkpoint as an AsyncReader knows them, opened as tensors of them are asked for. Each has
// to have the size that it had when the checkpoint was opened.
#pragma once

#include <map>
#include <string>

#include "base/async_reader.h"
#include "model/checkpoint.h"

namespace dsv41::model {

class CheckpointFiles {
 public:
  // Both must live as long as this object.
  CheckpointFiles(const Checkpoint& checkpoint, AsyncReader& reader) : checkpoint_(checkpoint), reader_(reader) {}

  // Where a tensor's bytes begin. INTERNAL for a name that the checkpoint lacks; else as AsyncReader::add_file.
  Status find(const std::string& name, int* file, uint64_t* offset) {
    const StoredTensor* tensor = checkpoint_.find(name);
    if (!tensor) return Status(Code::kINTERNAL, "tensor " + name + " is not in the inventory");
    const Checkpoint::Place place = checkpoint_.place_of(*tensor);
    auto at = files_.find(*place.path);
    if (at == files_.end()) {
      DSV41_TRY_ASSIGN(const int number, reader_.add_file(*place.path, place.file_bytes));
      at = files_.emplace(*place.path, number).first;
    }
    *file = at->second;
    *offset = place.offset;
    return {};
  }

 private:
  const Checkpoint& checkpoint_;
  AsyncReader& reader_;
  std::map<std::string, int> files_;
};

}  // namespace dsv41::model
