"""The protocol's names, numbers and types never change, and the committed stubs are those of the .proto."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from contract.stubs import RUNS_HERE, run_protoc, stale_stubs
from seqenc.v1 import encoder_pb2

TYPE_NAMES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}

needs_protoc = pytest.mark.skipif(not RUNS_HERE, reason="protoc runs with Python 3.11 or 3.12")
FROZEN = Path(__file__).with_name("encoder.contract")


def test_names_numbers_and_types_are_the_contract() -> None:
    assert list(_lines()) == FROZEN.read_text().splitlines()


@needs_protoc
def test_stubs_are_those_of_the_proto() -> None:
    assert stale_stubs() == []


@needs_protoc
def test_everything_has_a_comment(tmp_path: Path) -> None:
    target = tmp_path / "descriptors"
    run_protoc("seqenc/v1/encoder.proto", "--include_source_info", f"--descriptor_set_out={target}")
    (file,) = FileDescriptorSet.FromString(target.read_bytes()).file
    commented = {
        tuple(place.path)
        for place in file.source_code_info.location
        if place.leading_comments or place.trailing_comments
    }
    assert [name for path, name in _declarations(file) if path not in commented] == []


def _declarations(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """Path, as in SourceCodeInfo, and name of every message, enum and service and what each consists of."""
    numbers = {name: field.number for name, field in file.DESCRIPTOR.fields_by_name.items()}
    for kind, part in (("message_type", "field"), ("enum_type", "value"), ("service", "method")):
        for index, outer in enumerate(getattr(file, kind)):
            path = (numbers[kind], index)
            yield path, outer.name
            part_number = outer.DESCRIPTOR.fields_by_name[part].number
            for inner_index, inner in enumerate(getattr(outer, part)):
                yield (*path, part_number, inner_index), f"{outer.name}.{inner.name}"


def _lines() -> Iterator[str]:
    """The protocol, one thing a line, as in encoder.contract."""
    file = encoder_pb2.DESCRIPTOR
    for service in file.services_by_name.values():
        yield from (_rpc(method) for method in service.methods)
    for message in file.message_types_by_name.values():
        yield from (_field(field) for field in message.fields)
    for enum in file.enum_types_by_name.values():
        yield from (f"{enum.full_name} {value.number} {value.name}" for value in enum.values)


def _rpc(method: MethodDescriptor) -> str:
    request = ("stream " if method.client_streaming else "") + method.input_type.full_name
    reply = ("stream " if method.server_streaming else "") + method.output_type.full_name
    return f"rpc {method.full_name}({request}) returns ({reply})"


def _field(field: FieldDescriptor) -> str:
    message, kind = field.containing_type, field.message_type or field.enum_type
    assert message is not None
    words = [
        str(field.number),
        field.containing_oneof.name if field.containing_oneof else "",
        "repeated" if field.is_repeated else "",
        kind.full_name if kind else TYPE_NAMES[field.type],
        field.name,
    ]
    return f"{message.full_name} {' '.join(filter(None, words))}"
