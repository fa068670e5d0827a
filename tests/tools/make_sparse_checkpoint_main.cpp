// make_sparse_checkpoint FOLDER [--layers 1,8,24] [--experts 8] [--tokens 0,128803] [--seed 1] [--tokenizer FILE]
//                        [--all-experts] [--holes]
//
// Writes a checkpoint of the released model's size as sparse files (sparse_checkpoint.h says what they hold): 510 GB
// long, 4 GB on disk, in less than a minute. Remove the folder when done; copy it only with what keeps holes.
//
//   --layers     the layers that are random as a whole
//   --experts    how many routed experts of a layer the gates choose from; 6 touches the fewest pages
//   --all-experts  those experts are random in all layers, for reading them from disk: 0.75 GB for each of --experts
//   --tokens     the prompt whose Engram rows are written; rows of other prompts read as zeros
//   --holes      names, shapes and lengths alone: some MB on disk
//   --tokenizer  a tokenizer.json to put into the folder; any with at most 129,280 ids will do. Without one the library
//                opens the folder and works with token ids, but dsv41-chat wants text
//
// By hand, at the real size (it speaks noise; a page of a hole takes memory once it is touched, 13 GB in all):
//
//   build/bin/dsv41-chat --model FOLDER
//   DSV41_SPARSE_CHECKPOINT=FOLDER build/bin/test_real_size
//   DSV41_SPARSE_CHECKPOINT=FOLDER build/bin/bench_real_size
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "model/released_config.h"
#include "tools/sparse_checkpoint.h"

namespace {

using dsv41::test::SparseOptions;

constexpr char kUsage[] =
    "usage: make_sparse_checkpoint FOLDER [--layers 1,8,24] [--experts 8] [--tokens 0,128803] [--seed 1]\n"
    "                              [--tokenizer FILE] [--all-experts] [--holes]\n";

template <class Number>
std::vector<Number> numbers(const std::string& text) {
  std::vector<Number> out;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) out.push_back(static_cast<Number>(std::stoll(item)));
  return out;
}

// False when the arguments make no sense.
bool parse(int argc, char** argv, SparseOptions* options, std::string* tokenizer) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--holes") {
      options->holes_only = true;
    } else if (name == "--all-experts") {
      options->experts_in_all_layers = true;
    } else if (!name.starts_with("--")) {
      if (!options->folder.empty()) return false;
      options->folder = name;
    } else {
      if (++i == argc) return false;
      if (name == "--layers") {
        options->full_layers = numbers<int64_t>(argv[i]);
      } else if (name == "--experts") {
        options->n_experts = std::stoll(argv[i]);
      } else if (name == "--tokens") {
        options->engram_tokens = numbers<int32_t>(argv[i]);
      } else if (name == "--seed") {
        options->seed = std::stoull(argv[i]);
      } else if (name == "--tokenizer") {
        *tokenizer = argv[i];
      } else {
        return false;
      }
    }
  }
  return !options->folder.empty();
}

int run(int argc, char** argv) {
  SparseOptions options;
  options.config_json = dsv41::test::kReleasedConfig;
  std::string tokenizer;
  if (!parse(argc, argv, &options, &tokenizer)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto report = dsv41::test::write_sparse_checkpoint(options);
  if (!report.ok()) {
    std::fprintf(stderr, "make_sparse_checkpoint: %s\n", std::string(report.status().message()).c_str());
    return 1;
  }
  if (!tokenizer.empty()) {
    std::filesystem::copy_file(tokenizer, options.folder + "/tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto& r = report.value();
  std::printf("%llu tensors of %llu bytes in %llu shards of %llu bytes; %llu bytes written, %llu on disk; %.1f s\n",
              static_cast<unsigned long long>(r.n_tensors), static_cast<unsigned long long>(r.payload_bytes),
              static_cast<unsigned long long>(r.n_files), static_cast<unsigned long long>(r.shard_bytes),
              static_cast<unsigned long long>(r.written_bytes), static_cast<unsigned long long>(r.disk_bytes),
              seconds.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {  // a number that is none, a tokenizer that cannot be copied
    std::fprintf(stderr, "make_sparse_checkpoint: %s\n", failure.what());
    return 2;
  }
}
