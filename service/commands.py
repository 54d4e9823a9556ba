"""The commands that talk to a server: encode, attend, tokenize, health. Each returns its exit status."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from seqenc import Client, Encoding, ModelInfo, RetryPolicy, SeqencError
from seqenc.types import Attention, EncodeOptions, TokenizeOptions
from service.client_settings import (
    AttendSettings,
    ConnectionSettings,
    EncodeSettings,
    HealthSettings,
    TokenizeSettings,
)
from service.connection import open_client
from service.display import (
    attention_record,
    build_console,
    encoding_record,
    print_attention,
    print_encodings,
    print_token_details,
    print_tokenization,
    tokenization_record,
    write_json,
)
from service.silence import SilenceWatch

STANDARD_INPUT = "-"
# About a second: somebody waits for the answer, and a wrong address will not get better.
_RETRY = RetryPolicy(max_attempts=5)


class CommandError(Exception):
    """What the command's user did wrong; the message is for them."""


def run_encode(settings: EncodeSettings) -> int:
    show = _encode_as_lines if settings.format == "jsonl" else _encode_as_table
    return _run(settings, lambda client, watch: show(client, watch, settings))


def run_tokenize(settings: TokenizeSettings) -> int:
    return _run(settings, lambda client, watch: _tokenize(client, watch, settings))


def run_attend(settings: AttendSettings) -> int:
    return _run(settings, lambda client, watch: _attend(client, watch, settings))


def run_health(settings: HealthSettings) -> int:
    return _run(settings, lambda client, watch: _health(client, watch, settings))


def _run(settings: ConnectionSettings, command: Callable[[Client, SilenceWatch], bool]) -> int:
    """command says whether all went well. Whatever goes wrong is one line on standard error."""
    try:
        with _connect(settings) as client, SilenceWatch(_say_waiting(settings.address)) as watch:
            well = command(client, watch)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left. Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SeqencError as error:
        return _fail(f"{settings.address}: {error}", 1)
    except CommandError as error:
        return _fail(str(error), 2)
    except (OSError, ValueError) as error:
        return _fail(str(error), 1)
    return 0 if well else 1


def _fail(message: str, status: int) -> int:
    print(f"seqenc: {' '.join(message.split())}", file=sys.stderr)
    return status


def _say_waiting(address: str) -> Callable[[float], None]:
    """Programs that read standard error get the one line of the end."""

    def say(silent_s: float) -> None:
        if sys.stderr and sys.stderr.isatty():
            print(f"seqenc: {address}: no answer yet, after {silent_s:.0f} s", file=sys.stderr)

    return say


