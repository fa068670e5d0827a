#include "tools/score_replies.h"

#include <algorithm>
#include <cstdio>
#include <istream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

namespace dsv41::test {
namespace {

using nlohmann::json;

// A distance belongs to the first edge above it: 1 to 64, 65 to 128, ...
constexpr int kEdges[] = {1, 65, 129, 257, 513, 1025, 2049, 4097, 8193};
const std::string kEndThink = "</think>";

// Line number -> object; what is no JSON object goes to the faults.
std::vector<json> read_lines(std::istream& input, const std::string& what, std::vector<std::string>* faults) {
  std::vector<json> lines;
  int number = 0;
  for (std::string text; std::getline(input, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    json line = json::parse(text, nullptr, false);
    if (line.is_object() && line.contains("id")) {
      lines.push_back(std::move(line));
    } else {
      faults->push_back(what + " line " + std::to_string(number) + " is no JSON object with an id");
    }
  }
  return lines;
}

std::string expected_reply(const json& item) {
  const std::string answer = item.value("answer", "");
  return item.value("mode", "chat") == "thinking" ? item.value("reasoning", "") + kEndThink + answer : answer;
}

std::string after_thinking(const std::string& reply) {
  const size_t end = reply.rfind(kEndThink);
  return end == std::string::npos ? reply : reply.substr(end + kEndThink.size());
}

std::string reach_of(int distance) {
  const auto edge = std::upper_bound(std::begin(kEdges), std::end(kEdges), distance);
  if (edge == std::end(kEdges)) return "from " + std::to_string(kEdges[std::size(kEdges) - 1]);
  return std::to_string(*(edge - 1)) + " to " + std::to_string(*edge - 1);
}

void add(ScoreRow* row, bool right, bool exact) {
  ++row->n_items;
  row->n_right += right;
  row->n_exact += exact;
}

std::vector<ScoreRow> values_of(const std::map<std::string, ScoreRow>& rows) {
  std::vector<ScoreRow> list;
  for (const auto& [name, row] : rows) list.push_back(row);
  return list;
}

std::string percent(int part, int whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", whole == 0 ? 0.0 : 100.0 * part / whole);
  return text;
}

std::string table(const std::string& title, std::vector<ScoreRow> rows, const ScoreRow& all) {
  rows.push_back(all);
  std::string text = "| " + title + " | items | right | exact |\n|---|---|---|---|\n";
  for (const ScoreRow& row : rows)
    text += "| " + row.name + " | " + std::to_string(row.n_items) + " | " + percent(row.n_right, row.n_items) + " | " +
            percent(row.n_exact, row.n_items) + " |\n";
  return text;
}

}  // namespace

Scores score_replies(std::istream& items, std::istream& replies, bool partial) {
  Scores scores;
  scores.all.name = "all";
  std::map<std::string, json> reply_of;
  for (json& reply : read_lines(replies, "reply", &scores.faults)) {
    const std::string id = reply["id"].dump();
    if (!reply_of.emplace(id, std::move(reply)).second) scores.faults.push_back("two replies have the id " + id);
  }
  std::map<std::string, ScoreRow> kinds;
  std::map<int, ScoreRow> distances;
  size_t n_missing = 0;
  std::string first_missing;
  for (const json& item : read_lines(items, "item", &scores.faults)) {
    const std::string id = item["id"].dump();
    const auto found = reply_of.find(id);
    if (found == reply_of.end()) {
      if (n_missing++ == 0) first_missing = id;
      continue;
    }
    const std::string reply = found->second.value("answer", "");
    const bool exact = reply == expected_reply(item);
    const bool right = after_thinking(reply).find(item.value("key", "")) != std::string::npos;
    if (found->second.contains("error") && !found->second["error"].is_null()) ++scores.n_errors;
    reply_of.erase(found);

    const std::string kind = item.value("kind", "");
    kinds[kind].name = kind;
    add(&kinds[kind], right, exact);
    add(&scores.all, right, exact);
    if (const int distance = item.value("distance", 0); distance > 0) {
      ScoreRow& row = distances[*(std::upper_bound(std::begin(kEdges), std::end(kEdges), distance) - 1)];
      row.name = reach_of(distance);
      add(&row, right, exact);
    }
  }
  if (n_missing && !partial) {
    scores.faults.push_back(std::to_string(n_missing) + " items have no reply, the first has the id " + first_missing);
  }
  for (const auto& [id, reply] : reply_of) scores.faults.push_back("no item has the id " + id);
  scores.kinds = values_of(kinds);
  for (const auto& [edge, row] : distances) scores.distances.push_back(row);
  return scores;
}

std::string score_tables(const Scores& scores) {
  ScoreRow any;
  any.name = "any";
  for (const ScoreRow& row : scores.distances) {
    any.n_items += row.n_items;
    any.n_right += row.n_right;
    any.n_exact += row.n_exact;
  }
  return table("kind", scores.kinds, scores.all) + "\n" +
         table("distance of the fact in tokens", scores.distances, any);
}

}  // namespace dsv41::test
