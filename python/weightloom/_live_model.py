"""Models in the program's memory, as the native module asks them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightloom._adapter_views import AdapterViews, TunerLayers
from weightloom._errors import UserError
from weightloom._tensor_memory import bytes_of

if TYPE_CHECKING:
    import torch

    from weightloom._weightloom import Buffer

_LOGIT_ROWS = 128
"""Rows of logits that are normalized at once."""


@dataclass
class Compared:
    """What is compared, and what its views are."""

    base: Any
    """The module that runs the base: the same as `tuned` if an adapter is switched."""
    tuned: Any
    base_name: str
    tuned_name: str
    layers: TunerLayers | None = None
    """The layers of the adapter, if its views are made of them."""
    max_positions: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_adapter(self) -> bool:
        """Whether the tuned model is the base with an adapter."""
        return self.base is self.tuned

    @property
    def views(self) -> tuple[str, ...]:
        """What can be made of the adapter beside `base` and `tuned`."""
        return self.layers.views if self.layers else ()

    @property
    def decoder_layers(self) -> tuple[str, ...]:
        """Names of the layers that can be left out."""
        return self.layers.decoder_layers if self.layers else ()

    @property
    def vocabulary(self) -> int:
        """The number of logits of a position."""
        return vocabulary_of(self.tuned)


def compared(base: Any, tuned: Any) -> Compared:
    """What two modules, or one with an adapter, are to be compared as.

    Raises:
        UserError: they cannot be compared.
    """
    tuned = _unwrapped(tuned)
    base = tuned if base is None else _unwrapped(base)
    inner = model_of(tuned)
    check_causal(inner, "tuned")
    if base is tuned or base is inner:
        return _with_adapter(tuned, inner)
    other = model_of(base)
    check_causal(other, "base")
    if vocabulary_of(base) != vocabulary_of(tuned):
        raise UserError(
            f"cannot compare vocabularies of {vocabulary_of(base)} and {vocabulary_of(tuned)} tokens",
            "resize the base: `base.resize_token_embeddings(…)`",
        )
    names = (_name(other), _name(inner))
    limits = [limit for model in (other, inner) if (limit := _max_positions(model)) is not None]
    return Compared(base, tuned, *names, max_positions=min(limits, default=None))


def _with_adapter(tuned: Any, inner: Any) -> Compared:
    name = _name(inner)
    config = _prompt_config(tuned)
    if config is not None:
        kind = str(getattr(config.peft_type, "value", config.peft_type)).lower()
        note = f"the adapter is of the kind `{kind}`, not LoRA: scaled, noise and ablated views are not available"
        adapter = str(tuned.active_adapter)
        return Compared(tuned, tuned, name, adapter, max_positions=_max_positions(inner), notes=(note,))
    layers = TunerLayers.of(inner)
    if not layers.layers:
        raise UserError(
            f"cannot judge `{name}`: it has no adapter to switch off", "pass the model that it was tuned from: `base=…`"
        )
    return Compared(
        tuned, tuned, name, " + ".join(layers.adapters), layers, layers.max_positions, notes=tuple(layers.notes)
    )


_WRAPPERS = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module", "DataParallel": "module"}
"""Modules around a model, which would compile each shape of batches or wait for other ranks."""


def _unwrapped(model: Any) -> Any:
    while (inside := _WRAPPERS.get(type(model).__name__)) is not None:
        model = getattr(model, inside)
    return model


def model_of(model: Any) -> Any:
    """The model of transformers that PEFT has put an adapter into."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _prompt_config(model: Any) -> Any | None:
    """The config of an adapter that is not inside of layers, as prompts are."""
    if not hasattr(model, "get_base_model"):
        return None
    config = model.peft_config[model.active_adapter]
    is_outside = getattr(config, "is_prompt_learning", False) or getattr(config, "is_adaption_prompt", False)
    return config if is_outside else None


@contextmanager
def _disabled(model: Any) -> Iterator[None]:
    """Runs a model without its prompts. PEFT overrides methods of the object, and would leave them overridden."""
    before = dict(vars(model))
    try:
        with model.disable_adapter():
            yield
    finally:
        for name in vars(model).keys() - before.keys():
            delattr(model, name)


def check_causal(model: Any, what: str) -> None:
    """Checks that a model predicts next tokens, and has weights.

    Raises:
        UserError: it does not.
    """
    kind = type(model).__name__
    can_generate = getattr(model, "can_generate", None)
    if can_generate is None or not hasattr(model, "get_output_embeddings") or not hasattr(model, "config"):
        raise UserError(
            f"cannot judge `{what}`: {kind} is not a model of transformers or PEFT", "pass a `PreTrainedModel` or `PeftModel`"
        )
    if model.config.is_encoder_decoder or not can_generate() or model.get_output_embeddings() is None:
        raise UserError(
            f"cannot judge `{what}`: {kind} is not a causal language model", "load it with `AutoModelForCausalLM`"
        )
    is_offloaded = any(hasattr(module, "_hf_hook") for module in model.modules())
    if not is_offloaded and any(parameter.is_meta for parameter in model.parameters()):
        raise UserError(f"cannot judge `{what}`: it is on the meta device, without weights", "load its weights first")