def _connect(settings: ConnectionSettings) -> Client:
    try:
        return open_client(
            settings,
            expected_revision=getattr(settings, "expected_revision", ""),
            deadline_s=getattr(settings, "deadline_s", None),
            retry=_RETRY,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def _encode_as_lines(client: Client, watch: SilenceWatch, settings: EncodeSettings) -> bool:
    """In bounded memory: each line is printed as its result arrives."""
    unanswered: deque[str] = deque()

    def source() -> Iterator[str]:
        texts = _texts(settings.texts)
        while True:
            with watch.resting():
                text = next(texts, None)
            if text is None:
                return
            unanswered.append(text)
            yield text

    well = True
    encodings = client.encode_stream(source(), deadline_s=settings.deadline_s, **_encode_options(settings))
    with watch.calling():
        for index, encoding in enumerate(encodings):
            watch.heard()
            write_json(sys.stdout, encoding_record(index, unanswered.popleft(), encoding))
            well = well and encoding.status is None
    return well


def _encode_as_table(client: Client, watch: SilenceWatch, settings: EncodeSettings) -> bool:
    texts = list(_texts(settings.texts))
    with watch.calling():
        result = client.encode(texts, **_encode_options(settings))
    console = build_console(sys.stdout)
    print_encodings(console, texts, result.results)
    if settings.tokens or settings.token_embeddings:
        for text, encoding in zip(texts, result.results, strict=True):
            print_token_details(console, text, encoding)
    return _all_well(result.results)


def _tokenize(client: Client, watch: SilenceWatch, settings: TokenizeSettings) -> bool:
    texts = list(_texts(settings.texts))
    with watch.calling():
        results = client.tokenize(texts, **_tokenize_options(settings))
    console = build_console(sys.stdout)
    for index, (text, result) in enumerate(zip(texts, results, strict=True)):
        if settings.format == "jsonl":
            write_json(sys.stdout, tokenization_record(index, text, result))
        else:
            print_tokenization(console, text, result)
    return all(result.status is None for result in results)


def _attend(client: Client, watch: SilenceWatch, settings: AttendSettings) -> bool:
    text = _text(settings.text)
    with watch.calling():
        name = _map_name(settings, client.model())
        encoding = client.encode(
            [text if settings.pair is None else (text, _decode(settings.pair, "--pair"))],
            pooling="none",
            tokens=True,
            attention=_attention_options(settings),
            truncation=settings.truncation,
            max_tokens=settings.max_tokens,
        ).results[0]
    assert encoding.attention is not None  # noqa: S101
    weights = encoding.attention[0, 0]
    if settings.format == "jsonl":
        write_json(sys.stdout, attention_record(name, encoding.tokens, weights))
    else:
        print_attention(build_console(sys.stdout), name, encoding.tokens, weights, settings.top)
    return True


def _health(client: Client, watch: SilenceWatch, settings: HealthSettings) -> bool:
    with watch.calling():
        status = client.health(settings.service, deadline_s=settings.timeout_s)
    print(status)
    return status == "SERVING"


def _texts(texts: Sequence[str]) -> Iterator[str]:
    if texts and list(texts) != [STANDARD_INPUT]:
        return (_decode(text, f"text {number}") for number, text in enumerate(texts, 1))
    if not texts:
        _refuse_to_wait()
    lines = (line.removesuffix("\n") for line in sys.stdin)
    return (_decode(line, f"line {number} of standard input") for number, line in enumerate(lines, 1))


def _text(text: str | None) -> str:
    if text is not None and text != STANDARD_INPUT:
        return _decode(text, "the text")
    if text is None:
        _refuse_to_wait()
    return _decode(sys.stdin.read().removesuffix("\n"), "standard input")


def _decode(text: str, name: str) -> str:
    """Bytes that the locale's encoding lacks arrive as surrogates; as UTF-8 they are a text, or none."""
    try:
        return text.encode(errors="surrogateescape").decode()
    except UnicodeError:
        raise ValueError(
            f"{name} has bytes that are not UTF-8: convert it, for instance with iconv"
        ) from None


def _refuse_to_wait() -> None:
    """Somebody who forgot the text would look at a terminal that does nothing."""
    if sys.stdin.isatty():
        raise CommandError("no text: give one, or - to read standard input")


def _tokenize_options(settings: TokenizeSettings) -> TokenizeOptions:
    return {
        "truncation": settings.truncation,
        "max_tokens": settings.max_tokens,
        "prompt_name": settings.prompt_name,
        "prompt": None if settings.prompt is None else _decode(settings.prompt, "--prompt"),
        "on_error": settings.on_error,
    }


def _encode_options(settings: EncodeSettings) -> EncodeOptions:
    return {
        **_tokenize_options(settings),
        "pooling": settings.pooling,
        "normalize": settings.normalize,
        "dimensions": settings.dimensions,
        "embedding_type": settings.type,
        "attention": None,
        "token_embeddings": settings.token_embeddings,
        "tokens": settings.tokens,
        "priority": settings.priority,
    }


def _attention_options(settings: AttendSettings) -> Attention:
    if settings.reduction == "rollout":
        return {"reduction": "rollout"}
    layers = [-1 if settings.layer is None else settings.layer]
    if settings.head is None:
        return {"layers": layers, "reduction": "mean_heads"}
    return {"layers": layers, "heads": [settings.head]}


def _map_name(settings: AttendSettings, model: ModelInfo) -> str:
    if settings.reduction == "rollout":
        return f"{model.name}: rollout over {model.layer_count} layers"
    layer = (-1 if settings.layer is None else settings.layer) % model.layer_count
    head = "mean of all heads" if settings.head is None else f"head {settings.head % model.head_count}"
    return f"{model.name}: layer {layer} (of 0 to {model.layer_count - 1}), {head}"


def _all_well(encodings: Sequence[Encoding]) -> bool:
    return all(encoding.status is None for encoding in encodings)
