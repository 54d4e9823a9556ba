"""`make bench`: measures the sections and writes their tables, checks and plot."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.context import Context
from bench.machine import describe_machine
from bench.plots import draw
from bench.report import Report, Section, section_markdown
from bench.sections import engine, int8, kernel, latency, memory, profile, ready, scaling, throughput

SECTIONS: dict[str, Callable[[Context], Section]] = {
    "kernel": kernel.measure,
    "int8": int8.measure,
    "engine": engine.measure,
    "grpc": throughput.measure,
    "latency": latency.measure,
    "scaling": scaling.measure,
    "memory": memory.measure,
    "ready": ready.measure,
    "profile": profile.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    add_setting(parser)
    parser.add_argument("--section", choices=SECTIONS, action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    context, machine = context_of(options), describe_machine()
    sections = []
    for name in options.section or SECTIONS:
        if name == "profile" and not profile.available():
            print("profile: not measured, needs Linux's perf (Debian: linux-perf)")
            continue
        sections.append(SECTIONS[name](context))
        print(section_markdown(sections[-1]), end="\n\n", flush=True)
    Report(machine, sections).write(options.out, "bench")
    draw(sections, options.out / "bench.svg")
    print(f"written to {options.out}")


def run_alone(
    name: str, options: argparse.Namespace, measure: Callable[[Context], Sequence[Section]]
) -> None:
    """Of a benchmark that is a command of its own: measures, prints, and writes files called `name`."""
    context, machine = context_of(options), describe_machine()
    sections = measure(context)
    for section in sections:
        print(section_markdown(section), end="\n\n")
    Report(machine, sections).write(options.out, name)
    print(f"written to {options.out}")


def add_setting(parser: argparse.ArgumentParser) -> None:
    """What is measured, for how long, and where the results go."""
    parser.add_argument("--artifact", type=Path, default=Path("artifacts/all-MiniLM-L6-v2"))
    parser.add_argument("--provider", default="cpu", help="as of `seqenc serve`")
    parser.add_argument("--precision", default="fp32", help="as of `seqenc serve`")
    parser.add_argument("--quick", action="store_true", help="few rounds: rougher figures, in minutes")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of the results")


def context_of(options: argparse.Namespace) -> Context:
    return Context(options.artifact.resolve(), options.provider, options.precision, options.quick)


if __name__ == "__main__":
    main()
