#include "model/config.h"

#include <doctest/doctest.h>

#include "base/file.h"
#include "model/released_config.h"

namespace dsv41::test {
namespace {

using model::ModelConfig;
using model::parse_config;

ModelConfig released() { return parse_config(kReleasedConfig).value(); }

struct BadRow {
  const char* from;
  const char* to;
  const char* named;  // what the message must mention
};

void check_refused(std::string_view base, std::span<const BadRow> rows, Code code) {
  for (const BadRow& row : rows) {
    CAPTURE(row.from);
    CAPTURE(row.to);
    const Result<ModelConfig> config = parse_config(with(base, row.from, row.to));
    REQUIRE_FALSE(config.ok());
    CAPTURE(config.status().message());
    CHECK(config.status().code() == code);
    CHECK(config.status().message().find(row.named) != std::string_view::npos);
    CHECK(config.status().message().size() < 8000);
  }
}

TEST_SUITE("model/config") {
  TEST_CASE("the released config gives its published values") {
    const Result<ModelConfig> parsed = parse_config(kReleasedConfig);
    REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
    const ModelConfig& c = parsed.value();
    CHECK(c.hidden_size == 5120);
    CHECK(c.num_hidden_layers == 40);
    CHECK(c.rms_norm_eps == 1e-20);
    CHECK(c.rope_scaling.factor == 16);
    CHECK(c.rope_scaling.original_max_position_embeddings == 65536);
    CHECK(c.compress_ratios.size() == 43);
    CHECK(c.engram_num_embeddings == std::vector<int64_t>{384006168, 384016682});
    CHECK(c.engram_n_columns() == 24);
    CHECK(c.dspark_target_layer_ids == std::vector<int>{37, 38, 39});
    CHECK(c.image_token_id == 129264);
    REQUIRE(c.vision_config.has_value());
    CHECK(c.vision_config->intermediate_size == 2816);
    CHECK(c.vision_config->max_wh_ratio == 0);
  }

  TEST_CASE("the flat spelling gives the same configuration") {
    const ModelConfig a = released();
    const Result<ModelConfig> parsed = parse_config(kReleasedFlatConfig);
    REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
    const ModelConfig& b = parsed.value();
    CHECK(a.hidden_size == b.hidden_size);
    CHECK(a.num_hidden_layers == b.num_hidden_layers);
    CHECK(a.num_nextn_predict_layers == b.num_nextn_predict_layers);
    CHECK(a.vocab_size == b.vocab_size);
    CHECK(a.max_position_embeddings == b.max_position_embeddings);
    CHECK(a.rms_norm_eps == b.rms_norm_eps);
    CHECK(a.num_attention_heads == b.num_attention_heads);
    CHECK(a.qk_rope_head_dim == b.qk_rope_head_dim);
    CHECK(a.sliding_window == b.sliding_window);
    CHECK(a.rope_scaling.factor == b.rope_scaling.factor);
    CHECK(a.rope_scaling.beta_fast == b.rope_scaling.beta_fast);
    CHECK(a.rope_scaling.original_max_position_embeddings == b.rope_scaling.original_max_position_embeddings);
    CHECK(a.kv_source_layer_ids == b.kv_source_layer_ids);
    CHECK(a.index_source_layer_ids == b.index_source_layer_ids);
    CHECK(a.candidate_source_layer_id == b.candidate_source_layer_id);
    CHECK(a.moe_intermediate_size == b.moe_intermediate_size);
    CHECK(a.num_experts_per_tok == b.num_experts_per_tok);
    CHECK(a.routed_scaling_factor == b.routed_scaling_factor);
    CHECK(a.engram_pad_token_id == b.engram_pad_token_id);
    CHECK(a.dspark_num_experts_per_tok == b.dspark_num_experts_per_tok);
    CHECK(a.bos_token_id == b.bos_token_id);
    CHECK(a.eos_token_id == b.eos_token_id);
    CHECK(a.pad_token_id == b.pad_token_id);
    CHECK(a.vision_config->max_image_tokens == b.vision_config->max_image_tokens);
    CHECK(a.vision_config->min_pixels == b.vision_config->min_pixels);
    CHECK(a.vision_config->rope_theta == b.vision_config->rope_theta);
  }

  // attention.md 1.2
  TEST_CASE("owners and candidates follow the layer schedule") {
    const ModelConfig c = released();
    CHECK(c.decoder_start() == 20);
    const int64_t kv[] = {2, 2, 2, 2, 2, 2, 8, 8, 8, 8, 8, 8, 14, 14, 14, 14, 14, 14};
    for (int64_t layer = 2; layer < 40; ++layer) {
      CAPTURE(layer);
      CHECK(c.kv_owner(layer) == (layer < 20 ? kv[layer - 2] : 20));
      CHECK(c.index_owner(layer) == (layer < 20 ? kv[layer - 2] : layer / 4 * 4));
      CHECK(c.owns_kv(layer) == (layer == 2 || layer == 8 || layer == 14 || layer == 20));
      CHECK(c.owns_index(layer) == (c.owns_kv(layer) || (layer > 20 && layer % 4 == 0)));
      CHECK(c.uses_candidates(layer) == (layer > 20 && layer % 4 == 0));
    }
    CHECK_FALSE(c.owns_kv(0));
    CHECK(c.engram_index(1) == 0);
    CHECK(c.engram_index(14) == 1);
    CHECK(c.engram_index(2) == -1);
    CHECK(c.n_experts_of(39) == 384);
    CHECK(c.n_experts_of(40) == 128);
  }

  TEST_CASE("the small checkpoints have valid configs without vision") {
    for (const char* file : {"/samples/nano/config.json", "/tests/golden/pico/checkpoint/config.json"}) {
      CAPTURE(file);
      const Result<ModelConfig> config = parse_config(read_file(DSV41_SOURCE_DIR + std::string(file), 1 << 20).value());
      REQUIRE_MESSAGE(config.ok(), config.status().message());
      CHECK(config->decoder_start() == 6);
      CHECK_FALSE(config->vision_config.has_value());
    }
  }

  TEST_CASE("a model without Engram and without drafts needs none of their fields") {
    std::string text = with(kReleasedConfig, "\"engram_layer_ids\": [1, 14],", "");
    text = with(text, "\"engram_num_embeddings\": [384006168, 384016682],", "");
    text = with(text, "\"engram_vocab_size\": 16000000,", "");
    text = with(text, "\"num_nextn_predict_layers\": 3,", "\"num_nextn_predict_layers\": 0,");
    text = with(text, "\"dspark_markov_rank\": 256,", "");
    text = with(text, "1, 0, 0, 0]", "1]");
    const Result<ModelConfig> config = parse_config(text);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    CHECK(config->engram_layer_ids.empty());
    CHECK(config->dspark_target_layer_ids.empty());
  }

  TEST_CASE("another architecture, gate, activation or quantisation is unsupported and named") {
    const BadRow rows[] = {
        {R"("architectures": ["DeepseekV41ForCausalLM"])", R"("architectures": ["LlamaForCausalLM"])", "architectures"},
        {R"("model_type": "deepseek_v41",)", R"("model_type": "deepseek_v4",)", "model_type"},
        {R"("model_type": "deepseek_v41_text")", R"("model_type": 7)", "text_config.model_type"},
        {R"("quant_method": "fp8")", R"("quant_method": "awq")", "quantization_config.quant_method"},
        {R"("weight_block_size": [32, 32])", R"("weight_block_size": [128, 128])", "[128, 128]"},
        {R"("expert_dtype": "fp4")", R"("expert_dtype": "fp8")", "expert_dtype"},
        {R"("quantization_config")", R"("quantisation")", "quantization_config"},
        {R"("scoring_func": "sqrtsoftplus")", R"("scoring_func": "sigmoid")", "scoring_func"},
        {R"("topk_method": "noaux_tc")", R"("topk_method": "greedy")", "topk_method"},
        {R"("hidden_act": "silu")", R"("hidden_act": "gelu")", "hidden_act"},
        {R"("norm_topk_prob": true)", R"("norm_topk_prob": false)", "norm_topk_prob"},
        {R"("num_key_value_heads": 1)", R"("num_key_value_heads": 8)", "num_key_value_heads"},
        {R"("n_shared_experts": 1)", R"("n_shared_experts": 2)", "n_shared_experts"},
        {R"("rope_type": "yarn")", R"("rope_type": "linear")", "rope_scaling.rope_type"},
        {R"("use_cache": true)", R"("num_hash_layers": 3)", "num_hash_layers"},
        {R"("tie_word_embeddings": false)", R"("tie_word_embeddings": true)", "tie_word_embeddings"},
    };
    check_refused(kReleasedConfig, rows, Code::kCHECKPOINT_UNSUPPORTED);
    const BadRow flat[] = {
        {R"("dtype": "fp8", "expert)", R"("dtype": "bf16", "expert)", "dtype"},
        {R"("score_func": "sqrtsoftplus")", R"("score_func": "softmax")", "score_func"},
    };
    check_refused(kReleasedFlatConfig, flat, Code::kCHECKPOINT_UNSUPPORTED);
  }

  TEST_CASE("missing, mistyped and absurd values are refused by field name") {
    const BadRow rows[] = {
        {R"("hidden_size": 5120,)", "", "text_config.hidden_size is missing"},
        {R"("hidden_size": 5120)", R"("hidden_size": "5120")", "hidden_size"},
        {R"("hidden_size": 5120)", R"("hidden_size": -5120)", "hidden_size"},
        {R"("hidden_size": 5120)", R"("hidden_size": 5120.5)", "hidden_size"},
        {R"("hidden_size": 5120)", R"("hidden_size": 0)", "hidden_size"},
        {R"("hidden_size": 5120)", R"("hidden_size": null)", "hidden_size"},
        {R"("hidden_size": 5120)", R"("hidden_size": 5120, "dim": 5120)", "also given as dim"},
        {R"("vocab_size": 129280)", R"("vocab_size": 1000000000000000000)", "vocab_size"},
        {R"("vocab_size": 129280)", R"("vocab_size": 18446744073709551615)", "vocab_size"},
        {R"("vocab_size": 129280)", R"("vocab_size": 1e300)", "vocab_size"},
        {R"("num_hidden_layers": 40)", R"("num_hidden_layers": 4000000)", "num_hidden_layers"},
        {R"("n_routed_experts": 384, "n_shared)", R"("n_routed_experts": 1000000000, "n_shared)", "n_routed_experts"},
        {R"("rms_norm_eps": 1e-20)", R"("rms_norm_eps": 0)", "rms_norm_eps"},
        {R"("rms_norm_eps": 1e-20)", R"("rms_norm_eps": "tiny")", "rms_norm_eps"},
        {R"("factor": 16)", R"("factor": -16)", "rope_scaling.factor"},
        {R"("rope_scaling": {)", R"("rope_scaling": 7, "x": {)", "rope_scaling"},
        {R"("kv_source_layer_ids": [2, 8, 14, 20])", R"("kv_source_layer_ids": "2 8 14 20")", "kv_source_layer_ids"},
        {R"("kv_source_layer_ids": [2, 8, 14, 20])", R"("kv_source_layer_ids": [2, 8, -14, 20])",
         "kv_source_layer_ids"},
        {R"("kv_source_layer_ids": [2, 8, 14, 20])", R"("kv_source_layer_ids": [2, 8, [14], 20])",
         "kv_source_layer_ids"},
        {R"("engram_n_heads": 8,)", "", "engram_n_heads is missing"},
        {R"("engram_num_embeddings": [384006168, 384016682])", R"("engram_num_embeddings": [1e300])", "engram_num"},
        {R"("bos_token_id": 0)", R"("bos_token_id": -1)", "bos_token_id"},
        {R"("patch_size": 14)", R"("patch_size": 0)", "vision_config.patch_size"},
        {R"("vision_config": {)", R"("vision_config": 1, "x": {)", "vision_config"},
        {R"("text_config": {)", R"("text_config": 1, "x": {)", "text_config"},
    };
    check_refused(kReleasedConfig, rows, Code::kCHECKPOINT);
    const BadRow flat[] = {
        {R"("dim": 5120, "n_l)", R"("dim": -1, "n_l)", "dim is -1"},
        {R"("rope_factor": 16,)", R"("rope_factor": 0,)", "rope_factor"},
        {R"("vision_dim": 1024,)", "", "vision_dim is missing"},
    };
    check_refused(kReleasedFlatConfig, flat, Code::kCHECKPOINT);
  }

  TEST_CASE("values that contradict each other are refused") {
    const BadRow rows[] = {
        {R"("hidden_size": 5120)", R"("hidden_size": 5100)", "hidden_size is 5100, not a multiple of 32"},
        {R"("moe_intermediate_size": 2304)", R"("moe_intermediate_size": 2300)", "moe_intermediate_size"},
        {R"("o_groups": 8)", R"("o_groups": 7)", "o_groups"},
        {R"("qk_rope_head_dim": 64)", R"("qk_rope_head_dim": 63)", "qk_rope_head_dim is odd"},
        {R"("qk_rope_head_dim": 64)", R"("qk_rope_head_dim": 256)", "index_head_dim"},
        {R"("candidate_topk_blocks": 2048)", R"("candidate_topk_blocks": 32)", "index_topk"},
        {R"("num_experts_per_tok": 6, "s)", R"("num_experts_per_tok": 385, "s)", "num_experts_per_tok"},
        {R"("hc_mult": 4)", R"("hc_mult": 9)", "hc_mult"},
        {"[0, 0, 2, 2,", "[0, 2, 2,", "compress_ratios has 42 entries"},
        {"[0, 0, 2, 2,", "[0, 0, 3, 2,", "compress_ratios"},
        {"[0, 0, 2, 2,", "[0, 2, 2, 2,", "compress_ratios[1]"},
        {"[0, 0, 2, 2,", "[0, 0, 2, 1,", "compress_ratios[3]"},
        {"1, 0, 0, 0]", "0, 0, 0, 0]", "compress_ratios[39]"},
        {"1, 0, 0, 0]", "1, 0, 1, 0]", "draft layers"},
        {R"("kv_source_layer_ids": [2, 8, 14, 20])", R"("kv_source_layer_ids": [2, 14, 8, 20])", "does not ascend"},
        {R"("kv_source_layer_ids": [2, 8, 14, 20])", R"("kv_source_layer_ids": [2, 2, 14, 20])", "does not ascend"},
        {R"("kv_source_layer_ids": [2, 8, 14, 20])", R"("kv_source_layer_ids": [2, 8, 14, 20, 99])", "does not exist"},
        {R"("kv_source_layer_ids": [2, 8, 14, 20])", R"("kv_source_layer_ids": [])", "kv_source_layer_ids"},
        {R"("kv_source_layer_ids": [2, 8, 14, 20])", R"("kv_source_layer_ids": [0, 2, 8, 14, 20])", "ratio 0"},
        {R"("kv_source_layer_ids": [2, 8, 14, 20])", R"("kv_source_layer_ids": [2, 8, 14, 20, 22])", "lacks"},
        {R"("index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36])", R"("index_source_layer_ids": [2, 8, 20])",
         "lacks"},
        {R"("candidate_source_layer_id": 20)", R"("candidate_source_layer_id": 14)", "decoder"},
        {R"("candidate_source_layer_id": 20)", R"("candidate_source_layer_id": 24)", "the last of kv_source_layer_ids"},
        {R"("candidate_source_layer_id": 20)", R"("candidate_source_layer_id": 400)", "candidate_source_layer_id"},
        {R"("engram_layer_ids": [1, 14])", R"("engram_layer_ids": [1, 14, 15])", "differ in length"},
        {R"("engram_layer_ids": [1, 14])", R"("engram_layer_ids": [1, 20])", "decoder"},
        {R"("engram_layer_ids": [1, 14])", R"("engram_layer_ids": [14, 1])", "does not ascend"},
        {R"("engram_compressed_vocab_size": 99092)", R"("engram_compressed_vocab_size": 129281)", "compressed"},
        {R"("engram_pad_token_id": 2)", R"("engram_pad_token_id": 129280)", "outside the vocabulary"},
        {R"("dspark_target_layer_ids": [37, 38, 39])", R"("dspark_target_layer_ids": [19, 38, 39])", "encoder"},
        {R"("dspark_target_layer_ids": [37, 38, 39])", R"("dspark_target_layer_ids": [])", "dspark_target_layer_ids"},
        {R"("dspark_noise_token_id": 128799)", R"("dspark_noise_token_id": 200000)", "dspark_noise_token_id"},
        {R"("dspark_num_experts_per_tok": 3)", R"("dspark_num_experts_per_tok": 129)", "dspark_num_experts_per_tok"},
        {R"("eos_token_id": 1)", R"("eos_token_id": 129280)", "eos_token_id"},
    };
    check_refused(kReleasedConfig, rows, Code::kCHECKPOINT);
  }

