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
from contextlib import suppress
from types import FrameType

_IMPORT_POLL_S = 0.05


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
    interruption = _Interruption()
    _handle_signals(_end_at_once if serves else interruption.take, hangup=serves)
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
    if interruption.number:
        status = 128 + interruption.number
    if interruption.number or _has_daemon_threads():
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


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    """End a server that has taken no call yet, so that there is nothing to drain."""
    os._exit(0)


class _Interruption:
    """Makes a KeyboardInterrupt of the first signal, for the command to clean up, and ends at the second.

    `number` is the first signal's, 0 before it comes. A library that is being imported may drop a
    KeyboardInterrupt or make another error of it. Our own imports come before there is anything to clean up,
    so a signal then ends the process; those that a library makes while it works are waited for.
    """

    number = 0

    def take(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            os._exit(128 + number)
        self.number = number
        self._interrupt(frame)

    def _interrupt(self, frame: FrameType | None) -> None:
        importer = _find_importer(frame)
        if importer is None:
            raise KeyboardInterrupt
        if importer.partition(".")[0] in ("seqenc_process", "service", "model"):
            os._exit(128 + self.number)
        signal.signal(signal.SIGALRM, lambda _, frame: self._interrupt(frame))
        signal.setitimer(signal.ITIMER_REAL, _IMPORT_POLL_S)


def _find_importer(frame: FrameType | None) -> str | None:
    """Return the name of the module whose import is under way, the outermost of several."""
    importer = None
    while frame and frame.f_back:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            importer = str(frame.f_back.f_globals.get("__name__"))
        frame = frame.f_back
    return importer


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
        with suppress(OSError):
            name = os.path.basename(sys.argv[0])
            print(f"{name}: standard output cannot be written: {error.strerror or error}", file=sys.stderr)
    return 1


def _has_daemon_threads() -> bool:
    import threading

    return any(thread.daemon for thread in threading.enumerate())
