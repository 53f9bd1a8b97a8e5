"""Our subset of etcd's messages against the ones that the etcd of these tests was built from."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from discovery.etcd.messages import etcd_pb2
from tests.system.building import SOURCES

_FIELD = re.compile(r"^\s*(repeated )?([\w.]+) (\w+) = (\d+)")
_KINDS = {
    1: "double", 3: "int64", 4: "uint64", 8: "bool", 9: "string", 12: "bytes", 5: "int32"
}  # fmt: skip


def module_folder() -> Path:
    done = subprocess.run(
        ["go", "list", "-m", "-json", "go.etcd.io/etcd/api/v3"],
        cwd=SOURCES, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(json.loads(done.stdout)["Dir"])


@pytest.fixture(scope="module")
def theirs() -> dict[str, dict[str, tuple[int, str, bool]]]:
    """By message and field: its number, its type without package, whether it is repeated."""
    found: dict[str, dict[str, tuple[int, str, bool]]] = {}
    for path in ("etcdserverpb/rpc.proto", "mvccpb/kv.proto"):
        message: dict[str, tuple[int, str, bool]] = {}
        for line in (module_folder() / path).read_text().splitlines():
            if line.startswith("message "):
                message = found.setdefault(line.split()[1], {})
            elif field := _FIELD.match(line):
                message[field[3]] = (int(field[4]), field[2].rpartition(".")[2], bool(field[1]))
    return found


@pytest.mark.parametrize("name", sorted(etcd_pb2.DESCRIPTOR.message_types_by_name))
def test_every_field_is_etcds(name: str, theirs: dict[str, dict[str, tuple[int, str, bool]]]) -> None:
    for field in etcd_pb2.DESCRIPTOR.message_types_by_name[name].fields:
        kind = field.message_type or field.enum_type
        ours = (field.number, kind.name if kind else _KINDS[field.type], field.is_repeated)
        assert ours == theirs[name][field.name], field.name
