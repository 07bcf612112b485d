"""Makes the encoder beside this file, random weights, and what transformers says of some sentences.

    python make.py
"""

import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HERE = Path(__file__).parent
SENTENCES = ["a boat waits outside", "The lamp is green.", "boats, lamps and bells", "green", "a " * 40, "zebra"]


def main():
    words = "[PAD] [UNK] [CLS] [SEP] a the boat lamp bell is green wait and out ##s ##side , .".split()
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(HERE / "tokenizer.json"))
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=24,
        initializer_range=0.3,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    for name, value in model.named_parameters():
        if "LayerNorm" in name or name.endswith("bias"):
            torch.nn.init.normal_(value, mean=1.0 if name.endswith("weight") else 0.0, std=0.2)
    model.save_pretrained(HERE)
    (HERE / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    expected = []
    for sentence in SENTENCES:
        ids = tokenizer.encode(sentence).ids
        if len(ids) > 20:
            ids = ids[:19] + ids[-1:]
        with torch.no_grad():
            hidden = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        expected.append({"sentence": sentence, "vector": torch.nn.functional.normalize(hidden, dim=0).tolist()})
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1))


main()
