// Sweeps: the values that a test goes through. Some of them in every run, so that each kind of check is made; all of
// them where the environment has DSV41_TEST_SWEEP=all, as `make nightly` sets it.
#pragma once

#include <cstdlib>
#include <string_view>
#include <vector>

namespace dsv41::test {

inline bool sweeps_all() {
  const char* chosen = std::getenv("DSV41_TEST_SWEEP");
  return chosen != nullptr && std::string_view(chosen) == "all";
}

// `always`, and in a whole sweep `others` as well.
template <class T>
std::vector<T> sweep(std::vector<T> always, const std::vector<T>& others) {
  if (sweeps_all()) always.insert(always.end(), others.begin(), others.end());
  return always;
}

}  // namespace dsv41::test
