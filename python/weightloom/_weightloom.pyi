"""The native half of the module."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, final

from typing_extensions import Buffer as SupportsBuffer

__version__: str

class Listener(Protocol):
    """Shows progress. The native module calls it from several threads at once."""

    def begin(self, work: str, total: int) -> None: ...
    def advance(self, count: int, /) -> None: ...
    def status(self, line: str) -> None: ...
    def result(self, json: str) -> None: ...

# Commands

def run(arguments: Sequence[str | PathLike[str]]) -> int:
    """Runs the command line, of which the first argument is the name of the program, and returns its exit code."""

def call(arguments: Sequence[str | PathLike[str]], progress: Listener | None = None) -> tuple[int, list[str]]:
    """Runs a command for its results: its exit code, and the texts of its JSON results."""

# Checkpoints

def open_checkpoint(name: str, progress: Listener | None = None) -> Checkpoint:
    """Opens a checkpoint: a file, folder, run, card, `org/name` or URL."""

@final
class Checkpoint:
    """An opened checkpoint: its entries are known, and no tensor has been read."""

    @property
    def location(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def files(self) -> list[tuple[str, int]]: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def step(self) -> int | None: ...
    @property
    def stated_fingerprint(self) -> str | None: ...
    def tensors(self) -> list[tuple[str, str, list[int], int, int, int, str | None]]:
        """Name, dtype, shape, bytes once decoded, stored bytes, number of stored parts, quantisation."""

    def check_name(self, name: str) -> None:
        """Fails with the nearest name unless there is a tensor of this name."""

    def values(self) -> list[str]:
        """The names of entries that are not tensors."""

    def value(self, name: str) -> bytes | None:
        """An entry that is not a tensor; values that torch pickled are JSON."""

    def paths(self) -> dict[str, list[str | int | None]]:
        """The paths of the entries of nested state, by name. Others are children of the root."""

    def read(self, name: str, start: Sequence[int], size: Sequence[int], dtype: str | None = None) -> Buffer:
        """Reads a part of a tensor, as its own dtype or another one."""

    def read_all(self, dtype: str | None = None, progress: Listener | None = None) -> list[tuple[str, Buffer]]:
        """Reads all tensors; those of floating point as another dtype, if it is given."""

    def read_into(
        self, name: str, start: Sequence[int], size: Sequence[int], dtype: str, into: SupportsBuffer
    ) -> None:
        """Reads a part of a tensor into memory."""

    def fingerprint(self, progress: Listener | None = None) -> tuple[str, dict[str, str]]:
        """The fingerprint of the checkpoint, and those of its tensors. Reads every byte."""

@final
class Buffer:
    """Bytes, through the buffer protocol."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

# Ranks

class Transport(Protocol):
    """Sends messages to other ranks."""

    def send(self, to: int, message: bytearray, /) -> None: ...
    def flush(self, seconds: float, /) -> None: ...

@final
class Inbox:
    """Where messages of other processes arrive."""

    def __init__(self) -> None: ...
    def deliver(self, source: int, message: SupportsBuffer) -> None:
        """Puts a message of another rank into the inbox."""

    def lose(self, reason: str) -> None:
        """Ends all waits for messages that have not arrived."""

@final
class Gang:
    """A process group."""

    @staticmethod
    def solo(timeout: float) -> Gang:
        """A gang of this process alone."""

    @staticmethod
    def connect(transport: Transport, inbox: Inbox, rank: int, size: int, timeout: float) -> Gang:
        """A gang of processes that exchange messages. Every process calls this."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def barrier(self) -> None:
        """Waits until every rank has called it."""

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, in their order. Every rank calls this."""

    def check(self) -> int:
        """Runs the conformance suite of engines, and returns the number of cases. Every rank calls this."""

# Saves and loads

