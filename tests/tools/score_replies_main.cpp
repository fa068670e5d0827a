// score_replies ITEMS.jsonl REPLIES.jsonl [--partial]: prints the accuracy tables.
//
//   build/bin/dsv41-chat --model samples/nano --greedy --jsonl tests/golden/world/eval.jsonl > replies.jsonl
//   build/bin/score_replies tests/golden/world/eval.jsonl replies.jsonl
//
// --partial: questions without a reply are left out and not complained of. Exit code 1 when something does not fit
// together.
#include <cstdio>
#include <fstream>
#include <string>

#include "tools/score_replies.h"

int main(int argc, char** argv) {
  const bool partial = argc == 4 && std::string(argv[3]) == "--partial";
  if (argc != 3 && !partial) {
    std::fprintf(stderr, "usage: score_replies ITEMS.jsonl REPLIES.jsonl [--partial]\n");
    return 2;
  }
  std::ifstream items(argv[1]), replies(argv[2]);
  if (!items || !replies) {
    std::fprintf(stderr, "score_replies: cannot read %s\n", items ? argv[2] : argv[1]);
    return 2;
  }
  const dsv41::test::Scores scores = dsv41::test::score_replies(items, replies, partial);
  std::fputs(dsv41::test::score_tables(scores).c_str(), stdout);
  if (scores.n_errors > 0) std::printf("\nReplies that ended in an error: %d\n", scores.n_errors);
  for (const std::string& fault : scores.faults) std::fprintf(stderr, "score_replies: %s\n", fault.c_str());
  return scores.faults.empty() ? 0 : 1;
}
