"""Calls a server knowing nothing of it but what it says by reflection, as grpcurl does.

Argument: the server's address. Standard input: a JSON object of method names and requests. Standard output:
the services, and the reply to each request.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def call(channel: grpc.Channel, pool: DescriptorPool, method: str, request: dict[str, Any]) -> dict[str, Any]:
    service, _, name = method.rpartition("/")
    descriptor = pool.FindServiceByName(service).methods_by_name[name]
    message = ParseDict(request, GetMessageClass(descriptor.input_type)(), descriptor_pool=pool)
    rpc = channel.unary_unary(
        f"/{method}",
        lambda sent: sent.SerializeToString(),
        GetMessageClass(descriptor.output_type).FromString,
    )
    return MessageToDict(rpc(message, timeout=30), descriptor_pool=pool)


def main(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        replies = {
            method: call(channel, pool, method, request) for method, request in json.load(sys.stdin).items()
        }
        ours = [name for name in sys.modules if name.partition(".")[0] in ("seqenc", "service")]
        print(json.dumps({"services": database.get_services(), "replies": replies, "imported": ours}))


if __name__ == "__main__":
    main(*sys.argv[1:])
