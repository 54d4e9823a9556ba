"""Settings of the commands that talk to a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from service.config import CommandSettings, Positional, Words

Format = Literal["table", "jsonl"]
Texts = Annotated[
    Words,
    Field(description="texts; `-` or none: the lines of standard input, one text each"),
    Positional(),
]

# Of vectors, whether they are asked for one call or for a whole job.
PoolingMode = Annotated[
    Literal["none", "cls", "mean", "max", "last"] | None,
    Field(description="how token vectors become one; none given: the model's own"),
]
Normalize = Annotated[
    bool | None, Field(description="whether vectors get length 1; none given: the model's own")
]
Dimensions = Annotated[PositiveInt | None, Field(description="keep the first n values of a vector")]


class ConnectionSettings(CommandSettings):
    address: Annotated[
        str, Field(description="host:port of the server, several with commas, or dns:///name:port")
    ] = "localhost:50051"
    tls: Annotated[bool, Field(description="connect with TLS; any other --tls-* flag implies it")] = False
    tls_ca: Annotated[Path | None, Field(description="PEM file of the roots to trust")] = None
    tls_certificate: Annotated[
        Path | None, Field(description="PEM file of the client's certificate, for mutual TLS")
    ] = None
    tls_key: Annotated[Path | None, Field(description="PEM file of the client's key, for mutual TLS")] = None
    tls_server_name: Annotated[
        str | None, Field(description="name to expect in the server's certificate, where not the address")
    ] = None
    token_file: Annotated[Path | None, Field(description="file with the bearer token to send")] = None


class TokenizeSettings(ConnectionSettings):
    texts: Texts = ()
    truncation: Annotated[
        Literal["error", "right", "left"],
        Field(description="what happens to a text that is too long: refused, or cut at an end"),
    ] = "error"
    max_tokens: Annotated[
        PositiveInt | None, Field(description="limit of a text, special tokens included")
    ] = None
    prompt_name: Annotated[str | None, Field(description="one of the model's prompts to put first")] = None
    prompt: Annotated[str | None, Field(description="literal prompt to put first")] = None
    on_error: Annotated[
        Literal["fail_call", "per_input"],
        Field(description="whether one bad text fails all, or only itself"),
    ] = "fail_call"
    format: Annotated[Format, Field(description="a table to read, or JSON lines")] = "table"
    deadline_s: Annotated[
        PositiveFloat | None, Field(description="time that the command may take; none given: any")
    ] = None
    expected_revision: Annotated[
        str, Field(description="refuse a server whose model has another revision")
    ] = ""


class EncodeSettings(TokenizeSettings):
    pooling: PoolingMode = None
    normalize: Normalize = None
    dimensions: Dimensions = None
    type: Annotated[
        Literal["float32", "float16", "bfloat16", "int8", "ubinary"],
        Field(description="type of the vectors on the wire"),
    ] = "float32"
    token_embeddings: Annotated[bool, Field(description="also print a vector for each token")] = False
    tokens: Annotated[bool, Field(description="also print the tokens")] = False
    priority: Annotated[
        int, Field(ge=-3, le=3, description="each step doubles this call's share of the server")
    ] = 0


class AttendSettings(ConnectionSettings):
    text: Annotated[str | None, Field(description="text; `-` or none: standard input"), Positional()] = None
    pair: Annotated[str | None, Field(description="second text of a pair")] = None
    layer: Annotated[
        int | None, Field(description="index from 0, or from the last with -1; none given: the last")
    ] = None
    head: Annotated[
        int | None, Field(description="index from 0, or from the last with -1; none given: all heads' mean")
    ] = None
    reduction: Annotated[
        Literal["mean_heads", "rollout"] | None,
        Field(description="mean_heads, or rollout: attention followed through all layers"),
    ] = None
    top: Annotated[PositiveInt, Field(description="strongest links to print for each token")] = 3
    truncation: Annotated[
        Literal["error", "right", "left"],
        Field(description="what happens to a text that is too long: refused, or cut at an end"),
    ] = "error"
    max_tokens: Annotated[
        PositiveInt | None, Field(description="limit of the text, special tokens included")
    ] = None
    format: Annotated[Format, Field(description="a table to read, or one line of JSON")] = "table"
    deadline_s: Annotated[
        PositiveFloat | None, Field(description="time that the command may take; none given: any")
    ] = None

    @model_validator(mode="after")
    def _check_choice(self) -> AttendSettings:
        if self.reduction == "rollout" and (self.layer is not None or self.head is not None):
            raise ValueError("--reduction rollout covers all layers and heads: leave out --layer and --head")
        if self.reduction == "mean_heads" and self.head is not None:
            raise ValueError("--reduction mean_heads covers all heads: leave out --head")
        return self


class HealthSettings(ConnectionSettings):
    service: Annotated[str, Field(description="service to ask about; none given: the server as a whole")] = ""
    timeout_s: Annotated[PositiveFloat, Field(description="time to wait for the answer")] = 5.0
