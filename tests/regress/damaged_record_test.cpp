// antirez/ds4#251, #253: after a kill a checkpoint that looked whole made every prefill fail, and the retries loop for
// ever. DingoCache#231, #181 and matutetandil/mycel#79: what is read back differs, or cannot be decoded, and is counted
// as a hit, so that the hit rate looks perfect. antirez/ds4#146: no checksum over the payload.
//
// A record that is damaged is put aside once, the call takes a shorter prefix, and only what was verified is a hit.
#include <doctest/doctest.h>

#include <random>

#include "regress/store_trials.h"
#include "support/map_objects.h"

namespace dsv41::test {
namespace {

using session::HitSource;
using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

// A prompt whose pages are objects of a host.
struct Trial {
  MapObjects host;
  Tokens prompt = words(1, 900);
  std::vector<std::string> page_names;

  Trial() {
    const auto store = open();
    const auto pool = pool_with_store(model(), store);
    synced(*model().session(pool), prompt);
    for (const store::RecordName& name : must_have(session::store_names(*store, *pool, {})).pages(prompt, 7)) {
      page_names.push_back("page/" + store::key_text(name.key));
    }
  }
  std::shared_ptr<store::Store> open() { return must_have(store::Store::open(host.options())); }
  std::vector<std::byte>& page(size_t i) { return host.objects.at(page_names[i]); }
};

TEST_SUITE("regress/damaged_record") {
  TEST_CASE("a damaged page is put aside once, and three calls in a row give the right answer") {
    Trial trial;
    const Answer want = model().hit_at(trial.prompt, 3 * 128, 2);
    trial.page(3)[trial.page(3).size() / 2] ^= std::byte{4};
    const auto store = trial.open();
    trial.host.fail_puts(-1);  // else the first call would store the page again
    for (int i = 0; i < 3; ++i) {
      CAPTURE(i);
      const auto session = model().session(pool_with_store(model(), store, pages_only()));
      const RunResult result = synced(*session, trial.prompt);
      CHECK(result.hit_position == 3 * 128);
      CHECK(answer(*session, 2) == want);
      CHECK(store->stats().n_quarantined == 1);
    }
  }

  TEST_CASE("a page that is put aside is stored again by the session that computes it") {
    Trial trial;
    trial.page(3)[400] ^= std::byte{4};
    const auto store = trial.open();
    synced(*model().session(pool_with_store(model(), store, pages_only())), trial.prompt);
    CHECK(store->stats().n_quarantined == 1);
    const auto session = model().session(pool_with_store(model(), store, pages_only()));
    const RunResult result = synced(*session, trial.prompt);
    CHECK(result.hit_store_tokens == 7 * 128);
    // Exact below the damaged page; from there on after one bounded replay; the tail after another.
    CHECK(session->provenance().size() == 3);
    CHECK(store->check_invariants().ok());
  }

  TEST_CASE("absent, short and damaged records are told apart, and none of them counts as a hit") {
    struct Row {
      const char* name;
      void (*damage)(std::vector<std::byte>& page);
      uint64_t store::StoreStats::*counter;
    };
    const Row rows[] = {
        {"cut off", [](std::vector<std::byte>& page) { page.resize(page.size() - 9); },
         &store::StoreStats::reads_short},
        {"other bytes", [](std::vector<std::byte>& page) { page.back() ^= std::byte{1}; },
         &store::StoreStats::reads_checksum},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      Trial trial;
      const auto store = trial.open();  // it has seen the heads
      row.damage(trial.page(0));
      const auto pool = pool_with_store(model(), store, pages_only());
      const RunResult result = synced(*model().session(pool), trial.prompt);
      CHECK(result.hit_position == 0);
      CHECK(result.hit_store_tokens == 0);
      CHECK(pool->counters().tokens_hit_store == 0);
      CHECK(pool->counters().store_bytes_read == 0);
      CHECK(store->stats().*row.counter == 1);
      CHECK(store->stats().records_read == 0);
    }
    Trial trial;
    const auto store = trial.open();
    const auto pool = pool_with_store(model(), store, pages_only());
    CHECK(synced(*model().session(pool), words(2, 300)).hit_position == 0);
    CHECK(store->stats().misses_absent > 0);
    CHECK(store->stats().reads_checksum + store->stats().reads_short == 0);
  }

  TEST_CASE("two records that were swapped are no hit") {
    Trial trial;
    const auto store = trial.open();
    std::swap(trial.page(2), trial.page(4));
    const auto session = model().session(pool_with_store(model(), store, pages_only()));
    const RunResult result = synced(*session, trial.prompt);
    CHECK(result.hit_position == 2 * 128);
    CHECK(answer(*session, 2) == model().hit_at(trial.prompt, 2 * 128, 2));
  }

  TEST_CASE("a host that answers nothing but failures costs the hit alone, and gets its turn again") {
    Trial trial;
    const auto store = trial.open();
    const auto pool = pool_with_store(model(), store, pages_only());
    trial.host.fail_gets(-3);
    const auto session = model().session(pool);
    CHECK(synced(*session, trial.prompt).hit_position == 0);
    CHECK(answer(*session, 2) == model().cold(trial.prompt, 2));
    trial.host.fail_gets(0);
    CHECK(store->stats().n_quarantined == 0);
    CHECK(synced(*model().session(pool_with_store(model(), store, pages_only())), trial.prompt).hit_store_tokens ==
          7 * 128);
  }
}

}  // namespace
}  // namespace dsv41::test
