"""Settings from flags, environment and defaults, and what their user is told when they are wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic_settings import SettingsConfigDict

from service.config import (
    ENV_PREFIX,
    CommandSettings,
    ServeSettings,
    SettingsError,
    check_environment,
    flag_of,
    load_settings,
    variable_of,
)


class OtherSettings(CommandSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True)
    address: str = "localhost:50051"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def load(**flags: object) -> ServeSettings:
    return load_settings(ServeSettings, {"artifact": "artifacts/mini", **flags})


def refusal(**flags: object) -> str:
    with pytest.raises(SettingsError) as error:
        load(**flags)
    message = str(error.value)
    assert "\n" not in message
    return message


class TestPrecedence:
    def test_default(self) -> None:
        settings = load()
        assert settings.artifact == Path("artifacts/mini")
        assert settings.grpc_address == "0.0.0.0:50051"
        assert settings.http_address == "0.0.0.0:9090"
        assert (settings.provider, settings.precision, settings.lanes) == ("auto", "fp32", "auto")
        assert settings.max_message_bytes == 64 * 1024 * 1024

    def test_environment_over_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SEQENC_LANES", "3")
        assert load().lanes == 3

    def test_flag_over_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SEQENC_LANES", "3")
        assert load(lanes="4").lanes == 4

    def test_a_required_setting_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SEQENC_ARTIFACT", "/models/mini")
        assert load_settings(ServeSettings, {}).artifact == Path("/models/mini")

    def test_a_wrong_variable_is_no_matter_when_the_flag_is_set(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SEQENC_LANES", "many")
        assert load(lanes="4").lanes == 4

    @pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("1", True), ("0", False)])
    def test_booleans(self, monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
        assert load(attention_maps=text).attention_maps is value
        monkeypatch.setenv("SEQENC_ATTENTION_MAPS", text)
        assert load().attention_maps is value

    def test_settings_cannot_be_changed(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            load().lanes = 2


class TestMessages:
    def test_a_missing_setting_names_flag_and_variable(self) -> None:
        with pytest.raises(SettingsError) as error:
            load_settings(ServeSettings, {})
        assert str(error.value) == "--artifact is required (or set SEQENC_ARTIFACT)"

    @pytest.mark.parametrize(
        ("field", "value", "problem"),
        [
            ("threads_per_lane", "0", "input should be greater than 0"),
            ("max_inputs", "-1", "input should be greater than 0"),
            ("max_message_bytes", "5", "input should be greater than or equal to 65536"),
            ("drain_timeout_s", "soon", "input should be a valid number, unable to parse string as a number"),
            ("log_level", "loud", "input should be 'debug', 'info', 'warning' or 'error'"),
            ("colour", "red", "extra inputs are not permitted"),
        ],
    )
    def test_a_wrong_flag_is_named_with_its_limit(self, field: str, value: str, problem: str) -> None:
        assert refusal(**{field: value}) == f"{flag_of(field)}: {problem}, not {value!r}"

    def test_a_wrong_variable_is_named_not_its_flag(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SEQENC_THREADS_PER_LANE", "none")
        assert refusal().startswith("SEQENC_THREADS_PER_LANE: input should be a valid integer")

    def test_an_empty_variable_is_wrong_not_unset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SEQENC_THREADS_PER_LANE", "")
        assert refusal().endswith("not ''")

    @pytest.mark.parametrize("field", ["lanes", "max_batch_tokens"])
    def test_a_number_or_auto_is_named_once(self, field: str) -> None:
        assert refusal(**{field: "0"}).count(flag_of(field)) == 1

    def test_every_wrong_setting_is_named_at_once(self) -> None:
        message = refusal(threads_per_lane="0", max_inputs="0")
        assert "--threads-per-lane" in message
        assert "--max-inputs" in message

    @pytest.mark.parametrize("value", ["nan", "-1", "0"])
    @pytest.mark.parametrize("field", ["warmup_timeout_s", "drain_timeout_s"])
    def test_a_time_is_a_positive_number(self, field: str, value: str) -> None:
        assert flag_of(field) in refusal(**{field: value})

    @pytest.mark.parametrize("address", ["50051", ":50051", "host:", "host:grpc", "[::1]:65536", "host:-1"])
    def test_an_address_is_host_and_port(self, address: str) -> None:
        expected = f"--grpc-address: must be host:port with a port of at most 65535, not {address!r}"
        assert refusal(grpc_address=address) == expected

    @pytest.mark.parametrize("address", ["localhost:0", "0.0.0.0:65535", "[::]:50051"])
    def test_good_addresses(self, address: str) -> None:
        assert load(http_address=address).http_address == address

    @pytest.mark.parametrize("field", ["tls_key", "tls_certificate"])
    def test_certificate_and_key_belong_together(self, field: str) -> None:
        message = "--tls-certificate and --tls-key belong together; give both or neither"
        assert refusal(**{field: "file.pem"}) == message

    def test_the_roots_of_clients_need_tls(self) -> None:
        message = "--tls-client-ca needs TLS; give --tls-certificate and --tls-key as well"
        assert refusal(tls_client_ca="ca.pem") == message
        settings = load(tls_key="k.pem", tls_certificate="c.pem", tls_client_ca="ca.pem")
        assert settings.tls_client_ca == Path("ca.pem")

    def test_a_call_must_fit_into_the_queue(self) -> None:
        assert load(max_inputs=32768).max_inputs == 32768
        assert refusal(max_inputs=32769) == (
            "--max-inputs 32769 is over --max-queued-inputs 32768: a full call could never be admitted; "
            "lower the first or raise the second"
        )


class TestCheckEnvironment:
    def test_every_field_of_every_command_is_known_in_either_case(self) -> None:
        variables = [
            variable_of(field) for field in [*ServeSettings.model_fields, *OtherSettings.model_fields]
        ]
        check_environment([ServeSettings, OtherSettings], dict.fromkeys(variables, "x"))
        check_environment([ServeSettings, OtherSettings], {name.lower(): "x" for name in variables})

    def test_other_programs_variables_are_none_of_our_business(self) -> None:
        check_environment([ServeSettings], {"PATH": "/bin", "SEQENCE": "x", "MY_SEQENC_LANES": "x"})

    @pytest.mark.parametrize("name", ["SEQENC_LANE", "SEQENC_", "SEQENC_PORTS", "seqenc_lane", "SEQENC_PORT"])
    def test_an_unknown_variable_is_named(self, name: str) -> None:
        with pytest.raises(SettingsError) as error:
            check_environment([ServeSettings], {"SEQENC_LANES": "1", name: "1"})
        assert str(error.value) == f"{name} is not a setting of any command; remove or correct it"

    def test_a_field_of_a_command_that_is_not_listed_is_unknown(self) -> None:
        with pytest.raises(SettingsError, match="SEQENC_ADDRESS is not a setting"):
            check_environment([ServeSettings], {"SEQENC_ADDRESS": "localhost:1"})

    @pytest.mark.parametrize("service", ["SEQENC", "SEQENC_CANARY"])
    @pytest.mark.parametrize(
        ("suffix", "value"),
        [
            ("SERVICE_HOST", "10.0.0.1"),
            ("SERVICE_PORT", "50051"),
            ("SERVICE_PORT_GRPC", "50051"),
            ("PORT", "tcp://10.0.0.1:50051"),
            ("PORT_50051_TCP", "tcp://10.0.0.1:50051"),
            ("PORT_50051_TCP_ADDR", "10.0.0.1"),
            ("PORT_50051_TCP_PORT", "50051"),
            ("PORT_50051_TCP_PROTO", "tcp"),
            ("PORT_53_UDP", "udp://10.0.0.1:53"),
        ],
    )
    def test_what_kubernetes_injects_for_services_of_our_name_is_ignored(
        self, service: str, suffix: str, value: str
    ) -> None:
        check_environment([ServeSettings], {f"{service}_{suffix}": value})


@pytest.mark.parametrize("field", ServeSettings.model_fields)
def test_flag_and_variable_of_each_field(field: str) -> None:
    assert flag_of(field) == "--" + field.replace("_", "-")
    assert variable_of(field) == "SEQENC_" + field.upper()
    assert ServeSettings.model_fields[field].description
