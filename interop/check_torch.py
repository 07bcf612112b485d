"""Files of `torch.save`."""

import collections
import copy
import json

import torch

from compare import check_all_formats, plain


def run(place, ours, report):
    torch.manual_seed(1)
    for name, state in states().items():
        path = place / f"{name}.pt"
        torch.save(state, path)
        # The values as torch loads them, under dotted names.
        loaded = dict(flat(torch.load(path)))
        tensors = plain({name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)})
        # Tuples become lists in JSON, as they do in our reader.
        values = {name: json.loads(json.dumps(value)) for name, value in loaded.items() if name not in tensors}
        check_all_formats(report, ours, f"torch.save of {name}", path, tensors, values)


def states():
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    base, tied = torch.randn(6, 4), torch.randn(5, 3).bfloat16()
    return {
        "a-state-dict": model.state_dict(),
        "bf16": copy.deepcopy(model).bfloat16().state_dict(),
        "an-optimizer": optimizer.state_dict(),
        "everything": {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "seed": 2**63,
            "note": "naïve", "rates": [0.5, 0.25], "flag": True,
        },
        "views": {
            "transposed": base.t(), "strided": base[1::2, 1:3], "offset": base[2:],
            "expanded": torch.randn(1, 3).expand(4, 3), "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
            "empty": base[:, 2:2], "scalar": torch.tensor(1.25), "embedding": tied, "head": tied, "part": tied[1:3, 1:],
        },
        "dtypes": collections.OrderedDict(
            (str(dtype)[6:], torch.arange(7).to(dtype))
            for dtype in (torch.float64, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
                          torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool)
        ),
    }


def flat(value, path=()):
    """Leaves with their dotted names. A list of plain values is one value."""
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from flat(child, (*path, str(key)))
    elif isinstance(value, (list, tuple)) and any(isinstance(child, (dict, list, tuple, torch.Tensor)) for child in value):
        for number, child in enumerate(value):
            yield from flat(child, (*path, str(number)))
    else:
        yield ".".join(path), value
