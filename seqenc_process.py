"""The processes `seqenc` and `seqenc-model`, from their first moment to their exit status.

SIGTERM and SIGINT end them whenever they come. Process 1 of a container has no default actions, so a signal
that comes before its handler is lost: nothing large is imported until the handlers stand. `seqenc serve` has
handlers of its own once its event loop runs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType


def run_seqenc() -> int:
    def command() -> int:
        # A container's health check runs every few seconds and must cost little.
        if sys.argv[1:] == ["probe"]:
            from service.probe import probe

            return probe()
        from service.cli import main

        return main()

    return _run(command, serves=sys.argv[1:2] == ["serve"])


def run_seqenc_model() -> int:
    def command() -> int:
        from model.cli import main

        return main()

    return _run(command)


def _run(command: Callable[[], int], *, serves: bool = False) -> int:
    """Return the command's exit status, or 128 + n when it was ended by signal n."""
    received = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if serves:
            os._exit(0)  # It has taken no call, so there is nothing to drain.
        # Not every library lets a KeyboardInterrupt through while it is imported.
        if received or _is_importing(frame):
            os._exit(128 + number)
        received = number
        raise KeyboardInterrupt

    _handle_signals(on_signal, hangup=serves)
    _open_closed_streams()
    try:
        status = command()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except SystemExit as end:  # argparse
        status = end.code if isinstance(end.code, int) else 0
    except OSError as error:
        if error.filename is not None:
            raise
        status = _complain(error)
    status = _flush() or status
    if received:
        status = 128 + received
    if received or _has_daemon_threads():
        # When the interpreter ends by itself, a thread that comes back from C++ (ONNX Runtime that loads a
        # model) is ended by unwinding its stack, C++ forbids that, and the process aborts. Nothing is lost
        # here: the command has finished its work.
        os._exit(status)
    return status


def _handle_signals(handler: Callable[[int, FrameType | None], None], *, hangup: bool) -> None:
    """A signal that whoever started the process has it ignore (`nohup`, `&` in a script) stays ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hangup else [])):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    while frame and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _open_closed_streams() -> None:
    """Open the null device in place of each closed stream, or the next socket would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _flush() -> int:
    """Return 1 if what the command printed cannot be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _complain(error)
    return 0


def _complain(error: OSError) -> int:
    """Name what kept the command from printing; a reader that has left, as `head` does, knows why."""
    if not isinstance(error, BrokenPipeError):
        print(f"{os.path.basename(sys.argv[0])}: standard output: {error.strerror or error}", file=sys.stderr)
    return 1


def _has_daemon_threads() -> bool:
    import threading

    return any(thread.daemon for thread in threading.enumerate())
