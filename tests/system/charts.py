"""Renders the charts with helm."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from tests.system.building import BINARIES

CHARTS: Final = Path(__file__).parents[2] / "charts"
KUBE_VERSION: Final = "1.30.0"
"""The oldest version that the charts allow; a helm built by `go install` has no default."""

Object: TypeAlias = dict[str, Any]


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs helm with `values` as a values file on standard input."""
    return subprocess.run(
        [str(BINARIES / "helm"), *arguments, "--kube-version", KUBE_VERSION, "-f", "-"],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        timeout=120,
    )


def render(
    chart: str, values: Mapping[str, Any], release: str = "r", namespace: str = "prod"
) -> list[Object]:
    """The objects of a release in a Kubernetes namespace."""
    done = helm("template", release, str(CHARTS / chart), "--namespace", namespace, values=values)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def rights(objects: Sequence[Object]) -> list[Object]:
    """The service account, and the Role and RoleBinding if it needs any."""
    wanted = ("ServiceAccount", "Role", "RoleBinding")
    return [found for found in objects if found["kind"] in wanted]


def one(objects: Sequence[Object], kind: str) -> Object:
    (found,) = [candidate for candidate in objects if candidate["kind"] == kind]
    return found


def workload(objects: Sequence[Object]) -> Object:
    (found,) = [candidate for candidate in objects if candidate["kind"] in ("Deployment", "StatefulSet")]
    return found


def pod_spec(objects: Sequence[Object]) -> Object:
    spec: Object = workload(objects)["spec"]["template"]["spec"]
    return spec


def container(objects: Sequence[Object], name: str) -> Object:
    (found,) = [candidate for candidate in pod_spec(objects)["containers"] if candidate["name"] == name]
    assert isinstance(found, dict)
    return found


def service(objects: Sequence[Object]) -> Object:
    """The Service with an address of its own, not the headless one beside it."""
    services = [found for found in objects if found["kind"] == "Service"]
    (found,) = [found for found in services if found["spec"].get("clusterIP") != "None"]
    return found
