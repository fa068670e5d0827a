// Memory that no cache holds: what a step reads once, a weight or a table, lies in copies that follow each other beyond
// the size of the last-level cache, and each call takes the next one. In a model the copies are those of other layers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace dsv41::bench {

// Four times the last-level cache of the machines seen.
inline constexpr size_t kColdBytes = size_t{128} << 20;

// `part` again and again, n values in all: large data without the time to draw it.
template <class T>
std::vector<T> repeated(const std::vector<T>& part, size_t n) {
  std::vector<T> out;
  out.reserve(n);
  while (out.size() < n) {
    const size_t piece = std::min(part.size(), n - out.size());
    out.insert(out.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(piece));
  }
  return out;
}

// Starts of [n_values] pieces of `pool`, one after the other, from the first again at the end. The pool must outlive
// it.
template <class T>
class ColdPieces {
 public:
  ColdPieces(const std::vector<T>& pool, size_t n_values)
      : begin_(pool.data()), n_values_(n_values), n_pieces_(pool.size() / n_values) {}
  const T* next() {
    const T* piece = begin_ + next_ * n_values_;
    next_ = next_ + 1 == n_pieces_ ? 0 : next_ + 1;
    return piece;
  }

 private:
  const T* begin_;
  size_t n_values_, n_pieces_, next_ = 0;
};

}  // namespace dsv41::bench
