#include "model/engram_hash.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "base/file.h"
#include "model/engram_vocab_map.h"
#include "model/released_config.h"
#include "support/golden_file.h"

namespace dsv41::test {
namespace {

using model::EngramHash;
using model::kEngramDead;
using model::ModelConfig;

ModelConfig released() { return model::parse_config(kReleasedConfig).value(); }
EngramHash released_hash() {
  return EngramHash::create(released(), model::released_engram_vocab_map().value()).value();
}

std::vector<int64_t> rows_of(const EngramHash& hash, int64_t engram_idx, std::span<const int32_t> history, int64_t n) {
  std::vector<int64_t> rows(static_cast<size_t>(n * hash.n_columns()));
  hash.hash(engram_idx, history, n, rows.data());
  return rows;
}

// model.md 6.6; position p of ids 0, 128803, 19923, 3, 223, 5464 in Engram layer 1 (number 0) and 14 (number 1).
struct RowVector {
  int64_t engram_idx;
  size_t position;
  std::vector<int64_t> rows;
};
const RowVector kVectors[] = {
    {0, 0, {5702652,   24393184,  39183301,  61503783,  78984481,  90144770,  103724983, 121476532,
            131476717, 152385926, 164143652, 191599181, 198145581, 217419202, 238329687, 247482304,
            257520185, 283540304, 288689443, 315264704, 322314652, 348890037, 367865216, 380066193}},
    {1, 0, {14361964,  29977809,  32716444,  61209771,  67456205,  84275051,  108494439, 120604547,
            132225184, 150270452, 174805952, 178895254, 193207923, 211610196, 226280582, 252505246,
            261362261, 279862797, 301364059, 312864848, 328367036, 349372619, 363873742, 372375971}},
    {0, 1, {3695168,   27059552,  42236950,  60157199,  75376026,  93339318,  103737896, 121420525,
            138321737, 144335154, 171380587, 184384562, 202001830, 223562732, 239843803, 253286687,
            267086655, 278689864, 289704715, 306400413, 329378583, 349616593, 356475509, 371393845}},
    {1, 1, {5519679,   29666556,  46328400,  61609728,  70502420,  91066790,  101091852, 115457008,
            132034959, 154153581, 163841656, 181711574, 202827182, 210712499, 229412906, 246079605,
            270734617, 284654929, 296499501, 309277277, 334860522, 348270033, 364331308, 383764017}},
    {0, 5, {2653872,   26285031,  37226116,  61147368,  66338660,  95085191,  101523876, 113690040,
            136942432, 151255156, 165222626, 186515209, 193986180, 222311461, 225535382, 246432193,
            256460936, 279155154, 291684177, 306575417, 327401895, 342989287, 360740028, 374068361}},
    {1, 5, {4677735,   24167027,  44676304,  63877943,  65537093,  80247569,  102385643, 114640988,
            142251359, 153854905, 165853793, 189324581, 207777173, 218490137, 238102807, 250462210,
            267699530, 282779940, 288455235, 316791131, 323249604, 336850649, 353199208, 371697977}},
};
const std::vector<int32_t> kIds = {0, 128803, 19923, 3, 223, 5464};

// model.md 6.3
const std::vector<int64_t> kOffsets1 = {0,         16000057,  32000136,  48000217,  64000314,  80000435,
                                        96000564,  112000697, 128000880, 144001069, 160001276, 176001487,
                                        192001740, 208002017, 224002306, 240002613, 256002934, 272003273,
                                        288003654, 304004047, 320004446, 336004849, 352005258, 368005705};
const std::vector<int64_t> kOffsets14 = {0,         16000477,  32000964,  48001463,  64001970,  80002481,
                                         96003054,  112003663, 128004290, 144004957, 160005626, 176006319,
                                         192007016, 208007727, 224008456, 240009215, 256009984, 272010765,
                                         288011564, 304012377, 320013196, 336014037, 352014914, 368015793};

TEST_SUITE("model/engram_hash") {
  TEST_CASE("multipliers are those of NumPy's generator for every vocabulary") {
    struct Row {
      int64_t vocab;
      int64_t layer;
      std::vector<int64_t> want;
    };
    const Row rows[] = {
        {99092, 1, {76632096046245, 4839876093313, 35959672319349, 73987337458391}},
        {99092, 14, {67716810739261, 51510806800915, 30921347202721, 82619226485591}},
        {3337, 1, {2275585154754161, 143719808761949, 1067820152672749, 2197049218887331}},
        {3337, 4, {2442711892526125, 149596909544457, 2187134583317375, 562863434288483}},
        {512, 1, {14831304026200453, 936705081716061, 6959601268494069, 14319439928568407}},
        {512, 4, {15920565596405625, 975009545214551, 14254820516660309, 3668506406680991}},
    };
    for (const Row& row : rows) {
      CAPTURE(row.vocab);
      CAPTURE(row.layer);
      CHECK(model::engram_multipliers(row.layer, row.vocab, 4) == row.want);
    }
  }

  TEST_CASE("primes of the released tables are the published ones and sum to the row counts") {
    const Result<std::vector<model::EngramLayerConstants>> constants = model::engram_constants(released());
    REQUIRE_MESSAGE(constants.ok(), constants.status().message());
    REQUIRE(constants->size() == 2);
    CHECK(constants.value()[0].offsets == kOffsets1);
    CHECK(constants.value()[1].offsets == kOffsets14);
    CHECK(constants.value()[0].primes.back() == 16000463);
    CHECK(constants.value()[1].primes.back() == 16000889);
  }

  TEST_CASE("a table of another size than its primes is refused") {
    ModelConfig config = released();
    config.engram_num_embeddings[1] += 1;
    const Status status = model::engram_constants(config).status();
    CHECK(status.code() == Code::kCHECKPOINT);
    CHECK(status.message().find("engram_num_embeddings[1] is 384016683") != std::string_view::npos);
    CHECK(status.message().find("384016682") != std::string_view::npos);
  }

  TEST_CASE("the search for primes starts at small numbers and at the largest allowed one") {
    ModelConfig config = released();
    config.engram_layer_ids = {1};
    config.engram_max_ngram_size = 2;
    const std::pair<int64_t, int64_t> rows[] = {{2, 2 + 3 + 5 + 7 + 11 + 13 + 17 + 19},
                                                {20, 23 + 29 + 31 + 37 + 41 + 43 + 47 + 53}};
    for (const auto& [start, sum] : rows) {
      config.engram_vocab_size = start;
      config.engram_num_embeddings = {sum};
      CHECK(model::engram_constants(config).ok());
    }
    config.engram_vocab_size = int64_t{1} << 31;
    config.engram_num_embeddings = {1};
    // The eight primes above 2^31: 2147483659, ..693, ..713, ..743, ..777, ..783, ..813, ..857.
    CHECK(model::engram_constants(config).status().message().find("sum to 17179870038") != std::string_view::npos);
  }

  TEST_CASE("the shipped map has the published samples") {
    const std::vector<int32_t> map = model::released_engram_vocab_map().value();
    REQUIRE(map.size() == 129280);
    const std::pair<size_t, int32_t> samples[] = {
        {0, 0},          {1, 1},          {2, 2},          {3, 3},          {100, 74},       {255, 226},
        {256, 227},      {1000, 604},     {10000, 8184},   {50000, 10486},  {100000, 76407}, {127999, 97811},
        {128000, 97812}, {128799, 98611}, {128803, 98615}, {128804, 98616}, {128821, 98633}, {128822, 98634},
        {128825, 98637}, {129264, 99076}, {129279, 99091}, {1805, 237},     {270, 237},      {671, 237},
        {455, 237},      {20852, 237},    {6367, 237},     {223, 174},      {262, 174},      {201, 174},
        {271, 174},      {619, 39},       {39, 39},        {168, 142},      {30594, 24024},  {19923, 15844},
        {5464, 4563}};
    for (const auto& [token, compressed] : samples) {
      CAPTURE(token);
      CHECK(map[token] == compressed);
    }
  }

  TEST_CASE("rows of the released tables are the published ones") {
    const EngramHash hash = released_hash();
    std::vector<int32_t> compressed;
    for (int32_t id : kIds) compressed.push_back(hash.compress(id));
    CHECK(compressed == std::vector<int32_t>{0, 98615, 15844, 3, 174, 4563});
    CHECK(hash.n_columns() == 24);
    CHECK(hash.n_look_back() == 3);
    for (const RowVector& row : kVectors) {
      CAPTURE(row.engram_idx);
      CAPTURE(row.position);
      CHECK(rows_of(hash, row.engram_idx, std::span(compressed).first(row.position + 1), 1) == row.rows);
    }
  }

  // model.md 6.6, but for column 12: two digits are swapped there (198307447). The definition of 6.4 gives this value
  // in exact integers too, and the pico case below checks the same rule against the reference.
  TEST_CASE("an n-gram does not reach across an image span") {
    const std::vector<int32_t> history = {0, 98615, kEngramDead, kEngramDead, 15844, 3};
    CHECK(rows_of(released_hash(), 0, history, 1) ==
          std::vector<int64_t>{14971982,  22232100,  41815691,  54570074,  65989504,  80539504,  103829033, 115755568,
                               139937306, 159657846, 165844405, 191382683, 197308447, 216401278, 237202488, 251737879,
                               268742326, 285810341, 288595272, 314020685, 325649482, 351110861, 358196557, 373228643});
  }

  TEST_CASE("the rows of a position do not depend on how many are hashed at once") {
    const EngramHash hash = released_hash();
    std::vector<int32_t> history;
    for (int32_t i = 0; i < 40; ++i) history.push_back(i % 11 == 7 ? kEngramDead : (i * 7919) % 99092);
    const std::vector<int64_t> whole = rows_of(hash, 1, history, 40);
    for (int64_t position = 0; position < 40; ++position) {
      const int64_t begin = std::max<int64_t>(0, position - hash.n_look_back());
      const std::span<const int32_t> part = std::span(history).subspan(begin, position + 1 - begin);
      const std::vector<int64_t> row = rows_of(hash, 1, part, 1);
      CHECK(std::equal(row.begin(), row.end(), whole.begin() + position * hash.n_columns()));
    }
  }

  TEST_CASE("pico gives the rows of the reference, with and without an image span") {
    const std::string folder = golden_path("pico/checkpoint");
    const ModelConfig config = model::parse_config(read_file(folder + "/config.json", 1 << 20).value()).value();
    std::vector<int32_t> identity(static_cast<size_t>(config.vocab_size));
    std::iota(identity.begin(), identity.end(), 0);
    const EngramHash hash = EngramHash::create(config, identity).value();
    const GoldenFile ops = GoldenFile::open(golden_path("pico/ops.safetensors"));
    const std::vector<int32_t> ids = ops.tensor("ids").i32();
    const std::vector<int32_t> dead = ops.tensor("engram_dead.compressed").i32();
    for (int64_t i = 0; i < 2; ++i) {
      const std::string layer = std::to_string(config.engram_layer_ids[static_cast<size_t>(i)]);
      CHECK(rows_of(hash, i, ids, static_cast<int64_t>(ids.size())) == ops.tensor("engram" + layer + ".rows").i64());
      CHECK(rows_of(hash, i, dead, static_cast<int64_t>(dead.size())) == ops.tensor("engram_dead.rows" + layer).i64());
    }
  }

  TEST_CASE("a map that does not fit the config is refused") {
    const std::vector<int32_t> map = model::released_engram_vocab_map().value();
    std::vector<int32_t> shorter(map.begin(), map.end() - 1), negative = map, large = map;
    negative[7] = -1;
    large[7] = 99092;
    for (const std::vector<int32_t>& bad : {shorter, negative, large}) {
      CHECK(EngramHash::create(released(), bad).status().code() == Code::kINVALID_ARG);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
