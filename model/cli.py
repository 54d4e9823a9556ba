"""seqenc-model: writes, re-checks and shows artifacts."""

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Report = Callable[[str], None]

# Columns below which a table would lose what it shows; a narrower terminal wraps its lines.
_MIN_WIDTH = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 refused or off, 2 wrong usage."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What the encoding of a terminal lacks is printed as an escape.
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except (ValueError, OSError) as error:
        print(f"seqenc-model {options.name_of_command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="seqenc-model", description="Write, re-check and show artifacts.")
    commands = parser.add_subparsers(dest="name_of_command", required=True)
    export = commands.add_parser("export", help="write the artifact of a checkpoint")
    export.add_argument("source", help="a checkpoint's folder, a Hub id, or `default` (all-MiniLM-L6-v2)")
    export.add_argument("--out", type=Path, required=True, help="the directory to write; must not exist")
    export.add_argument("--name", help="the name it is served under (default: the last part of --out)")
    export.add_argument("--force", action="store_true", help="replace the artifact that is at --out")
    export.set_defaults(command=_export)
    verify = commands.add_parser("verify", help="re-check an artifact's checksums and numbers")
    verify.add_argument("artifact", type=Path)
    verify.set_defaults(command=_verify)
    info = commands.add_parser("info", help="show what an artifact is")
    info.add_argument("artifact", type=Path)
    info.add_argument("--json", action="store_true", help="the manifest as it is")
    info.set_defaults(command=_info)
    return parser


# PyTorch takes seconds to import, so each command imports only what it runs.


def _export(options: argparse.Namespace) -> None:
    with _progress() as report:
        from model.artifact import check_target
        from model.source import resolve_source

        target = options.out.absolute()
        check_target(target, force=options.force)
        report(f"finding {options.source}")
        source = resolve_source(options.source)
        report("loading PyTorch")
        from model.export import export_artifact

        name = options.name or target.name
        manifest = export_artifact(source, target, name=name, force=options.force, report=report)
    print(f"{options.out}: {manifest['name']}, revision {manifest['revision'][:12]}")


def _verify(options: argparse.Namespace) -> None:
    with _progress() as report:
        from model.verify import verify_artifact

        verify_artifact(options.artifact, report)
    print(f"{options.artifact}: everything is as the manifest says")


def _info(options: argparse.Namespace) -> None:
    from model.artifact import read_manifest

    manifest = read_manifest(options.artifact)
    if options.json:
        escape = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
        print(json.dumps(manifest, indent=2, ensure_ascii=escape))
    else:
        _print_manifest(manifest)


def _print_manifest(manifest: dict[str, Any]) -> None:
    console = Console()
    console.width = max(console.width, _MIN_WIDTH)
    facts = Table.grid(padding=(0, 2))
    facts.add_column()
    facts.add_column(overflow="fold")
    for name, value in manifest.items():
        if name not in ("files", "graphs"):
            facts.add_row(name, _in_words(value))
    graphs = Table(
        "graph", "kind", "precision", "worst cosine", "mean cosine", "max error", box=None, pad_edge=False
    )
    for graph in manifest["graphs"]:
        fidelity = graph["fidelity"]
        cosines = (f"{fidelity[name]:.6f}" for name in ("worst_cosine", "mean_cosine"))
        graphs.add_row(
            graph["file"], graph["kind"], graph["precision"], *cosines, f"{fidelity['max_abs_error']:.1e}"
        )
    console.print(facts, graphs)


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    return "none" if value is None else str(value)


@contextmanager
def _progress() -> Iterator[Report]:
    """Reports stages to stderr: a spinner on a terminal, one line each elsewhere."""
    console = Console(stderr=True, highlight=False)
    start = time.monotonic()

    def line(stage: str) -> str:
        return f"[{time.monotonic() - start:5.1f} s] {stage}"

    if not console.is_terminal:
        yield lambda stage: print(line(stage), file=sys.stderr, flush=True)
        return
    with console.status("starting", spinner="line" if console.options.ascii_only else "dots") as status:

        def report(stage: str) -> None:
            console.print(line(stage), markup=False, soft_wrap=True)
            status.update(stage)

        yield report


if __name__ == "__main__":
    from seqenc_process import run_seqenc_model

    sys.exit(run_seqenc_model())
