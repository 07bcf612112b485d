"""Trains tokenizer.json on primer.md: byte-level BPE.

Uses only the standard library. Run it in this folder after changing the primer,
and review the difference: existing models cannot use the new tokenizer.
"""

import collections
import json
import pathlib
import re

VOCABULARY = 512
SPECIAL = ["<|begin|>", "<|end|>"]
SEPARATOR = "* * *"
# Words with a leading space, runs of digits, punctuation, white space.
PIECES = r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+"


def byte_letters():
    """The character that represents each byte in byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, further = {}, 256
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(further)
            further += 1
    return letters


def merge(word, pair):
    out, at = [], 0
    while at < len(word):
        if word[at : at + 2] == pair:
            out.append(pair[0] + pair[1])
            at += 2
        else:
            out.append(word[at])
            at += 1
    return tuple(out)


def merges(words, alphabet, count):
    known, found = set(alphabet), []
    while len(found) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        # Ties go to the first pair in alphabetical order.
        pair = min(pairs, key=lambda pair: (-pairs[pair], pair))
        words = {merge(word, pair): times for word, times in words.items()}
        assert pair[0] + pair[1] not in known
        known.add(pair[0] + pair[1])
        found.append(pair)
    return found


def main():
    here = pathlib.Path(__file__).parent
    letters = byte_letters()
    text = (here / "primer.md").read_text()
    words = collections.Counter()
    for document in text.split(f"\n{SEPARATOR}\n"):
        for piece in re.findall(PIECES, document.rstrip("\n")):
            words[tuple(letters[byte] for byte in piece.encode())] += 1
    alphabet = [letters[byte] for byte in range(256)]
    pairs = merges(dict(words), alphabet, VOCABULARY - len(SPECIAL) - len(alphabet))
    pieces = SPECIAL + alphabet + [left + right for left, right in pairs]
    begin = {"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Isolated", "invert": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    file = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, **special} for number, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {SPECIAL[0]: {"id": SPECIAL[0], "ids": [0], "tokens": [SPECIAL[0]]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {piece: number for number, piece in enumerate(pieces)},
            "merges": [list(pair) for pair in pairs],
        },
    }
    (here / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False, indent=1) + "\n")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 256,
    }
    (here / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


main()