def vocabulary_of(model: Any) -> int:
    """The number of logits of a position."""
    return int(model_of(model).config.get_text_config().vocab_size)


def _name(model: Any) -> str:
    return str(getattr(model.config, "_name_or_path", "") or type(model).__name__)


def _max_positions(model: Any) -> int | None:
    """The longest sequence, if there is one."""
    from weightloom._weightloom import decoder_info

    info = decoder_info(json.dumps(model.config.to_dict(), default=str), [])
    if info is not None:
        return info.max_positions
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


@contextmanager
def undisturbed(*models: Any) -> Iterator[None]:
    """Runs modules in evaluation mode, and leaves modes and `requires_grad` as they were."""
    modules = {id(module): module for model in models for module in model.modules()}.values()
    training = [module for module in modules if module.training]
    gradients = [(parameter, parameter.requires_grad) for model in models for parameter in model.parameters()]
    try:
        # Not `eval()`: a module may do more there than set its flag.
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
        for parameter, flag in gradients:
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)


class LiveModel:
    """Runs batches of tokens in views. The native module calls it, always on one thread.

    Gradients are off, and inference mode is too: modules may keep tensors for later, such as tables of positions, and
    those of inference mode could never be trained with.
    """

    def __init__(self, comparison: Compared) -> None:
        self._comparison = comparison
        self._switch = AdapterViews(comparison.layers) if comparison.layers else None
        self._disabled = ExitStack()
        self._view = ""
        self._generation: _Generation | None = None
        self._alive: list[torch.Tensor] = []

    def close(self) -> None:
        """Leaves the model as it was."""
        self._view, self._generation = "", None
        self._disabled.close()
        if self._switch is not None:
            self._switch.close()

    def forward(
        self, view: str, width: int, tokens: Buffer, lengths: Buffer, scored: Buffer, after: Buffer, hidden: Buffer
    ) -> tuple[Any, Any, Any]:
        """Runs rows of tokens.

        Args:
            view: the view, as JSON.
            width: the number of tokens of each row.
            tokens: the rows, filled up with zeros.
            lengths: the number of tokens of each row that count.
            scored: the row, the place and the token of each token to score.
            after: the rows after which logits are asked for.
            hidden: the rows of which means of hidden states are asked for.

        Returns:
            Log-probabilities, logits and means, as memory that holds until the next call.
        """
        import torch

        with torch.no_grad():
            model = self._select(view)
            device = _device(model)
            ids, counts = _integers(tokens).reshape(-1, width).to(device), _integers(lengths).to(device)
            targets = _integers(scored).reshape(-1, 3).to(device)
            last, means = _integers(after).to(device), _integers(hidden).to(device)
            asked = torch.cat([targets[:, 0], last])
            places = torch.cat([targets[:, 1] - 1, counts[last] - 1])
            head = _Head(asked, places, means, counts, width)
            mask = torch.arange(width, device=device) < counts[:, None]
            logits, _ = head.run(model, {"input_ids": ids, "attention_mask": mask.long(), "use_cache": False})
            count, wanted = len(targets), targets[:, 2].to(logits.device)
            logprobs = torch.zeros(count, dtype=torch.float32, device=logits.device)
            for start in range(0, count, _LOGIT_ROWS):
                rows = slice(start, min(start + _LOGIT_ROWS, count))
                logprobs[rows] = logits[rows].float().log_softmax(-1).gather(1, wanted[rows, None])[:, 0]
            return self._memory([logprobs, logits[count:], head.means])

    def start_generation(self, view: str, width: int, tokens: Buffer, lengths: Buffer) -> Any:
        """Begins to continue rows of tokens, and returns the logits after each."""
        import torch

        with torch.no_grad():
            model = self._select(view)
            ids, counts = _integers(tokens).reshape(-1, width), _integers(lengths)
            # Prompts run in front of the model, which its cache does not know of.
            is_cached = _prompt_config(model) is None
            self._generation = _Generation(model, [row[:count] for row, count in zip(ids, counts, strict=True)], is_cached)
            return self._memory([self._generation.start()])[0]

    def continue_generation(self, tokens: Buffer) -> Any:
        """Appends a token to each row, and returns the logits after each."""
        import torch

        if self._generation is None:
            raise UserError("cannot continue: no generation has begun", "call `start_generation` first")
        with torch.no_grad():
            return self._memory([self._generation.step(_integers(tokens))])[0]

    def _select(self, view: str) -> Any:
        """Makes a view, and returns the module that runs it."""
        compared, asked = self._comparison, json.loads(view)
        module = compared.base if asked == "base" else compared.tuned
        if view == self._view:
            return module
        self.close()
        if self._switch is not None:
            self._switch.select(asked)
        elif compared.is_adapter and asked == "base":
            self._disabled.enter_context(_disabled(module))
        self._view = view
        return module

    def _memory(self, tensors: list[torch.Tensor]) -> tuple[Any, ...]:
        import torch

        self._alive = [tensor.to("cpu", torch.float32).contiguous() for tensor in tensors]
        return tuple(bytes_of(tensor) for tensor in self._alive)


