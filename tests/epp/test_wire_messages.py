"""Our copy of the messages against what Envoy's external_processor.proto says: only numbers and kinds travel."""

from pathlib import Path

import pytest

from discovery.eds.messages import eds_pb2 as eds
from epp.peers.messages import peers_pb2 as peers
from epp.wire import generate
from epp.wire.messages import access_log_pb2 as log
from epp.wire.messages import ext_proc_pb2 as wire
from epp.wire.messages import health_pb2

FIELDS = """\
wire.ProcessingRequest: request_headers=2 response_headers=3 request_body=4 response_body=5 request_trailers=6 response_trailers=7 metadata_context=8 attributes=9 observability_mode=10 protocol_config=11
wire.ProcessingResponse: request_headers=1 response_headers=2 request_body=3 response_body=4 request_trailers=5 response_trailers=6 immediate_response=7 dynamic_metadata=8 mode_override=9 override_message_timeout=10 streamed_immediate_response=11 request_drain=12
wire.HeaderValue: key=1 value=2 raw_value=3
wire.HeaderValueOption: header=1 append_action=3 keep_empty_value=4
wire.HeaderMutation: set_headers=1 remove_headers=2
wire.HttpHeaders: headers=1 end_of_stream=3
wire.CommonResponse: status=1 header_mutation=2 body_mutation=3 trailers=4 clear_route_cache=5
wire.BodyMutation: body=1 clear_body=2 streamed_response=3
wire.ImmediateResponse: status=1 headers=2 body=3 grpc_status=4 details=5
log.StreamAccessLogsMessage: http_logs=2
log.HTTPAccessLogEntries: log_entry=1
log.HTTPAccessLogEntry: common_properties=1 response=4
log.HTTPResponseProperties: response_code=1 response_headers=4
log.AccessLogCommon: time_to_first_upstream_rx_byte=9 upstream_remote_address=13 response_flags=16 custom_tags=22 duration=23 upstream_request_attempt_count=24 access_log_type=33
log.ResponseFlags: no_healthy_upstream=2 upstream_request_timeout=3 upstream_remote_reset=5 upstream_connection_failure=6 upstream_connection_termination=7 downstream_connection_termination=15 upstream_protocol_error=24 downstream_remote_reset=28
log.Address: socket_address=1
log.SocketAddress: address=2 port_value=3
health.HealthCheckRequest: service=1
health.HealthCheckResponse: status=1
eds.DiscoveryRequest: version_info=1 node=2 resource_names=3 type_url=4 response_nonce=5 error_detail=6
eds.DiscoveryResponse: version_info=1 resources=2 type_url=4 nonce=5
eds.ClusterLoadAssignment: cluster_name=1 endpoints=2
eds.LocalityLbEndpoints: locality=1 lb_endpoints=2
eds.LbEndpoint: endpoint=1 health_status=2
eds.Endpoint: address=1
eds.Address: socket_address=1
eds.SocketAddress: address=2 port_value=3
eds.Locality: region=1 zone=2
eds.Node: id=1 cluster=2
eds.RpcStatus: code=1 message=2
eds.HealthCheckResponse: status=1
peers.News: hello=1 anew=2 age_ms=3 endpoints=4 models=5 layout=6 picks=14 moves=8 served=9 failed=10 ended=11 ejections=12 log_entries=13 learnt=15 helped=16 unhelped=17 queues=18 begun=19
peers.Hello: version=1 oldest=2 name=3
peers.Endpoint: number=1 id=2 incarnation=3
peers.Model: number=1 name=2
peers.Picks: numbers=1 endpoints=2 models=3 prompt_bytes=4 held=5 streaming=6 units=7 backs=8 shared=9 fresh=10 blocks=11 helpers=12
peers.Helper: row=1 endpoint=2 held=3 computes=4
peers.Move: number=1 endpoint=2
peers.Ejections: endpoints=1
"""
MODULES = {"wire": wire, "log": log, "health": health_pb2, "eds": eds, "peers": peers}


def fields_of(line: str) -> tuple[type, dict[str, int]]:
    name, _, numbers = line.partition(": ")
    module, message = name.split(".")
    pairs = (pair.split("=") for pair in numbers.split())
    return getattr(MODULES[module], message), {field: int(number) for field, number in pairs}


@pytest.mark.parametrize(("message", "numbers"), [fields_of(line) for line in FIELDS.splitlines()])
def test_field_numbers(message: type, numbers: dict[str, int]) -> None:
    descriptor = message.DESCRIPTOR  # type: ignore[attr-defined]  # every generated message has one
    assert {field.name: field.number for field in descriptor.fields} == numbers


def test_a_routed_answer_byte_for_byte() -> None:
    answer = wire.ProcessingResponse()
    option = answer.request_headers.response.header_mutation.set_headers.add(append_action=2)
    option.header.key, option.header.raw_value = "k", b"v"
    answer.request_headers.response.clear_route_cache = True
    value = b"\x0a\x01k" + b"\x1a\x01v"
    mutation = b"\x0a\x0a" + b"\x0a\x06" + value + b"\x18\x02"
    common = b"\x12\x0c" + mutation + b"\x28\x01"
    assert answer.SerializeToString() == b"\x0a\x12" + b"\x0a\x10" + common


def test_a_field_of_a_newer_envoy_is_no_harm() -> None:
    newer = b"\xfa\x06\x03abc"  # field 111
    message = wire.ProcessingRequest.FromString(wire.ProcessingRequest().SerializeToString() + newer)
    assert message.WhichOneof("request") is None


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        (generate.FOLDER, {"access_log", "ext_proc", "health"}),
        (generate.EDS_FOLDER, {"eds"}),
        (generate.ETCD_FOLDER, {"etcd"}),
        (generate.PEERS_FOLDER, {"peers"}),
    ],
)
def test_the_generated_files_are_up_to_date(folder: Path, names: set[str], tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    assert generate.main(tmp_path, folder) == 0
    kept = folder / "messages"
    fresh = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(fresh) == {f"{name}_pb2.{kind}" for name in names for kind in ("py", "pyi")}
    assert fresh == {name: (kept / name).read_text() for name in fresh}
