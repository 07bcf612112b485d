"""Find, load, train, keep and judge language models, on one process or thousands."""

from weightloom._weightloom import __version__

from weightloom._errors import CheckFailed, MissingTensor, OperationalError, UserError, WeightloomError

__all__ = [
    "CheckFailed",
    "MissingTensor",
    "OperationalError",
    "UserError",
    "WeightloomError",
    "__version__",
]
