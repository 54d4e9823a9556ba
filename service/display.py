"""Shows encodings, tokens and attention maps: as tables for people, as JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from seqenc import Encoding, Token, Tokenization
from seqenc.types import Array

# Columns of output that does not go to a terminal.
PLAIN_WIDTH = 120
# Columns below which tables would lose what they show; a narrower terminal wraps their lines.
MIN_WIDTH = 40
# Rows of a table. What is left out is counted below it.
MAX_ROWS = 200
_TEXT_COLUMNS = 40
_LABEL_COLUMNS = 20
_CELL_COLUMNS = 4  # of an attention map: a space and up to three digits
# For encodings without them.
_SUBSTITUTES = str.maketrans({"…": "...", "·": ".", "�": "?"})


def build_console(file: TextIO) -> Console:
    """Without colour, and of a fixed width, where file is no terminal."""
    width = None if file.isatty() else PLAIN_WIDTH
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    console.width = max(console.width, MIN_WIDTH)
    return console


def write_json(file: TextIO, record: dict[str, Any]) -> None:
    """With escapes in place of what is not ASCII, unless the file's encoding has every character."""
    escape = not (file.encoding or "utf-8").lower().startswith("utf")
    file.write(json.dumps(record, ensure_ascii=escape, allow_nan=False) + "\n")


def encoding_record(index: int, text: str, encoding: Encoding) -> dict[str, Any]:
    """What was not asked for is absent."""
    record: dict[str, Any] = {"index": index, "text": text}
    if encoding.status:
        return {**record, "error": str(encoding.status)}
    record |= {"token_count": encoding.token_count, "truncated": encoding.truncated}
    if encoding.embedding is not None:
        record["embedding"] = _numbers(encoding.embedding)
    if encoding.embedding_scale is not None:
        record["embedding_scale"] = encoding.embedding_scale
    if encoding.tokens:
        record["tokens"] = [_token_record(token) for token in encoding.tokens]
    if encoding.token_embeddings is not None:
        record["token_embeddings"] = [_numbers(row) for row in encoding.token_embeddings]
    return record


def tokenization_record(index: int, text: str, tokenization: Tokenization) -> dict[str, Any]:
    record: dict[str, Any] = {"index": index, "text": text}
    if tokenization.status:
        return {**record, "error": str(tokenization.status)}
    tokens = [_token_record(token) for token in tokenization.tokens]
    return {**record, "truncated": tokenization.truncated, "tokens": tokens}


def attention_record(name: str, tokens: Sequence[Token], weights: Array) -> dict[str, Any]:
    """weights (S, S): row i is what token i attends to."""
    return {
        "map": name,
        "tokens": [_token_record(token) for token in tokens],
        "weights": [_numbers(row) for row in weights],
    }


def print_encodings(console: Console, texts: Sequence[str], encodings: Sequence[Encoding]) -> None:
    table = _table("#", "text", "tokens", "norm", "vector")
    for index, encoding in enumerate(encodings[:MAX_ROWS]):
        table.add_row(str(index), _shorten(console, texts[index]), *_encoding_cells(console, encoding))
    console.print(table)
    _print_left_out(console, len(encodings), "texts")


def print_token_details(console: Console, text: str, encoding: Encoding) -> None:
    """The tokens of one text, their vectors, or both; nothing of a text that failed."""
    if encoding.status:
        return
    console.print()
    console.print(_shorten(console, text), style="bold")
    vectors = encoding.token_embeddings
    table = _table("#", "token", "norm", "vector")
    for index in range(min(encoding.token_count, MAX_ROWS)):
        token = encoding.tokens[index].text if encoding.tokens else ""
        cells = ("", "") if vectors is None else (_norm(vectors[index]), _preview(console, vectors[index]))
        table.add_row(str(index), Text(_printable(console, token)), *cells)
    console.print(table)
    _print_left_out(console, encoding.token_count, "tokens")


def print_tokenization(console: Console, text: str, tokenization: Tokenization) -> None:
    console.print(_shorten(console, text), style="bold")
    if tokenization.status:
        console.print(Text(str(tokenization.status), style="red"))
        return
    table = _table("#", "id", "piece", "start", "end", "segment")
    for index, token in enumerate(tokenization.tokens[:MAX_ROWS]):
        cells = (token.id, _printable(console, token.text), token.start, token.end, token.segment)
        style = "dim" if token.special else ""
        table.add_row(str(index), *(Text(str(cell)) for cell in cells), style=style)
    console.print(table)
    _print_left_out(console, len(tokenization.tokens), "tokens")
    if tokenization.truncated:
        console.print("truncated: the text has more tokens than fit")


def print_attention(console: Console, name: str, tokens: Sequence[Token], weights: Array, top: int) -> None:
    """weights (S, S): row i is what token i attends to."""
    console.print(Text(name, style="bold"))
    _print_map(console, tokens, weights)
    table = _table("#", "token", "attends to")
    for index, token in enumerate(tokens[:MAX_ROWS]):
        table.add_row(
            str(index), Text(_printable(console, token.text)), _links(console, tokens, weights[index], top)
        )
    console.print(table)
    _print_left_out(console, len(tokens), "tokens")


