"""Views of adapters that PEFT has put into a model: without it, scaled, noise in its place, or without some layers.

Everything is done in place and undone: the weights of the model are used as they are, and of the adapter's only those
that differ in a view are replaced meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weightloom import _weightloom
from weightloom._errors import UserError
from weightloom._tensor_memory import bytes_of

if TYPE_CHECKING:
    import torch

ADAPTER_VIEWS = ("scalable", "attributable", "null_calibrated", "matched_noise")
"""All views that can be made of an adapter, as the native module names what a backend can do."""


@dataclass(frozen=True)
class Part:
    """The part of a decoder's parameter that rows of a parameter here are."""

    name: str
    place: int
    start: int
    rows: int


@dataclass(frozen=True)
class Low:
    """The LoRA matrices of one adapter in one module."""

    module: Any
    adapter: str
    parts: tuple[Part, ...]

    @property
    def is_embedding(self) -> bool:
        """Whether it updates an embedding table."""
        return self.adapter not in self.module.lora_A

    def matrices(self) -> list[torch.nn.Parameter]:
        """A, B, and the bias of B if there is one."""
        if self.is_embedding:
            return [self.module.lora_embedding_A[self.adapter], self.module.lora_embedding_B[self.adapter]]
        a, b = self.module.lora_A[self.adapter], self.module.lora_B[self.adapter]
        return [a.weight, b.weight, *([b.bias] if b.bias is not None else [])]


@dataclass(frozen=True)
class Replacement:
    """A parameter of a module that was trained as a whole."""

    module: Any
    old: torch.nn.Parameter
    new: torch.nn.Parameter
    part: Part


@dataclass
class TunerLayers:
    """The layers of a model that PEFT has wrapped."""

    model: Any
    """The model of transformers."""
    layers: dict[str, Any]
    """Wrapped layers by the names of the modules they wrap."""
    adapters: tuple[str, ...]
    """The active adapters."""
    views: tuple[str, ...] = ()
    """What can be made of the adapter beside `base` and `tuned`."""
    decoder_layers: tuple[str, ...] = ()
    """Names of the decoder's layers."""
    max_positions: int | None = None
    """The longest sequence, if there is one."""
    notes: list[str] = field(default_factory=list)
    lows: list[Low] = field(default_factory=list)
    replacements: list[Replacement] = field(default_factory=list)

    @classmethod
    def of(cls, model: Any) -> TunerLayers:
        """Finds the layers of a model.

        Raises:
            UserError: the base cannot be seen through the adapter.
        """
        layers = dict(_wrapped(model))
        merged = next((name for name, layer in layers.items() if layer.merged_adapters), None)
        if merged is not None:
            raise UserError(
                f"cannot judge the adapter: it is merged into `{merged}`", "call `model.unmerge_adapter()` first"
            )
        adapters = sorted({name for layer in layers.values() for name in layer.active_adapters})
        configs = getattr(model, "peft_config", {})
        for name in adapters:
            if getattr(configs.get(name), "bias", "none") not in (None, "none"):
                raise UserError(
                    f"cannot judge the adapter `{name}`: it trained biases of the base in place",
                    "pass the base as a model of its own: `base=…`",
                )
        found = cls(model, layers, tuple(adapters))
        found._describe()
        return found

    def _describe(self) -> None:
        known = _decoder(self.model, self._published())
        self.decoder_layers, self.max_positions = known.layers, known.max_positions
        other = sorted({_kind(layer) for layer in self.layers.values() if not _is_plain(layer)})
        if other:
            self.notes.append(
                f"the adapter has {' and '.join(other)} layers: scaled, noise and ablated views are not available"
            )
            return
        self.views = ("scalable", "attributable")
        for name, layer in self.layers.items():
            if hasattr(layer, "modules_to_save"):
                self._replacements(name, layer, known)
                continue
            parts = tuple(sorted(known.parts[f"{name}.weight"], key=lambda part: part.place))
            self.lows += [Low(layer, adapter, parts) for adapter in layer.active_adapters if _has(layer, adapter)]
        if len(self.adapters) > 1:
            self.notes.append("several adapters are active: noise views are not available")
            return
        matrices = (matrix for low in self.lows for matrix in low.matrices())
        if any(parameter.is_meta for parameter in (*matrices, *(new.new for new in self.replacements))):
            self.views = ("attributable",) if self.replacements else self.views
            missing = "scaled and noise views" if self.replacements else "noise views"
            self.notes.append(f"the adapter is offloaded: {missing} are not available")
            return
        self.views = ADAPTER_VIEWS
        if known.note:
            self.notes.append(known.note)

    def _replacements(self, name: str, layer: Any, known: _Decoder) -> None:
        for adapter in set(layer.active_adapters) & layer.modules_to_save.keys():
            old = dict(layer.original_module.named_parameters())
            for parameter, new in layer.modules_to_save[adapter].named_parameters():
                part = known.parts[f"{name}.{parameter}"][0]
                self.replacements.append(Replacement(layer, old[parameter], new, part))

    def _published(self) -> dict[str, int]:
        """The parameters that the adapter changes, with their numbers of outputs."""
        found: dict[str, int] = {}
        for name, layer in self.layers.items():
            if hasattr(layer, "modules_to_save"):
                for parameter, value in layer.original_module.named_parameters():
                    found[f"{name}.{parameter}"] = value.shape[0]
            elif hasattr(layer, "out_features"):
                found[f"{name}.weight"] = layer.out_features
        return found