  TEST_CASE("all problems of a config are reported in one message") {
    std::string text = with(kReleasedConfig, R"("hidden_size": 5120,)", "");
    text = with(text, R"("o_groups": 8)", R"("o_groups": -8)");
    text = with(text, R"("swiglu_limit": 10.0,)", "");
    const Status status = parse_config(text).status();
    CHECK(status.message() ==
          "3 problems:\n  text_config.hidden_size is missing\n  text_config.o_groups is -8, not an integer from 1 to "
          "1024\n"
          "  text_config.swiglu_limit is missing");
  }

  TEST_CASE("text that is no JSON object is refused") {
    for (std::string_view text :
         {"", "[]", "7", "{", "{\"a\": 1, \"a\": 2}", "nul", "\xff\xfe", "{\"text_config\": {}}"}) {
      CAPTURE(text);
      CHECK_FALSE(parse_config(text).ok());
    }
    CHECK(parse_config(std::string(100000, '[')).status().code() == Code::kCHECKPOINT);
  }

  TEST_CASE("a config cut anywhere is refused") {
    for (size_t length = 0; length < kReleasedConfig.size(); ++length) {
      CAPTURE(length);
      CHECK_FALSE(parse_config(kReleasedConfig.substr(0, length)).ok());
    }
  }
}

}  // namespace
}  // namespace dsv41::test
