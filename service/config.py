"""Settings of the commands: flag over environment (SEQENC_<FLAG>) over default; read only when asked to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

ENV_PREFIX = "SEQENC_"
# What Kubernetes injects into every pod for a Service named `seqenc` or `seqenc-…`.
_KUBERNETES_VARIABLE = re.compile(
    r"SEQENC_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)=.*"
    r"|SEQENC_(\w+_)?PORT=(tcp|udp|sctp)://.*"
)

Auto = Literal["auto"]
_MAX_PORT = 65535


def _check_address(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) <= _MAX_PORT):
        raise ValueError(f"must be host:port with a port of at most {_MAX_PORT}")
    return address


Address = Annotated[str, AfterValidator(_check_address)]

# Settings that several commands have.
ProviderName = Annotated[
    Literal["auto", "cpu", "openvino", "cuda"],
    Field(description="what runs the graphs; auto: the fastest that works here in the precision chosen"),
]
PrecisionName = Annotated[
    Literal["fp32", "bf16", "int8", "fp16"],
    Field(description="what vectors are computed in: cpu fp32, int8; openvino fp32, bf16; cuda fp32, fp16"),
]
DeviceId = Annotated[NonNegativeInt, Field(description="GPU that `cuda` uses")]
LaneCount = Annotated[
    PositiveInt | Auto,
    Field(description="batches run side by side; auto: one for each core this process may use"),
]
BatchTokens = Annotated[
    PositiveInt | Auto, Field(description="tokens of one batch, padding included; auto: by provider")
]
LogFormat = Annotated[Literal["text", "json"], Field(description="form of the log lines on standard error")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], Field(description="lowest level logged")]


class SettingsError(Exception):
    """A flag or variable is unknown or has a value that cannot be used; the message is for its user."""


@dataclass(frozen=True, slots=True)
class Positional:
    """Marks a field that is given without a flag."""


# A variable holds one.
Words = Annotated[
    tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)
]


class CommandSettings(BaseSettings):
    """A command's settings: each field is the flag --field-name and the variable SEQENC_FIELD_NAME."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, env_ignore_empty=False, enable_decoding=False
    )


class ServeSettings(CommandSettings):
    artifact: Annotated[Path, Field(description="folder written by `seqenc-model export`")]
    grpc_address: Annotated[Address, Field(description="address of the gRPC API")] = "0.0.0.0:50051"
    http_address: Annotated[Address, Field(description="address of /metrics, /healthz and /readyz")] = (
        "0.0.0.0:9090"
    )
    provider: ProviderName = "auto"
    precision: PrecisionName = "fp32"
    device_id: DeviceId = 0
    lanes: LaneCount = "auto"
    threads_per_lane: Annotated[
        PositiveInt, Field(description="threads of one batch; more help a lone long text")
    ] = 1
    max_batch_tokens: BatchTokens = "auto"
    max_batch_map_cells: Annotated[
        PositiveInt,
        Field(description="cells (layers x heads x tokens x tokens) of one batch with attention maps"),
    ] = 1 << 24
    max_queued_inputs: Annotated[
        PositiveInt, Field(description="inputs that may wait; over it calls are refused")
    ] = 32768
    max_queued_tokens: Annotated[
        PositiveInt, Field(description="tokens that may wait; over it calls are refused")
    ] = 4 << 20
    max_inputs: Annotated[PositiveInt, Field(description="inputs of one call")] = 2048
    max_text_characters: Annotated[
        PositiveInt, Field(description="characters of one text, also when it is to be truncated")
    ] = 2_000_000
    max_message_bytes: Annotated[
        PositiveInt, Field(ge=1 << 16, le=(1 << 31) - 1, description="size of one gRPC message, either way")
    ] = 64 << 20
    max_stream_inflight: Annotated[
        PositiveInt,
        Field(description="messages of one EncodeStream in work at once; further ones wait unread"),
    ] = 8
    memory_limit_bytes: Annotated[
        PositiveInt | Auto,
        Field(description="memory that the worst load must fit in, checked at start; auto: the cgroup's"),
    ] = "auto"
    attention_maps: Annotated[bool, Field(description="load the graph that returns attention maps")] = True
    reflection: Annotated[bool, Field(description="answer gRPC server reflection")] = True
    tls_certificate: Annotated[
        Path | None,
        Field(description="PEM certificate chain of the gRPC address, which then takes only TLS"),
    ] = None
    tls_key: Annotated[
        Path | None, Field(description="PEM key of --tls-certificate; like it, re-read when it changes")
    ] = None
    tls_client_ca: Annotated[
        Path | None, Field(description="PEM roots that a client's certificate must come from: mutual TLS")
    ] = None
    tokens_file: Annotated[
        Path | None,
        Field(description="lines of name:token; every call but health then needs one of these bearer tokens"),
    ] = None
    health_address: Annotated[
        Address | None,
        Field(description="address of grpc.health.v1 alone, in plaintext and open, for probes"),
    ] = None
    quota_inputs_per_s: Annotated[
        PositiveFloat | None,
        Field(description="inputs a second of one client, by token or certificate; none given: any"),
    ] = None
    max_concurrent_calls: Annotated[
        PositiveInt, Field(description="calls in work at once, health apart; over it calls are refused")
    ] = 4096
    max_streams_per_connection: Annotated[
        PositiveInt, Field(description="calls in work at once on one connection; further ones wait there")
    ] = 1024
    max_metadata_bytes: Annotated[
        PositiveInt, Field(ge=1 << 10, le=1 << 20, description="size of the metadata of one call")
    ] = 16 << 10
    default_deadline_s: Annotated[
        NonNegativeFloat,
        Field(description="deadline of calls, and of each message of a stream, that come with none; 0: none"),
    ] = 300.0
    max_connection_age_s: Annotated[
        NonNegativeFloat,
        Field(description="age at which a connection is closed, for clients to rebalance; 0: never"),
    ] = 1800.0
    max_connection_age_grace_s: Annotated[
        NonNegativeFloat,
        Field(description="time that calls then get to end before they are cut off; 0: any"),
    ] = 0.0
    max_connection_idle_s: Annotated[
        NonNegativeFloat, Field(description="time without a call after which a connection is closed; 0: any")
    ] = 0.0
    min_ping_interval_s: Annotated[
        PositiveFloat, Field(description="time that a client leaves between keepalive pings, calls or none")
    ] = 5.0
    warmup_timeout_s: Annotated[
        PositiveFloat, Field(description="time that loading and warming up may take")
    ] = 120.0
    run_timeout_s: Annotated[
        PositiveFloat,
        Field(description="time that a batch may run; over it, it is stopped, or else the process ends"),
    ] = 60.0
    drain_delay_s: Annotated[
        NonNegativeFloat,
        Field(description="time after SIGTERM in which calls are still taken, until clients see NOT_SERVING"),
    ] = 0.0
    drain_timeout_s: Annotated[
        PositiveFloat, Field(description="time that admitted calls get to finish after SIGTERM")
    ] = 30.0
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    log_sample_rate: Annotated[
        float, Field(ge=0, le=1, description="share of the calls that get a line in the log each")
    ] = 0.0
    slow_call_s: Annotated[
        NonNegativeFloat,
        Field(description="time from which a call, or a message of a stream, is always logged; 0: never"),
    ] = 1.0
    otlp_endpoint: Annotated[
        str | None,
        Field(
            pattern=r"^https?://[^/]+/?$",
            description="http(s)://host:port of a collector that gets traces over OTLP/gRPC; extra `otel`",
        ),
    ] = None
    tuning: Annotated[
        Path | None, Field(description="file of `seqenc tune`; it gives what no flag or variable sets")
    ] = None

    @model_validator(mode="after")
    def _check_tls_is_whole(self) -> ServeSettings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("--tls-certificate and --tls-key belong together; give both or neither")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("--tls-client-ca needs TLS; give --tls-certificate and --tls-key as well")
        return self

    @model_validator(mode="after")
    def _check_queue_holds_a_call(self) -> ServeSettings:
        if self.max_inputs > self.max_queued_inputs:
            raise ValueError(
                f"--max-inputs {self.max_inputs} is over --max-queued-inputs {self.max_queued_inputs}: "
                "a full call could never be admitted; lower the first or raise the second"
            )
        return self


