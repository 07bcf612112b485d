"""Tiny models of every family, created on each run, and folders that hold them.

Weights and prompts are generated as for the fixtures of `crates/models`, with other sizes, seeds and settings.
"""

import pathlib
import sys
from itertools import count

FIXTURES = pathlib.Path(__file__).parent.parent / "crates/models/tests/fixtures"
sys.path.append(str(FIXTURES))

import tokenizers  # noqa: E402
from adapters import fill as fill_adapter  # noqa: E402, F401
from generate import NEW_TOKENS, PLAIN, Unfit, build, fill, greedy, load, logits, watch_routers  # noqa: E402, F401

# Longer than every sliding window and every original context of scaled positions.
PROMPT = [57, 4, 99, 31, 76, 12, 45, 8, 63, 90, 27, 100, 3, 51, 84, 19, 38, 70, 6, 95, 22, 66, 41]
# 101 tokens and three layers do not divide evenly over two and three ranks.
SIZES = {
    "vocab_size": 101, "hidden_size": 48, "intermediate_size": 46, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 3, "max_position_embeddings": 64, "rms_norm_eps": 0.003, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 10, "head_dim": 6}


def rope(theta=2000.0, **scaling):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | scaling}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 6.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
LATENT = {
    "num_key_value_heads": 6, "q_lora_rank": 14, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 6,
    "v_head_dim": 9, "n_routed_experts": 9, "n_shared_experts": 2, "num_experts_per_tok": 3,
    "moe_intermediate_size": 10, "first_k_dense_replace": 1,
}
BUILT_IN = {
    "llama": ("llama", SIZES | rope()),
    "llama, tied, one key head": (
        "llama", SIZES | {"num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True} | rope()),
    "llama, biases": ("llama", SIZES | {"attention_bias": True, "mlp_bias": True} | rope()),
    "llama, llama3 rope": ("llama", SIZES | rope(**LLAMA3)),
    "llama, linear rope": ("llama", SIZES | rope(rope_type="linear", factor=3.0)),
    # Heads wide enough for the ramp to have several steps.
    "llama, yarn": ("llama", SIZES | {"head_dim": 16} | rope(**YARN)),
    "llama, yarn with all settings": (
        "llama", SIZES | {"head_dim": 16} | rope(
            **YARN, beta_fast=0.9, beta_slow=0.1, mscale=0.9, mscale_all_dim=0.4, truncate=False)),
    "mistral, window": ("mistral", SIZES | {"sliding_window": 7} | rope()),
    "mistral, no window": ("mistral", SIZES | {"sliding_window": None, "head_dim": 10} | rope()),
    "qwen2": ("qwen2", SIZES | rope()),
    "qwen2, windows": (
        "qwen2", SIZES | {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 2} | rope()),
    "qwen3": ("qwen3", SIZES | {"head_dim": 12} | rope()),
    "qwen3, tied, yarn": ("qwen3", SIZES | {"head_dim": 10, "tie_word_embeddings": True} | rope(**YARN)),
    "qwen3_moe": ("qwen3_moe", SIZES | EXPERTS | {"norm_topk_prob": True, "decoder_sparse_step": 2} | rope()),
    "qwen3_moe, dense layers listed": (
        "qwen3_moe", SIZES | EXPERTS | {"norm_topk_prob": False, "mlp_only_layers": [0]} | rope()),
    "gpt2": ("gpt2", {"vocab_size": 101, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64, "n_inner": 70,
                      "bos_token_id": 1, "eos_token_id": 2}),
    "gemma": ("gemma", SIZES | {"num_key_value_heads": 1, "head_dim": 10, "tie_word_embeddings": True} | rope()),
    "gemma2": ("gemma2", SIZES | {
        "head_dim": 10, "tie_word_embeddings": True, "sliding_window": 6, "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 6.0} | rope()),
    "mixtral": ("mixtral", SIZES | {"num_local_experts": 5, "num_experts_per_tok": 2} | rope()),
    "olmo2": ("olmo2", SIZES | rope()),
    "phi": ("phi", {key: value for key, value in SIZES.items() if key != "rms_norm_eps"}
            | {"num_key_value_heads": 6, "layer_norm_eps": 0.003} | rope(partial_rotary_factor=0.5)),
    "gemma3_text": ("gemma3_text", SIZES | {
        "head_dim": 10, "tie_word_embeddings": True, "sliding_window": 6, "query_pre_attn_scalar": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 3.0},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}),
    "phi3": ("phi3", SIZES | {"pad_token_id": 0, "sliding_window": 9} | rope()),
    "phi3, longrope": ("phi3", SIZES | {"pad_token_id": 0, "original_max_position_embeddings": 60} | rope(
        rope_type="longrope", partial_rotary_factor=0.5, short_factor=[1.2, 0.7], long_factor=[3.0, 2.0])),
    "deepseek_v2": ("deepseek_v2", SIZES | LATENT | {"q_lora_rank": None} | rope(
        **YARN, mscale=0.8, mscale_all_dim=0.6)),
    "deepseek_v2, groups": ("deepseek_v2", SIZES | LATENT | {
        "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2, "routed_scaling_factor": 3.0} | rope()),
    "deepseek_v3": ("deepseek_v3", SIZES | LATENT | {
        "n_group": 3, "topk_group": 2, "norm_topk_prob": True, "num_mtp_layers": 0} | rope()),
    "llama4_text": ("llama4_text", SIZES | {
        "pad_token_id": 0, "head_dim": 10, "intermediate_size": 14, "intermediate_size_mlp": 46, "num_local_experts": 5,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "no_rope_layer_interval": 3,
        "attention_chunk_size": 7, "floor_scale": 6, "attn_scale": 0.4} | rope()),
}


def unambiguous(family, settings):
    """A model and its greedy tokens after the prompt, none of which is a near tie."""
    for seed in count(1001):
        model = build(family, settings)
        fill(model, seed)
        watch_routers(model)
        try:
            return model, greedy(model, PROMPT)
        except Unfit:
            if seed > 1200:
                raise


def save(model, folder, **options):
    """Saves a folder with transformers, and a tokenizer whose words are numbers."""
    model.save_pretrained(folder, **options)
    return add_tokenizer(folder)


def add_tokenizer(folder):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word(i): i for i in range(101)}, unk_token=word(0)))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    return folder


def word(number):
    return f"t{number}"


def text(tokens):
    """The text with exactly these tokens."""
    return " ".join(map(word, tokens))
