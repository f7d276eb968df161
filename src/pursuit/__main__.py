"""The entry point of the command ``pursuit``, which is also ``python -m pursuit``."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command; an interrupt while it is imported is answered by one line too."""
    usual = signal.signal(signal.SIGINT, _end)
    from .cli.main import main as run

    signal.signal(signal.SIGINT, usual)
    run()


def _end(number: int, frame: object) -> None:
    if sys.stderr is not None:
        print("interrupted", file=sys.stderr, flush=True)
    os._exit(128 + number)


if __name__ == "__main__":
    main()
