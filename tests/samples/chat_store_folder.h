// A folder for --store in a test, and what the program says of it.
#pragma once

#include <string>
#include <vector>

#include "samples/chat_talk.h"

namespace dsv41::test {

// About 350 tokens: two full pages.
extern const std::string kLongSystem;

struct StoreFolder {
  Scratch scratch;
  std::string store = (scratch.path / "store").string();
  std::string saves = (scratch.path / "saves").string();

  // A greedy chat on this store.
  std::vector<std::string> command(std::vector<std::string> arguments = {}) const;
  // Answers one message, with kLongSystem, and ends: two pages and a state are in the store.
  void fill() const;
  // Waits until that many states can be found in the store.
  void wait_for_states(size_t n) const;
  // The only file of pages.
  std::string segment() const;
  // The only state.
  std::string state() const;
};

// Turns one bit of a file around.
void flip_bit(const std::string& path, size_t offset);

}  // namespace dsv41::test
