"""Find, load, train, keep and judge language models, on one process or thousands."""

from weightloom._weightloom import __version__

from weightloom._callback import STOP, Callback, Control, Evaluation, StepResult, TrainerState
from weightloom._checkpoint import Checkpoint, open
from weightloom._conversion import Conversion, convert
from weightloom._diff import Diff, TensorDiff, diff
from weightloom._download import Download, fetch
from weightloom._dry_run import DryRun, dry_run
from weightloom._errors import CheckFailed, MissingTensor, OperationalError, UserError, WeightloomError
from weightloom._judge import Check, check, judge
from weightloom._load import LoadReport, load
from weightloom._model import Model
from weightloom._progress import set_progress
from weightloom._prompt import GenerateOptions
from weightloom._report import Probe, Question, Report
from weightloom._report_comparison import Effect, ReportComparison, compare
from weightloom._run import Run
from weightloom._save import SaveHandle, SaveReport, save, save_async
from weightloom._score import Score
from weightloom._signature import Signature, sign
from weightloom._stored_tensor import StoredTensor
from weightloom._tensor_stats import TensorStats
from weightloom._train import train
from weightloom._verification import Verification, verify

__all__ = [
    "STOP",
    "Callback",
    "Check",
    "CheckFailed",
    "Checkpoint",
    "Control",
    "Conversion",
    "Diff",
    "Download",
    "DryRun",
    "Effect",
    "Evaluation",
    "GenerateOptions",
    "LoadReport",
    "MissingTensor",
    "Model",
    "OperationalError",
    "Probe",
    "Question",
    "Report",
    "ReportComparison",
    "Run",
    "SaveHandle",
    "SaveReport",
    "Score",
    "Signature",
    "StepResult",
    "StoredTensor",
    "TensorDiff",
    "TensorStats",
    "TrainerState",
    "UserError",
    "Verification",
    "WeightloomError",
    "__version__",
    "check",
    "compare",
    "convert",
    "diff",
    "dry_run",
    "fetch",
    "judge",
    "load",
    "open",
    "save",
    "save_async",
    "set_progress",
    "sign",
    "train",
    "verify",
]
