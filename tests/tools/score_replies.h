// Scores what dsv41-chat --jsonl answered to the questions of tests/golden/world/eval.jsonl: the accuracy table of the
// README.
//
// A reply is `exact` when it is the whole expected text (in thinking mode reasoning, </think>, answer), and `right`
// when what follows its last </think> holds the key of the question: the measure of the reference (score_eval.py). A
// reply that ended in an error counts as it stands.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace dsv41::test {

struct ScoreRow {
  std::string name;  // kind of question, or the reach of the distance ("1 to 64"), or "all"
  int n_items = 0;
  int n_right = 0;
  int n_exact = 0;
};

struct Scores {
  std::vector<ScoreRow> kinds;  // ascending names
  std::vector<ScoreRow>
      distances;  // ascending; questions about a fact of the conversation, by tokens since it was told
  ScoreRow all;
  int n_errors = 0;
  std::vector<std::string> faults;  // lines that are no JSON, replies without a question, questions without a reply
};

// Pairs items and replies by id. Questions without a reply are left out of the table and named among the faults unless
// `partial`.
Scores score_replies(std::istream& items, std::istream& replies, bool partial);

// Two Markdown tables.
std::string score_tables(const Scores& scores);

}  // namespace dsv41::test
