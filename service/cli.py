"""The command `seqenc`: a parser built from the settings classes, and what each command runs."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from service.client_settings import AttendSettings, EncodeSettings, HealthSettings, TokenizeSettings
from service.config import (
    CommandSettings,
    ServeSettings,
    SettingsError,
    TuneSettings,
    check_environment,
    flag_of,
    is_positional,
    load_settings,
    variable_of,
)
from service.errors import StartError
from service.job_settings import JobSettings

_USAGE_EXIT_STATUS = 2
_INTERRUPTED_EXIT_STATUS = 130
_ESCAPE = "backslashreplace"


@dataclass(frozen=True, slots=True)
class Command:
    settings: type[CommandSettings]
    run: Callable[[Any], int]
    help: str


def run_serve(settings: ServeSettings) -> int:
    from service.server import run_server

    return run_server(settings)


def run_tune(settings: TuneSettings) -> int:
    from service import tune

    return tune.run_tune(settings)


def run_encode(settings: EncodeSettings) -> int:
    from service import commands

    return commands.run_encode(settings)


def run_attend(settings: AttendSettings) -> int:
    from service import commands

    return commands.run_attend(settings)


def run_tokenize(settings: TokenizeSettings) -> int:
    from service import commands

    return commands.run_tokenize(settings)


def run_health(settings: HealthSettings) -> int:
    from service import commands

    return commands.run_health(settings)


def run_probe(_: CommandSettings) -> int:
    from service.probe import probe

    return probe()


def run_job(settings: JobSettings) -> int:
    from service.jobs import command

    return command.run_job(settings)


COMMANDS = {
    "serve": Command(ServeSettings, run_serve, "serve an exported model over gRPC"),
    "tune": Command(TuneSettings, run_tune, "measure which settings of serve are best on this machine"),
    "encode": Command(EncodeSettings, run_encode, "print the vectors of texts"),
    "attend": Command(AttendSettings, run_attend, "print what attends to what in a text"),
    "tokenize": Command(TokenizeSettings, run_tokenize, "print the tokens of texts"),
    "job": Command(JobSettings, run_job, "write the vectors of files of texts, and go on where it stopped"),
    "health": Command(HealthSettings, run_health, "ask whether a server takes calls; exit status 0 if so"),
    "probe": Command(
        CommandSettings,
        run_probe,
        "ask the server beside this command, at its own --http-address; for a container's health check",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    _print_anything()
    parser = build_parser()
    words = sys.argv[1:] if arguments is None else arguments
    flags = vars(parser.parse_args(_complete_switches(words)))
    name = flags.pop("command")
    command = COMMANDS[name]
    try:
        check_environment((known.settings for known in COMMANDS.values()), os.environ)
        settings = load_settings(command.settings, flags)
    except SettingsError as error:
        print(f"seqenc {name}: {error}; see `seqenc {name} --help`", file=sys.stderr)
        return _USAGE_EXIT_STATUS
    # Read by the libraries when they are loaded. gRPC's own messages would stand beside our one clear line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ["RAYON_NUM_THREADS"] = "1"
    # prometheus_client would share its counters with another program's processes.
    for variable in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        os.environ.pop(variable, None)
    try:
        status = command.run(settings)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left. Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (StartError, OSError) as error:
        print(f"seqenc: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("seqenc: interrupted", file=sys.stderr)
        return _INTERRUPTED_EXIT_STATUS
    return status


def _print_anything() -> None:
    """Let what a terminal's encoding lacks be printed as an escape."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, _ESCAPE), (sys.stderr, _ESCAPE)):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="seqenc", description="Serves Transformer encoders: contextual embeddings and attention maps."
    )
    parser.add_argument("--version", action="version", version=version("seqenc"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(
            name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )
        for field in command.settings.model_fields:
            _add_argument(subparser, command.settings, field)
    return parser


def _add_argument(parser: argparse.ArgumentParser, settings: type[CommandSettings], field: str) -> None:
    info = settings.model_fields[field]
    text = str(info.description).replace("%", "%%")
    if is_positional(settings, field):
        many = get_origin(info.annotation) is tuple
        parser.add_argument(
            field,
            nargs="*" if many else "?",
            help=f"{text} ({variable_of(field)}{': one' if many else ''})",
            default=argparse.SUPPRESS,
        )
        return
    notes = [variable_of(field)]
    if info.is_required():
        notes.insert(0, "required")
    elif info.default is not None and info.default != "":
        notes.insert(0, f"default: {_show(info.default)}")
    parser.add_argument(
        flag_of(field), dest=field, metavar=_metavar(info.annotation), help=f"{text} ({'; '.join(notes)})"
    )


def _complete_switches(words: Sequence[str]) -> list[str]:
    """`--tokens` without `true` or `false` behind it is `--tokens=true`, so that it does not take a text."""
    switches = {
        flag_of(field)
        for command in COMMANDS.values()
        for field, info in command.settings.model_fields.items()
        if bool in (info.annotation, *get_args(info.annotation))
    }
    completed: list[str] = []
    for place, word in enumerate(words):
        if word in switches and words[place + 1 : place + 2] not in (["true"], ["false"]):
            word = f"{word}=true"
        completed.append(word)
    return completed


def _metavar(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(parts)
    if origin is Annotated:
        return _metavar(parts[0])
    if origin in (Union, UnionType):
        return "|".join(_metavar(part) for part in parts if part is not type(None))
    return {bool: "true|false", int: "N", float: "N", Path: "PATH"}.get(annotation, "VALUE")


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    from seqenc_process import run_seqenc

    sys.exit(run_seqenc())
