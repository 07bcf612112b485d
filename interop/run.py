"""Compares what Weightloom reads, writes and computes with the reference implementations.

    python run.py PATH/TO/weightloom PATH/TO/ranks

Prints one line per check: its name, its result and the number of compared items. `./test interop` builds both
programs and creates the environment.
"""

import contextlib
import os
import pathlib
import sys
import tempfile
import time
import traceback

os.environ |= {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1",
    # Some virtual machines advertise AMX and do not allow it: torch's bf16 products end with an illegal instruction.
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
}

import check_adapters  # noqa: E402 - the environment must be set before these imports
import check_distributed  # noqa: E402
import check_families  # noqa: E402
import check_gguf  # noqa: E402
import check_mlx  # noqa: E402
import check_models  # noqa: E402
import check_page  # noqa: E402
import check_serve  # noqa: E402
import check_smollm2  # noqa: E402
import check_sway  # noqa: E402
import check_torch  # noqa: E402
import check_training  # noqa: E402
from weightloom_cli import Weightloom  # noqa: E402


class Report:
    """Counts and prints checks."""

    def __init__(self):
        self.passed, self.failed = 0, 0

    @contextlib.contextmanager
    def check(self, what):
        """A check fails with an exception. It sets `count` to the number of compared items, and `of` to their name
        if they are not tensors.
        """
        current = type("Check", (), {"count": 0, "of": "tensors"})()
        try:
            yield current
            assert current.count > 0, "nothing was compared"
        except Exception as error:  # noqa: BLE001 - a failure must not stop the other checks
            self.failed += 1
            print(f"FAIL  {what}: {error}", flush=True)
            traceback.print_exc()
        else:
            self.passed += 1
            print(f"PASS  {what}: {current.count} {current.of}", flush=True)


def main():
    ours = Weightloom(*map(os.path.abspath, sys.argv[1:3]))
    report = Report()
    modules = (check_torch, check_models, check_mlx, check_gguf, check_distributed, check_families, check_adapters,
               check_smollm2, check_serve, check_sway, check_training, check_page)
    for module in modules:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="weightloom-interop-") as folder:
            try:
                module.run(pathlib.Path(folder), ours, report)
            except Exception as error:  # noqa: BLE001 - a peer that cannot be set up is a failure too
                report.failed += 1
                print(f"FAIL  {module.__name__} aborted: {error}", flush=True)
                traceback.print_exc()
        print(f"{module.__name__}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
