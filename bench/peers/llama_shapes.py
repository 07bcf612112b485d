"""Names and shapes of Llama-3.2-1B, as in benches/checkpoint.rs."""

LAYER = {
    "self_attn.q_proj": (2048, 2048),
    "self_attn.k_proj": (512, 2048),
    "self_attn.v_proj": (512, 2048),
    "self_attn.o_proj": (2048, 2048),
    "mlp.gate_proj": (8192, 2048),
    "mlp.up_proj": (8192, 2048),
    "mlp.down_proj": (2048, 8192),
    "input_layernorm": (2048,),
    "post_attention_layernorm": (2048,),
}


def shapes(layers):
    yield "model.embed_tokens.weight", (128256, 2048)
    yield "model.norm.weight", (2048,)
    for layer in range(layers):
        for name, shape in LAYER.items():
            yield f"model.layers.{layer}.{name}.weight", shape
