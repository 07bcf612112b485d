//! A GGUF file with a whole model in it: a Llama of one layer and four tokens.

const STRING: u32 = 8;
const ARRAY: u32 = 9;

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A key with the type of its value.
fn key(bytes: &mut Vec<u8>, name: &str, kind: u32) {
    text(bytes, name);
    bytes.extend(kind.to_le_bytes());
}

/// The metadata, and how many keys they have.
fn metadata() -> (Vec<u8>, u64) {
    let mut bytes = Vec::new();
    let strings = [("general.architecture", "llama"), ("tokenizer.ggml.model", "llama")];
    for (name, value) in strings {
        key(&mut bytes, name, STRING);
        text(&mut bytes, value);
    }
    let counts = [
        ("llama.context_length", 64_u32),
        ("llama.embedding_length", 8),
        ("llama.block_count", 1),
        ("llama.feed_forward_length", 8),
        ("llama.attention.head_count", 2),
        ("tokenizer.ggml.bos_token_id", 1),
        ("tokenizer.ggml.eos_token_id", 2),
    ];
    for (name, value) in counts {
        key(&mut bytes, name, 4);
        bytes.extend(value.to_le_bytes());
    }
    key(&mut bytes, "llama.attention.layer_norm_rms_epsilon", 6);
    bytes.extend(1e-5_f32.to_le_bytes());
    let array = |bytes: &mut Vec<u8>, name: &str, kind: u32| {
        key(bytes, name, ARRAY);
        bytes.extend(kind.to_le_bytes());
        bytes.extend(4_u64.to_le_bytes());
    };
    array(&mut bytes, "tokenizer.ggml.tokens", STRING);
    ["<unk>", "<s>", "</s>", "▁a"].into_iter().for_each(|token| text(&mut bytes, token));
    array(&mut bytes, "tokenizer.ggml.scores", 6);
    [0_f32, 0.0, 0.0, -1.0].into_iter().for_each(|score| bytes.extend(score.to_le_bytes()));
    array(&mut bytes, "tokenizer.ggml.token_type", 5);
    [2_i32, 3, 3, 1].into_iter().for_each(|kind| bytes.extend(kind.to_le_bytes()));
    (bytes, (strings.len() + counts.len() + 4) as u64)
}

/// The bytes of the file.
pub fn gguf_file() -> Vec<u8> {
    let matrix = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let vector = ["attn_norm", "ffn_norm"];
    // The innermost dim first.
    let mut tensors: Vec<(String, Vec<u64>)> = vec![
        ("token_embd.weight".to_owned(), vec![8, 4]),
        ("output.weight".to_owned(), vec![8, 4]),
        ("output_norm.weight".to_owned(), vec![8]),
    ];
    tensors.extend(matrix.iter().map(|name| (format!("blk.0.{name}.weight"), vec![8, 8])));
    tensors.extend(vector.iter().map(|name| (format!("blk.0.{name}.weight"), vec![8])));
    let (metadata, keys) = metadata();
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(keys.to_le_bytes());
    bytes.extend(metadata);
    let mut data: Vec<u8> = Vec::new();
    for (number, (name, dims)) in tensors.iter().enumerate() {
        text(&mut bytes, name);
        bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        let values = 0..dims.iter().product::<u64>();
        values.for_each(|at| data.extend((((at + number as u64) % 7) as f32 / 7.0).to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes
}