def _print_map(console: Console, tokens: Sequence[Token], weights: Array) -> None:
    """Percentages, as many tokens as the console has columns for."""
    labels = [f"{index} {_printable(console, token.text)}" for index, token in enumerate(tokens)]
    label_columns = min(_LABEL_COLUMNS, max(map(cell_len, labels)))
    count = min(len(tokens), max(1, (console.width - label_columns) // _CELL_COLUMNS))
    header = Text(" " * label_columns + "".join(f"{column:>{_CELL_COLUMNS}}" for column in range(count)))
    console.print(header, style="dim", no_wrap=True, crop=False)
    for label, row in zip(labels[:count], weights[:count, :count], strict=True):
        line = Text(set_cell_size(label, label_columns))
        for weight in row:
            line.append_text(_map_cell(console, float(weight)))
        console.print(line, no_wrap=True, crop=False)
    note = "percent of a row's attention; rows attend to columns"
    if count < len(tokens):
        note += f"; the first {count} of {len(tokens)} tokens fit, --format jsonl has all"
    console.print(Text(note, style="dim"))


def _map_cell(console: Console, weight: float) -> Text:
    percent = round(100 * weight)
    text = f"{percent or _printable(console, '·'):>{_CELL_COLUMNS}}"
    if not percent:
        return Text(text, style="dim")
    return Text(text, style=f"white on rgb(20,{20 + round(80 * weight)},{40 + round(180 * weight)})")


def _links(console: Console, tokens: Sequence[Token], row: Array, top: int) -> Text:
    strongest = np.argsort(-row, kind="stable")[:top]
    return Text("  ".join(f"{_printable(console, tokens[to].text)} {row[to]:.2f}" for to in strongest))


def _encoding_cells(console: Console, encoding: Encoding) -> tuple[str | Text, ...]:
    if encoding.status:
        return "", "", Text(str(encoding.status), style="red")
    count = f"{encoding.token_count}{' (truncated)' if encoding.truncated else ''}"
    if encoding.embedding is None:
        return count, "", ""
    scale = 1.0 if encoding.embedding_scale is None else encoding.embedding_scale
    return count, _norm(encoding.embedding, scale), _preview(console, encoding.embedding)


def _norm(vector: Array, scale: float = 1.0) -> str:
    """Of packed bits there is none."""
    return "" if vector.dtype == np.uint8 else f"{np.linalg.norm(vector.astype(np.float64)) * scale:.4f}"


def _preview(console: Console, vector: Array) -> str:
    shown = (f"{value:.4f}" if vector.dtype.kind == "f" else str(value) for value in vector[:4])
    more = f" {_printable(console, '…')} ({len(vector)} values)" if len(vector) > 4 else ""
    return " ".join(shown) + more


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_left_out(console: Console, count: int, things: str) -> None:
    if count > MAX_ROWS:
        console.print(
            f"{_printable(console, '…')} and {count - MAX_ROWS} more {things}; --format jsonl has all"
        )


def _shorten(console: Console, text: str) -> Text:
    line = _printable(console, " ".join(text.split()))
    if cell_len(line) > _TEXT_COLUMNS:
        ellipsis = _printable(console, "…")
        line = set_cell_size(line, _TEXT_COLUMNS - len(ellipsis)).rstrip() + ellipsis
    return Text(line)


def _printable(console: Console, text: str) -> str:
    """Control characters must not reach a terminal, nor letters that its encoding lacks."""
    text = "".join(letter if letter.isprintable() else "�" for letter in text)
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        ascii_text = text.translate(_SUBSTITUTES)
        return ascii_text.encode(console.encoding, "backslashreplace").decode(console.encoding)
    return text


def _token_record(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "text": token.text,
        "start": token.start,
        "end": token.end,
        "special": token.special,
        "segment": token.segment,
    }


def _numbers(values: Array) -> list[float | int]:
    """float32 as the shortest decimal that reads back as itself."""
    kind = float if values.dtype.kind == "f" else int
    return [kind(str(value)) for value in values]


def print_tuning(
    console: Console, measurements: Sequence[dict[str, Any]], best: dict[str, Any], min_cosine: float
) -> None:
    """A row for each setting measured, best throughput first; those under `min_cosine` are dimmed."""
    columns = ("", "provider", "precision", "lanes", "threads", "batch tokens")
    table = _table(*columns, "tokens/s", "16 tokens, ms", "worst cosine")
    for measured in sorted(measurements, key=lambda row: -float(row["tokens_per_s"])):
        row = [str(value) for value in measured["choice"].values()]
        row += [f"{measured['tokens_per_s']:.0f}", f"{measured['latency_s'] * 1e3:.2f}"]
        style = None if measured["worst_cosine"] >= min_cosine else "dim"
        mark = "*" if measured == best else ""
        table.add_row(mark, *row, f"{measured['worst_cosine']:.6f}", style=style)
    console.print(table)
    console.print("* the choice", style="dim")