class TensorShard(Protocol):
    """A rank's part of a tensor."""

    @property
    def name(self) -> str: ...
    @property
    def section(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def local_shape(self) -> list[int]: ...
    @property
    def parts(self) -> list[tuple[list[int], list[int], list[int]]]: ...
    @property
    def layout(self) -> str | None: ...
    @property
    def memory(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    @property
    def compared(self) -> bool: ...

class Value(Protocol):
    """An entry that is not a tensor."""

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> bytes: ...

class Request(Protocol):
    """What is saved beside the entries, and how."""

    @property
    def target(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def assets(self) -> Mapping[str, bytes]: ...
    @property
    def paths(self) -> Mapping[str, Sequence[str | int | None]]: ...
    @property
    def shard_size(self) -> int: ...
    @property
    def budget(self) -> int | None: ...

Report = tuple[str, str, int, float, float]
"""Fingerprints of everything and of the model, bytes of this rank, seconds of stall and in all."""

@final
class Saver:
    """Saves state dicts, one at a time. Every rank of the gang makes the same calls."""

    def __init__(self, gang: Gang) -> None: ...
    def save(
        self,
        tensors: Sequence[TensorShard],
        values: Sequence[Value],
        request: Request,
        progress: Listener | None = None,
    ) -> Report:
        """Saves, and waits."""

    def save_async(
        self,
        tensors: Sequence[TensorShard],
        values: Sequence[Value],
        request: Request,
        progress: Listener | None = None,
    ) -> float:
        """Copies what is saved, and writes it in the background. Returns the seconds that it took to copy."""

    def wait(self) -> Report | None:
        """Waits for the background save, if there is one."""

    def is_saving(self) -> bool:
        """Whether a background save is running."""

def compact_json(text: str) -> str | None:
    """JSON as every format writes it; `None` if this is not JSON, as `NaN` is not."""

def load_state(
    gang: Gang,
    checkpoint: Checkpoint,
    tensors: Sequence[TensorShard],
    values: Sequence[str],
    progress: Listener | None = None,
) -> tuple[int, int, int, dict[str, bytes]]:
    """Loads parts of tensors into memory. Returns bytes read, received from other ranks, and compared with checksums;
    and stored values by name."""

def unread_tensors(gang: Gang, checkpoint: Checkpoint, names: Sequence[str]) -> list[str]:
    """The tensors of the stored model that no rank has among its names. Every rank of the gang calls this."""

# Training

class TrainRequest(Protocol):
    """What a training run takes from its caller."""

    @property
    def hooks(self) -> object: ...
    @property
    def wanted(self) -> Sequence[str]: ...
    @property
    def gang(self) -> Gang | None: ...

def train(
    arguments: Sequence[str | PathLike[str]], request: TrainRequest, progress: Listener | None = None
) -> tuple[int, list[str]]:
    """Runs `weightloom train`, with callbacks: its exit code, and the texts of its JSON results."""

def newest_checkpoint(folder: PathLike[str]) -> Path | None:
    """The newest complete checkpoint of the run in a folder."""

# Models

class ModelOptions(Protocol):
    """Options of a load."""

    @property
    def adapter(self) -> str | None: ...
    @property
    def adapter_scale(self) -> float | None: ...
    @property
    def merge(self) -> bool: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def mmap(self) -> bool: ...
    @property
    def strict(self) -> bool: ...
    @property
    def ignore_mismatched_sizes(self) -> bool: ...
    @property
    def asset_dirs(self) -> Sequence[str]: ...
    @property
    def model_paths(self) -> Sequence[str]: ...
    @property
    def environments(self) -> Sequence[str]: ...
    @property
    def offline(self) -> bool: ...

class GenerateOptions(Protocol):
    """Options of generated text."""

    @property
    def max_new_tokens(self) -> int: ...
    @property
    def sample(self) -> bool: ...
    @property
    def temperature(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def repetition_penalty(self) -> float | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def stop(self) -> Sequence[str]: ...
    @property
    def ignore_eos(self) -> bool: ...
    @property
    def is_chat(self) -> bool: ...

class Conversation(Protocol):
    """A conversation, as JSON."""

    @property
    def messages(self) -> str: ...
    @property
    def tools(self) -> str | None: ...
    @property
    def documents(self) -> str | None: ...
    @property
    def variables(self) -> str: ...

def load_model(name: str, options: ModelOptions, progress: Listener | None = None) -> Model:
    """Loads a model by card, folder, file, run, adapter, `org/name` or URL."""

@final
class Model:
    """A loaded model with its tokenizer. Calls only read it, so threads may make them at once."""

    @property
    def family(self) -> str: ...
    @property
    def location(self) -> str: ...
    @property
    def adapter(self) -> PathLike[str] | None: ...
    @property
    def config(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def num_parameters(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def context_length(self) -> int | None: ...
    @property
    def is_chat(self) -> bool: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def warnings(self) -> list[str]: ...
    def encode_prompt(self, text: str, chat: bool, system: str | None = None) -> list[int]:
        """The tokens of a prompt, as plain text or as a message of a chat."""

    def encode_chat(self, conversation: Conversation) -> list[int]:
        """The tokens of a conversation, ready for the assistant's turn."""

    def encode(self, text: str, plain: bool) -> list[int]:
        """The tokens of a text."""

    def decode(self, tokens: Sequence[int], keep_special: bool) -> str:
        """The text of tokens."""

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Tokens as written in the vocabulary."""

    def generate(self, prompts: Sequence[Sequence[int]], options: GenerateOptions) -> list[str]:
        """Generates text after prompts, in one batch."""

    def score(self, rows: Sequence[Sequence[int]], top: int) -> list[list[tuple[float, list[tuple[int, float]]]]]:
        """Scores every token of rows but the first, in one batch."""

    def logits(self, rows: Sequence[Sequence[int]]) -> Buffer:
        """The logits at every position of rows of one length: `[rows, positions, vocabulary]` of f32."""

@final
class TextStream:
    """Text that is generated while it is read. The generation is at most one piece ahead."""

    def __init__(self, model: Model, prompt: Sequence[int], options: GenerateOptions) -> None: ...
    def __iter__(self) -> TextStream: ...
    def __next__(self) -> str: ...
    def close(self) -> None:
        """Ends the generation."""

# Judgements

class LiveModel(Protocol):
    """Runs batches of tokens in views, which are JSON. Rows are filled up with zeros to `width` tokens."""

    def forward(
        self, view: str, width: int, tokens: Buffer, lengths: Buffer, scored: Buffer, after: Buffer, hidden: Buffer, /
    ) -> tuple[SupportsBuffer, SupportsBuffer, SupportsBuffer]: ...
    def start_generation(self, view: str, width: int, tokens: Buffer, lengths: Buffer, /) -> SupportsBuffer: ...
    def continue_generation(self, tokens: Buffer, /) -> SupportsBuffer: ...

class Judgement(Protocol):
    """What is judged, and by what."""

    @property
    def base(self) -> str: ...
    @property
    def tuned(self) -> str: ...
    @property
    def is_adapter(self) -> bool: ...
    @property
    def views(self) -> Sequence[str]: ...
    @property
    def layers(self) -> Sequence[str]: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def max_positions(self) -> int | None: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def tokenizer(self) -> PathLike[str]: ...
    @property
    def suite(self) -> PathLike[str] | None: ...
    @property
    def suite_text(self) -> str | None: ...
    @property
    def document(self) -> PathLike[str] | None: ...
    @property
    def only(self) -> Sequence[str]: ...
    @property
    def weights(self) -> str | None: ...
    @property
    def statistics(self) -> str | None: ...
    @property
    def trace(self) -> PathLike[str] | None: ...

def judge_live(model: LiveModel, judgement: Judgement, progress: Listener | None = None) -> str:
    """Judges a model in memory, and returns the report as JSON."""

@final
class AdapterNoise:
    """New values for the tensors of an adapter, one after the other."""

    @staticmethod
    def normal(seed: int, init_scale: float, rank_scale: float) -> AdapterNoise: ...
    @staticmethod
    def matched(seed: int) -> AdapterNoise: ...
    def replace(self, kind: str, shape: Sequence[int], values: SupportsBuffer) -> Buffer | None:
        """The new values of the next tensor, of 32-bit floats; `None` keeps them."""

@final
class DecoderInfo:
    """What the native decoder of a config is like, and where the rows of parameters are in it."""

    @property
    def layers(self) -> int: ...
    @property
    def max_positions(self) -> int | None: ...
    @property
    def parts(self) -> list[list[tuple[str, int, int, int]]]:
        """For each parameter: names, places in the order of use, first rows and numbers of rows."""

def decoder_info(config: str, parameters: Sequence[tuple[str, int]]) -> DecoderInfo | None:
    """The native decoder of a `config.json`, and the parts of it that parameters with numbers of outputs become."""

# Reports

def report_text(text: str, name: str, format: str) -> str:
    """A report in another format: `json`, `markdown`, `junit` or `html`."""

def report_facts(text: str, name: str) -> str:
    """What follows from a report, as JSON."""

def report_refusals(text: str, name: str, threshold: float | None = None) -> list[str]:
    """Why a report does not pass a gate; empty if it passes."""

@final
class ReportComparison:
    """The comparison of reports, oldest first."""

    @property
    def json(self) -> str: ...
    @property
    def markdown(self) -> str: ...
    @property
    def columns(self) -> list[str]: ...
    @property
    def rows(self) -> list[list[str]]: ...
    @property
    def sentences(self) -> list[str]: ...
    @property
    def is_worse(self) -> bool: ...
    @property
    def svg(self) -> str | None: ...
    @property
    def html(self) -> str | None: ...

def compare_reports(reports: Sequence[tuple[str, str]], margin: float | None = None) -> ReportComparison:
    """Compares reports with their labels."""