class AdapterViews:
    """Switches between the views of an adapter in place."""

    def __init__(self, layers: TunerLayers) -> None:
        self._layers = layers
        self._undo = ExitStack()

    def select(self, view: Any) -> None:
        """Makes a view, as the native module describes it, and undoes the one before."""
        self.close()
        # Until it is complete, a failure undoes what was done of it.
        with ExitStack() as undo:
            self._make(view, undo)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Undoes the view."""
        self._undo.close()

    def _make(self, view: Any, undo: ExitStack) -> None:
        if view == "base":
            self._enable(undo, lambda _: False)
            return
        if view == "tuned":
            self._enable(undo, lambda _: True)
            return
        ((kind, value),) = view.items()
        if kind == "without":
            removed = tuple(value["modules"])
            gone = {id(low.module) for low in self._layers.lows if _is_below(low.parts[0].name, removed)}
            gone |= {id(new.module) for new in self._layers.replacements if _is_below(new.part.name, removed)}
            self._enable(undo, lambda layer: id(layer) not in gone)
            return
        self._enable(undo, lambda _: True)
        if kind == "scaled":
            self._scale(undo, value)
        elif kind == "noise":
            self._replace(undo, _weightloom.AdapterNoise.normal(value["seed"], value["init_scale"], value["rank_scale"]))
        else:
            self._replace(undo, _weightloom.AdapterNoise.matched(value["seed"]))

    def _enable(self, undo: ExitStack, is_enabled: Callable[[Any], bool]) -> None:
        # PEFT's own switch, `enable_adapters`, changes `requires_grad` too.
        for layer in self._layers.layers.values():
            undo.callback(setattr, layer, "_disable_adapters", layer._disable_adapters)
            layer._disable_adapters = not is_enabled(layer)

    def _scale(self, undo: ExitStack, strength: float) -> None:
        # A module may have several adapters, and is blended once.
        blended = {
            id(low.module): low.module for low in self._layers.lows if low.adapter in low.module.lora_magnitude_vector
        }
        for module in blended.values():
            _blend(undo, module, strength)
        for low in self._layers.lows:
            if id(low.module) not in blended:
                scaling = low.module.scaling
                undo.callback(scaling.__setitem__, low.adapter, scaling[low.adapter])
                scaling[low.adapter] *= strength
        for new in self._layers.replacements:
            old = new.old.detach()
            _swap(undo, new.new, old + (new.new.detach().to(old.dtype) - old) * strength)

    def _replace(self, undo: ExitStack, noise: _weightloom.AdapterNoise) -> None:
        """Replaces the tensors in the order of the decoder's parameters, as for the saved adapter."""
        order = [(part.place, low, part) for low in self._layers.lows for part in low.parts]
        made: dict[int, list[list[torch.Tensor]]] = {}
        for _, low, part in sorted(order, key=lambda one: one[0]):
            made.setdefault(id(low), []).append(_new_matrices(low, part, noise))
        for low in self._layers.lows:
            for parameter, value in zip(low.matrices(), _joined(low, made[id(low)]), strict=True):
                _swap(undo, parameter, value)
        for new in sorted(self._layers.replacements, key=lambda one: one.part.name):
            old = new.old.detach().float()
            difference = _replaced(noise, "replacement", new.new.detach().float() - old)
            if difference is not None:
                _swap(undo, new.new, old + difference.to(old.device))


@dataclass(frozen=True)
class _Decoder:
    """The decoder that a model is to the native module."""

    layers: tuple[str, ...]
    max_positions: int | None
    parts: dict[str, list[Part]]
    note: str = ""


def _decoder(model: Any, published: dict[str, int]) -> _Decoder:
    config = json.dumps(model.config.to_dict(), default=str)
    info = _weightloom.decoder_info(config, list(published.items()))
    if info is not None:
        parts = {
            name: [Part(*part) for part in parts] for name, parts in zip(published, info.parts, strict=True) if parts
        }
        if parts.keys() == published.keys():
            return _Decoder(_layer_names(info.layers), info.max_positions, parts)
    text_config = model.config.get_text_config()
    unknown = {name: [Part(_layer_name(name), place, 0, rows)] for place, (name, rows) in enumerate(published.items())}
    note = (
        f"no family here describes the adapter's modules in a `{model.config.model_type}` model: noise in their place is "
        "not that of the saved adapter"
    )
    limit = getattr(text_config, "max_position_embeddings", None)
    return _Decoder(_layer_names(getattr(text_config, "num_hidden_layers", 0)), limit, unknown, note)


