"""Models that generate and score text."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, overload

from weightloom import _weightloom
from weightloom._errors import UserError
from weightloom._html import headline, page, table
from weightloom._progress import new_progress
from weightloom._prompt import Conversation, GenerateOptions, NativeOptions, Prompt, Prompts, Rows
from weightloom._score import Score
from weightloom._stored_tensor import array_over, tensor_over

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy
    import torch

    Path: TypeAlias = str | os.PathLike[str]
    Messages: TypeAlias = Sequence[Mapping[str, Any]]


class _LoadOptions(NamedTuple):
    """Options of a load, as the native module takes them."""

    adapter: str | None
    adapter_scale: float | None
    merge: bool
    device: str
    dtype: str | None
    mmap: bool
    strict: bool
    ignore_mismatched_sizes: bool
    asset_dirs: list[str]
    model_paths: list[str]
    environments: list[str]
    offline: bool


class Model:
    """A loaded model with its tokenizer, which generates and scores text.

    Any number of threads may use a model at once: their calls run in parallel, and return what they would return one
    after the other. A model does not survive a fork; start processes with the method `spawn`. Its memory is freed with
    the last reference to it.

    Example:
        >>> model = wl.Model("weightloom-quickstart/pretrain")
        >>> model
        <Model weightloom-quickstart/pretrain: llama, ... parameters, f32, on cpu>
        >>> text = model.generate("A rank is", max_new_tokens=8)
        >>> tuned = wl.Model("weightloom-quickstart/tune")
        >>> tuned.adapter
        '.../step_...'
    """

    __slots__ = ("__weakref__", "name", "native")

    def __init__(
        self,
        name: Path,
        adapter: Path | None = None,
        *,
        adapter_scale: float | None = None,
        merge: bool = False,
        device: str | torch.device = "auto",
        dtype: object | None = None,
        mmap: bool = False,
        strict: bool = True,
        ignore_mismatched_sizes: bool = False,
        asset_dir: Path | Iterable[Path] = (),
        model_path: Path | Iterable[Path] = (),
        env: str | Iterable[str] = (),
        offline: bool = False,
    ) -> None:
        """Loads a model, as `weightloom generate` does.

        Args:
            name: a card, a folder, a file, a run (its newest checkpoint), an adapter (its base model with the adapter),
                a URL, or a model on Hugging Face such as `org/name`, which is downloaded once.
            adapter: a PEFT or MLX adapter to apply: its folder, the run that trained it, or `org/name`.
            adapter_scale: the strength of the adapter, from 0 (off) to 1 (as trained, the default).
            merge: merge the adapter into the weights.
            device: `"auto"` (a GPU if there is one), `"cpu"`, `"cuda"` or `"cuda:N"`.
            dtype: the dtype to compute in, of torch or by name; that of the checkpoint by default.
            mmap: map the weights instead of reading them. The files must be on a local disk and must not change.
            strict: fail if the checkpoint lacks tensors or has others; else warn, and initialize what is missing.
            ignore_mismatched_sizes: initialize tensors of another shape, too.
            asset_dir: folders of cards, which override others.
            model_path: folders of described models.
            env: environments whose cards come first.
            offline: use only local files.

        Raises:
            UserError: there is no such model, or the options do not fit.
            CheckFailed: the checkpoint is damaged, or does not match the model.
            OperationalError: it cannot be read or downloaded, or the GPU fails.
        """
        from weightloom._dtypes import native_name

        self.name = os.fspath(name)
        """The name that it was loaded by."""
        options = _LoadOptions(
            adapter=None if adapter is None else os.fspath(adapter),
            adapter_scale=adapter_scale,
            merge=merge,
            device=str(device),
            dtype=None if dtype is None else native_name(dtype),
            mmap=mmap,
            strict=strict,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
            asset_dirs=_several(asset_dir),
            model_paths=_several(model_path),
            environments=_several(env),
            offline=offline,
        )
        progress = new_progress()
        try:
            self.native = _weightloom.load_model(self.name, options, progress)
            """The native half, which computes."""
        finally:
            progress.close()
        for warning in self.native.warnings:
            warnings.warn(warning, RuntimeWarning, stacklevel=2)

    @property
    def config(self) -> dict[str, Any]:
        """The model's `config.json`, with the defaults of its family."""
        config: dict[str, Any] = json.loads(self.native.config)
        return config

    @property
    def num_parameters(self) -> int:
        """The number of parameters, without those of an adapter."""
        return self.native.num_parameters

    @property
    def family(self) -> str:
        """The family, such as `llama`."""
        return self.native.family

    @property
    def location(self) -> str:
        """Where its files are: a path or a URL."""
        return self.native.location

    @property
    def adapter(self) -> str | None:
        """The folder of the adapter, if there is one."""
        folder = self.native.adapter
        return None if folder is None else os.fspath(folder)

    @property
    def device(self) -> str:
        """The device that computes, such as `cpu` or `cuda:0`."""
        return self.native.device

    @property
    def dtype(self) -> str:
        """The dtype of the parameters, such as `bf16`."""
        return self.native.dtype

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens that it knows: the last dim of `logits`."""
        return self.native.vocabulary

    @property
    def context_length(self) -> int | None:
        """The number of positions that it was trained for, if that is known."""
        return self.native.context_length

    @property
    def is_chat(self) -> bool:
        """Whether prompts get the chat template unless `chat` says otherwise: the training data were chats."""
        return self.native.is_chat

    @property
    def notes(self) -> tuple[str, ...]:
        """How the name was resolved, and how prompts are formatted, as the command prints it."""
        return tuple(self.native.notes)

    @overload
    def generate(
        self, prompt: Prompt, *, chat: bool | None = None, system: str | None = None, **options: Unpack[GenerateOptions]
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]] | tuple[str, ...],
        *,
        chat: bool | None = None,
        system: str | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[str]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        *,
        chat: bool | None = None,
        system: str | None = None,
        **options: Unpack[GenerateOptions],
    ) -> str | list[str]:
        """Generates text after a prompt, or after each of a list of prompts, in one batch.

        The text is that of `weightloom generate` with the same options, without the prompt. Each prompt of a list draws
        random numbers of its own. Ctrl-C ends the generation between two tokens.

        Args:
            prompt: a text, or the tokens of one; or a list of texts or of lists of tokens.
            chat: apply the chat template to texts; by default, if the adapter or the model was trained on chats.
            system: the system message of the chat; implies `chat`.
            **options: see `GenerateOptions`: `max_new_tokens`, `sample`, `temperature`, `top_k`, `top_p`, `min_p`,
                `repetition_penalty`, `seed`, `stop`, `ignore_eos`.

        Returns:
            A text for one prompt, a list of texts for a list.

        Raises:
            UserError: an option is not possible, the prompt is too long, or there is no chat template.

        Example:
            >>> model = wl.Model("weightloom-quickstart/pretrain")
            >>> text = model.generate("A rank is", max_new_tokens=8)
            >>> texts = model.generate(["A rank is", "A shard is"], max_new_tokens=8)
            >>> texts[0] == text
            True
            >>> drawn = model.generate("A rank is", temperature=0.8, top_p=0.9, seed=3, stop=["."])
        """
        rows, is_one, is_chat = self._encoded(prompt, chat, system)
        if not rows:
            return []
        texts = self.native.generate(rows, NativeOptions(**options, is_chat=is_chat).checked())
        return texts[0] if is_one else texts

    def chat(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        documents: Messages | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> str:
        """Generates the assistant's answer in a conversation.

        Args:
            messages: dicts with `role` and `content`, and what else the chat template reads.
            tools: schemas of tools that the model may call.
            documents: documents that the model may quote.
            variables: other variables of the chat template, such as `{"enable_thinking": False}`.
            **options: as for `generate`.

        Returns:
            The answer, without the tokens that end it.

        Raises:
            UserError: there is no chat template, or it rejects the conversation.

        Example:
            >>> model = wl.Model("weightloom-quickstart/pretrain")
            >>> model.chat([{"role": "user", "content": "What is a rank?"}], max_new_tokens=8)
            Traceback (most recent call last):
            weightloom._errors.UserError: the model has no chat template
            hint: use a plain prompt, or the instruct version of the model
        """
        conversation = Conversation.of(messages, tools, documents, variables)
        native = NativeOptions(**options, is_chat=True).checked()
        [text] = self.native.generate([self.native.encode_chat(conversation)], native)
        return text

    def stream(
        self,
        prompt: Prompt | Messages,
        *,
        chat: bool | None = None,
        system: str | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generator[str, None, None]:
        """Generates text piece by piece, while it is read.

        The pieces are whole characters; together they are the text of `generate` or `chat`. At most one piece is
        generated ahead. The generation ends when the iterator is closed or dropped.

        Args:
            prompt: a text, the tokens of one, or the messages of a conversation.
            chat: as for `generate`.
            system: as for `generate`.
            **options: as for `generate`.

        Returns:
            An iterator of pieces.

        Raises:
            UserError: as for `generate`.

        Example:
            >>> model = wl.Model("weightloom-quickstart/pretrain")
            >>> pieces = list(model.stream("A rank is", max_new_tokens=8))
            >>> "".join(pieces) == model.generate("A rank is", max_new_tokens=8)
            True
        """
        if _is_conversation(prompt):
            tokens = self.native.encode_chat(Conversation.of(prompt, None, None, None))  # type: ignore[arg-type]
            is_chat = True
        else:
            rows, is_one, is_chat = self._encoded(prompt, chat, system)  # type: ignore[arg-type]
            if not is_one:
                raise UserError("cannot stream the texts of several prompts", "stream one, or use `generate`")
            tokens = rows[0]
        native = NativeOptions(**options, is_chat=is_chat).checked()
        return _pieces(_weightloom.TextStream(self.native, tokens, native))

    @overload
    def score(self, text: Prompt, *, top: int = 0) -> Score: ...

    @overload
    def score(self, text: list[str] | list[list[int]] | tuple[str, ...], *, top: int = 0) -> list[Score]: ...

    def score(self, text: Prompt | Prompts, *, top: int = 0) -> Score | list[Score]:
        """Scores every token of a text but the first, given the tokens before it.

        Texts of a list are computed together, and prefixes that they share once. The numbers are those of each text
        alone.

        Args:
            text: a text, or its tokens; or a list of texts or of lists of tokens.
            top: how many of the most likely tokens to return at each position.

        Returns:
            A score for one text, a list of scores for a list.

        Raises:
            UserError: a text is empty, or too long.
            CheckFailed: a logit is not a number.

        Example:
            >>> model = wl.Model("weightloom-quickstart/pretrain")
            >>> one, other = model.score(["A rank is", "A shard is"], top=2)
            >>> one == model.score("A rank is", top=2)
            True
        """
        rows, is_one, _ = self._encoded(text, False, None)
        if not all(rows):
            raise UserError("cannot score an empty text")
        if top < 0:
            raise UserError(f"invalid `top`: {top} is not at least 0", "set `top` to a whole number from 0 on")
        scores = []
        for tokens, scored in zip(rows, self.native.score(rows, top) if rows else [], strict=True):
            values = [None, *(value for value, _ in scored)]
            likeliest = [[], *(likeliest for _, likeliest in scored)]
            scores.append(Score(tokens, self.native.pieces(tokens), values, likeliest))
        return scores[0] if is_one else scores

    def logits(self, tokens: Prompt | Prompts) -> torch.Tensor | numpy.ndarray[Any, Any]:
        """Computes the logits at every position, in f32.

        Args:
            tokens: a text or its tokens; or several of one length, such as a tensor of tokens `[rows, positions]`.

        Returns:
            A tensor `[positions, vocabulary]`, or `[rows, positions, vocabulary]` for several: one of torch if that is
            installed, else a NumPy array. Its memory is the one that was computed into.

        Raises:
            UserError: the lengths differ, a token is unknown, or neither torch nor NumPy is installed.

        Example:
            >>> model = wl.Model("weightloom-quickstart/pretrain")
            >>> model.logits([[1, 2, 3], [4, 5, 6]]).shape == (2, 3, model.vocabulary_size)
            True
        """
        rows, is_one, _ = self._encoded(tokens, False, None)
        shape = (len(rows), len(rows[0]) if rows else 0, self.vocabulary_size)
        if 0 in shape:
            raise UserError("cannot compute logits of no tokens", "pass at least one token")
        return _array(self.native.logits(rows), shape[1:] if is_one else shape)

    @overload
    def tokenize(self, text: str, *, plain: bool = False) -> list[int]: ...

    @overload
    def tokenize(self, text: list[str] | tuple[str, ...], *, plain: bool = False) -> list[list[int]]: ...

    def tokenize(self, text: str | Sequence[str], *, plain: bool = False) -> list[int] | list[list[int]]:
        """Encodes a text, or each of a list, with the special tokens that the model expects.

        Args:
            text: a text, or several.
            plain: omit beginning-of-text and end-of-text tokens.

        Raises:
            UserError: the tokenizer refuses the text.

        Example:
            >>> model = wl.Model("weightloom-quickstart/pretrain")
            >>> model.detokenize(model.tokenize("A rank is"))
            'A rank is'
        """
        if isinstance(text, str):
            return self.native.encode(text, plain)
        return [self.native.encode(one, plain) for one in text]

    def detokenize(self, tokens: Sequence[int], *, keep_special: bool = False) -> str:
        """Decodes tokens. Unknown ones are left out, and bytes that are no character become `�`.

        Args:
            tokens: the tokens, also as a tensor or an array.
            keep_special: keep special tokens such as the one at the beginning of a text.

        Raises:
            UserError: they are no tokens.

        Example:
            >>> model = wl.Model("weightloom-quickstart/pretrain")
            >>> model.detokenize(model.tokenize("rank", plain=True), keep_special=True)
            'rank'
        """
        rows, is_one = Rows.of(tokens)
        if not rows and not is_one:
            return ""
        [row] = rows if is_one else [None]
        if row is None or isinstance(row, str):
            raise UserError("cannot decode a list of texts", "pass the tokens of one text")
        return self.native.decode(row, keep_special)

    def _encoded(
        self, prompt: Prompt | Prompts, chat: bool | None, system: str | None
    ) -> tuple[list[list[int]], bool, bool]:
        """Tokens, whether they are of one prompt, and whether as a chat."""
        if system is not None and chat is False:
            raise UserError("cannot use a system message without the chat template", "remove `chat=False`")
        rows, is_one = Rows.of(prompt)
        is_chat = system is not None or (self.native.is_chat if chat is None else chat)
        encoded = [self.native.encode_prompt(row, is_chat, system) if isinstance(row, str) else row for row in rows]
        has_text = any(isinstance(row, str) for row in rows)
        return encoded, is_one, is_chat and (has_text or chat is True)

    def __repr__(self) -> str:
        return f"<Model {self.name}: {', '.join(self._facts())}>"

    def _repr_html_(self) -> str:
        rows = [("location", self.location), *(("config." + key, value) for key, value in self.config.items())]
        return page(headline(self.name, *self._facts()), table(["key", "value"], rows, len(rows)))

    def _facts(self) -> list[str]:
        adapter = [] if self.adapter is None else [f"with adapter {self.adapter}"]
        return [self.family, f"{self.num_parameters:,} parameters", self.dtype, f"on {self.device}", *adapter]


def _several(paths: Path | Iterable[Path]) -> list[str]:
    return [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]


def _is_conversation(prompt: object) -> bool:
    return isinstance(prompt, (list, tuple)) and bool(prompt) and all(isinstance(item, Mapping) for item in prompt)


def _pieces(stream: _weightloom.TextStream) -> Generator[str, None, None]:
    try:
        yield from stream
    finally:
        stream.close()


def _array(buffer: _weightloom.Buffer, shape: tuple[int, ...]) -> torch.Tensor | numpy.ndarray[Any, Any]:
    try:
        import torch
    except ImportError:
        pass
    else:
        return tensor_over(buffer, torch.float32, shape)
    try:
        import numpy
    except ImportError:
        raise UserError("cannot return logits: neither torch nor numpy is installed", "install one of them") from None
    return array_over(buffer, numpy.dtype("float32"), shape)
