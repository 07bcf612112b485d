"""The `weightloom` command."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Runs the command line with the arguments of the process."""
    from weightloom import _weightloom

    # Python would only notice Ctrl-C once the command has ended; commands that save before they end handle it
    # themselves.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The native module writes to stdout itself. What packages of trackers print does not belong to the results.
    sys.stdout = sys.stderr
    sys.exit(_weightloom.run(["weightloom", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