def _layer_names(count: int) -> tuple[str, ...]:
    return tuple(f"model.layers.{layer}" for layer in range(count))


def _layer_name(name: str) -> str:
    """A name with the decoder's name of its layer."""
    return re.sub(r"^.*?\.(\d+)\.", r"model.layers.\1.", name, count=1)


def _wrapped(model: Any) -> Iterator[tuple[str, Any]]:
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    for name, module in model.named_modules():
        if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)):
            yield name, module


def _kind(layer: Any) -> str:
    """What kind of adapter a layer is of."""
    module = type(layer).__module__
    if module.startswith("peft.tuners.") and not module.startswith("peft.tuners.lora"):
        return module.split(".")[2]
    return type(layer).__name__


def _is_plain(layer: Any) -> bool:
    """Whether it is LoRA or DoRA of a projection or an embedding, or a module that was trained as a whole."""
    if hasattr(layer, "modules_to_save"):
        names = dict(layer.original_module.named_parameters())
        copies = layer.modules_to_save.values()
        return not _is_transposed(layer.original_module) and all(
            dict(copy.named_parameters()).keys() == names.keys() for copy in copies
        )
    if not type(layer).__module__.startswith("peft.tuners.lora"):
        return False
    if type(layer).__name__ in ("ParamWrapper", "MultiheadAttention"):
        return False
    variants = [adapter for adapter in getattr(layer, "lora_variant", {}) if adapter not in layer.lora_magnitude_vector]
    return not variants and all(a.weight.ndim == 2 for a in layer.lora_A.values())


def _is_transposed(module: Any) -> bool:
    return type(module).__name__ == "Conv1D"


def _has(layer: Any, adapter: str) -> bool:
    return adapter in layer.lora_A or adapter in layer.lora_embedding_A


def _is_below(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a name begins with whole components of a prefix."""
    return any(name.startswith(f"{prefix.removesuffix('.')}.") for prefix in prefixes)


def _blend(undo: ExitStack, layer: Any, strength: float) -> None:
    """Scales all that a layer adds to what it wraps. DoRA divides by norms, which a factor of its matrices changes."""
    tuned, own = layer.forward, layer.__dict__.get("forward")

    def blended(*args: Any, **kwargs: Any) -> Any:
        base = layer.base_layer(*args, **kwargs)
        return base + (tuned(*args, **kwargs) - base) * strength

    layer.forward = blended
    if own is None:
        undo.callback(layer.__dict__.pop, "forward", None)
    else:
        undo.callback(setattr, layer, "forward", own)


def _swap(undo: ExitStack, parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Lets a parameter have another value meanwhile. Its own memory is not touched."""
    own = parameter.data
    undo.callback(setattr, parameter, "data", own)
    parameter.data = value.to(own.device, own.dtype)


def _new_matrices(low: Low, part: Part, noise: _weightloom.AdapterNoise) -> list[torch.Tensor]:
    """New values of A, B and the bias for a part of the outputs."""
    a, b, *bias = (value.detach().float() for value in low.matrices())
    kinds = ("embedding_a", "embedding_b") if low.is_embedding else ("a", "b")
    # The decoder looks rows of an embedding's A up.
    tensors = [a.T if low.is_embedding else a, b[part.start : part.start + part.rows]]
    tensors += [value[part.start : part.start + part.rows] for value in bias]
    made: list[torch.Tensor] = []
    for kind, tensor in zip((*kinds, "bias"), tensors, strict=False):
        replaced = _replaced(noise, kind, tensor)
        made.append(tensor if replaced is None else replaced)
    if low.is_embedding:
        made[0] = made[0].T
    return made


def _replaced(noise: _weightloom.AdapterNoise, kind: str, tensor: torch.Tensor) -> torch.Tensor | None:
    import torch

    values = tensor.detach().to("cpu", torch.float32).contiguous()
    made = noise.replace(kind, list(values.shape), bytes_of(values))
    return None if made is None else torch.frombuffer(made, dtype=torch.float32).reshape(values.shape)


def _joined(low: Low, made: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """The matrices of a module from those of its parts. Parts with matrices A of their own are one module of a higher
    rank, in which each part has its block of B.
    """
    import torch

    if len(made) == 1:
        return made[0]
    # In the order of the outputs.
    inside = sorted(zip(low.parts, made, strict=True), key=lambda one: one[0].start)
    tensors = [[value.cpu() for value in values] for _, values in inside]
    a, b, *bias = (torch.cat(values) for values in zip(*tensors, strict=True))
    blocks = b.new_zeros(len(b), len(a))
    row = column = 0
    for new_a, new_b, *_ in tensors:
        blocks[row : row + len(new_b), column : column + len(new_a)] = new_b
        row, column = row + len(new_b), column + len(new_a)
    return [a, blocks, *bias]