class _Head:
    """The places of a batch at which a model's logits are computed, and no others."""

    def __init__(
        self, rows: torch.Tensor, places: torch.Tensor, means: torch.Tensor, counts: torch.Tensor, width: int
    ) -> None:
        self._rows, self._places, self._mean_rows, self._counts, self._width = rows, places, means, counts, width
        self._is_called = False
        self.means: torch.Tensor = counts.new_zeros(0)

    def run(self, model: Any, inputs: dict[str, Any]) -> tuple[torch.Tensor, Any]:
        """Logits at the places, in their order, and all that the model returned."""
        head = model_of(model).get_output_embeddings()
        hook = head.register_forward_pre_hook(self._select)
        try:
            output = model(**inputs)
        finally:
            hook.remove()
        if not self._is_called:
            kind = type(model_of(model)).__name__
            raise UserError(f"cannot judge {kind}: it does not call its output embeddings", "judge its saved files")
        return output.logits[0][: len(self._rows)], output

    def _select(self, _: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        import torch

        self._is_called = True
        states = inputs[0]
        counts = self._counts.to(states.device)
        # Virtual tokens may come first.
        first = states.shape[1] - self._width
        if len(self._mean_rows):
            inside = (states[row, first : first + counts[row]] for row in self._mean_rows.tolist())
            self.means = torch.stack([row.float().mean(0) for row in inside])
        # At least one, which is cut off again: not every head accepts none.
        rows = self._rows if len(self._rows) else self._counts.new_zeros(1)
        places = self._places if len(self._rows) else self._counts.new_zeros(1)
        chosen = states[rows.to(states.device), first + places.to(states.device)]
        return (chosen[None], *inputs[1:])


class _Generation:
    """Rows that are continued together."""

    def __init__(self, model: Any, rows: list[torch.Tensor], is_cached: bool) -> None:
        self._model, self._rows, self._is_cached = model, rows, is_cached
        self._device = _device(model)
        self._cache: Any = None
        self._mask = rows[0].new_zeros(0)

    def start(self) -> torch.Tensor:
        """Runs the prompts, and returns the logits after each."""
        return self._prefill() if self._is_cached else self._whole()

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Appends a token to each row."""
        import torch

        if not self._is_cached:
            self._rows = [torch.cat([row, token[None]]) for row, token in zip(self._rows, tokens, strict=True)]
            return self._whole()
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        return self._run(tokens[:, None].to(self._device))

    def _prefill(self) -> torch.Tensor:
        """Runs the prompts, filled up on the left so that all end in the same place."""
        import torch

        width = max(len(row) for row in self._rows)
        ids = torch.zeros(len(self._rows), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(self._rows):
            ids[number, width - len(row) :] = row
            mask[number, width - len(row) :] = 1
        self._mask = mask.to(self._device)
        return self._run(ids.to(self._device))

    def _run(self, ids: torch.Tensor) -> torch.Tensor:
        """Runs tokens after those in the cache."""
        import torch

        count, width = ids.shape
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": self._mask, "use_cache": True}
        if self._cache is not None:
            inputs["past_key_values"] = self._cache
        if "position_ids" in inspect.signature(model_of(self._model).forward).parameters:
            inputs["position_ids"] = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -width:]
        rows = torch.arange(count, device=self._device)
        none = rows[:0]
        head = _Head(rows, torch.full_like(rows, width - 1), none, torch.full_like(rows, width), width)
        logits, output = head.run(self._model, inputs)
        self._cache = getattr(output, "past_key_values", None)
        if self._cache is None:
            # A state of another kind than a cache.
            self._is_cached = False
            return self._whole()
        return logits

    def _whole(self) -> torch.Tensor:
        """Runs the rows from their start."""
        import torch

        counts = torch.tensor([len(row) for row in self._rows])
        ids = torch.nn.utils.rnn.pad_sequence(self._rows, batch_first=True).to(self._device)
        width = ids.shape[1]
        mask = (torch.arange(width) < counts[:, None]).long().to(self._device)
        counts = counts.to(self._device)
        rows = torch.arange(len(counts), device=self._device)
        head = _Head(rows, counts - 1, rows[:0], counts, width)
        logits, _ = head.run(self._model, {"input_ids": ids, "attention_mask": mask, "use_cache": False})
        return logits


def _integers(buffer: Buffer) -> torch.Tensor:
    import torch

    return torch.frombuffer(buffer, dtype=torch.int64) if len(buffer) else torch.zeros(0, dtype=torch.int64)


def _device(model: Any) -> torch.device:
    """The device that tokens go to."""
    import torch

    embeddings = model_of(model).get_input_embeddings()
    # What accelerate has offloaded is on the meta device until it runs.
    offloaded = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
    if offloaded is not None:
        return torch.device(offloaded)
    weight = getattr(embeddings, "weight", None)
    device: torch.device = (weight if weight is not None else next(model.parameters())).device
    return device