class TuneSettings(CommandSettings):
    artifact: Annotated[Path, Field(description="folder written by `seqenc-model export`")]
    out: Annotated[Path, Field(description="file to write, for `seqenc serve --tuning`")]
    min_cosine: Annotated[
        float, Field(ge=-1, le=1, description="lowest cosine to fp32 that any text's vector may have")
    ] = 0.999
    seconds: Annotated[PositiveFloat, Field(description="time to measure for, in all")] = 60.0


Settings = TypeVar("Settings", bound=CommandSettings)


def flag_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def is_positional(command: type[CommandSettings], field: str) -> bool:
    return any(isinstance(mark, Positional) for mark in command.model_fields[field].metadata)


def variable_of(field: str) -> str:
    return ENV_PREFIX + field.upper()


def check_environment(commands: Iterable[type[CommandSettings]], environment: Mapping[str, str]) -> None:
    """Raises SettingsError for a SEQENC_ variable that is no flag's and that Kubernetes does not inject."""
    known = {variable_of(field) for command in commands for field in command.model_fields}
    for name, value in sorted(environment.items()):
        ours = name.upper().startswith(ENV_PREFIX) and not _KUBERNETES_VARIABLE.fullmatch(f"{name}={value}")
        if ours and name.upper() not in known:
            raise SettingsError(f"{name} is not a setting of any command; remove or correct it")


def load_settings(command: type[Settings], flags: Mapping[str, Any]) -> Settings:
    """Builds a command's settings from its flags, then the environment, then the defaults."""
    try:
        return command(**flags)
    except ValidationError as error:
        raise SettingsError(_describe_all(error.errors(), command, flags)) from None


def _describe_all(problems: Iterable[Any], command: type[CommandSettings], flags: Mapping[str, Any]) -> str:
    """One sentence for each field: of a union only what its first alternative says."""
    first_by_field = {problem["loc"][:1]: problem for problem in reversed(list(problems))}
    return "; ".join(_describe(problem, command, flags) for problem in reversed(first_by_field.values()))


def _describe(problem: Any, command: type[CommandSettings], flags: Mapping[str, Any]) -> str:
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return str(message)
    field = str(problem["loc"][0])
    name = flag_of(field)
    if field in command.model_fields and is_positional(command, field):
        name = field
    if field not in flags and problem["type"] != "missing":
        name = variable_of(field)
    if problem["type"] == "missing":
        return f"{name} is required (or set {variable_of(field)})"
    return f"{name}: {message[0].lower()}{message[1:]}, not {problem['input']!r}"
