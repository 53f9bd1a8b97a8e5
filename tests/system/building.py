"""Builds what these tests run, and keeps it in `.build/` until its sources change.

By Go an API server, etcd, helm, h2spec; by mypyc the picker. h2load, Chromium and Prometheus come from the distribution's
packages, the CRDs of the Gateway API inference extension from its Go module.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from release import compiled_wheel

ROOT: Final = Path(__file__).parents[2]
BINARIES: Final = ROOT / ".build" / "bin"
SOURCES: Final = Path(__file__).parent / "apiserver"
KUBERNETES: Final = "v1.37.1"
"""The version that `apiserver/go.mod` requires, which a server does not know by itself."""
GO: Final = (1, 26)
INFERENCE_EXTENSION: Final = "sigs.k8s.io/gateway-api-inference-extension@v1.5.0"
CRDS: Final = ROOT / ".build" / "crds"
PACKAGES: Final = {
    "h2load": "nghttp2-client",
    "chromium": "chromium",
    "prometheus": "prometheus",
    "systemd-analyze": "systemd",
}
"""Programs, each with Debian's package of it."""


class BuildError(Exception):
    """A tool is missing or does not build; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`build`: arguments of `go`; `made_of`: what it is built from, as text."""

    name: str
    build: tuple[str, ...]
    made_of: str
    where: Path = ROOT

    @property
    def path(self) -> Path:
        return BINARIES / self.name

    @property
    def stamp(self) -> Path:
        return BINARIES / f".{self.name}.made-of"


def tools() -> tuple[Tool, ...]:
    return (
        _installed("helm", "helm.sh/helm/v3/cmd/helm@v3.22.0"),
        _installed("h2spec", "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"),
        _apiserver(),
        _etcd(),
    )


def build_all() -> None:
    """Builds what is missing or outdated; raises BuildError."""
    try:
        compiled_wheel.build()
    except compiled_wheel.CompileError as error:
        raise BuildError(str(error)) from error
    for tool in tools():
        if tool.path.is_file() and tool.stamp.is_file() and tool.stamp.read_text() == tool.made_of:
            continue
        _build(tool)
        tool.stamp.write_text(tool.made_of)
    fetch_crds()


def fetch_crds() -> None:
    """Copies the CRDs of INFERENCE_EXTENSION to CRDS, if they are not there; raises BuildError."""
    stamp = CRDS / ".made-of"
    if stamp.is_file() and stamp.read_text() == INFERENCE_EXTENSION:
        return
    _check_go()
    done = _go("mod", "download", "-json", INFERENCE_EXTENSION, where=ROOT)
    if done.returncode != 0:
        raise BuildError(
            f"there are no CRDs; `go mod download {INFERENCE_EXTENSION}` said:\n{done.stdout[-2000:]}"
        )
    module = Path(json.loads(done.stdout)["Dir"])
    CRDS.mkdir(parents=True, exist_ok=True)
    for crd in (module / "config" / "crd" / "bases").glob("*.yaml"):
        (CRDS / crd.name).write_bytes(crd.read_bytes())
    stamp.write_text(INFERENCE_EXTENSION)


def install_packages() -> None:
    """Installs the Debian packages of the programs that are missing; raises BuildError."""
    missing = {program: package for program, package in PACKAGES.items() if shutil.which(program) is None}
    if not missing:
        return
    programs = " and ".join(f"`{program}`" for program in missing)
    if shutil.which("apt-get") is None:
        raise BuildError(f"there is no {programs}: install {', '.join(missing.values())} as Debian has them")
    for words in (("update",), ("install", "--yes", "--no-install-recommends", *missing.values())):
        print(f"tests.system: apt-get {' '.join(words)}", flush=True)
        done = subprocess.run(
            ["apt-get", "--quiet", *words],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise BuildError(f"there is no {programs}, and apt-get {words[0]} failed:\n{done.stdout[-2000:]}")


def _installed(name: str, package: str) -> Tool:
    return Tool(name, ("install", package), package)


def _apiserver() -> Tool:
    version = f"-X k8s.io/component-base/version.gitVersion={KUBERNETES}"
    build = _build_arguments("apiserver", ".", version)
    return Tool("apiserver", build, f"{KUBERNETES} {_digest('main.go')}", SOURCES)


def _etcd() -> Tool:
    """Of the same module as the API server's etcd, so of the same version."""
    return Tool("etcd", _build_arguments("etcd", "./etcd"), _digest("etcd/main.go"), SOURCES)


def _build_arguments(name: str, package: str, linker: str = "") -> tuple[str, ...]:
    output = str(BINARIES / name)
    return ("build", "-buildvcs=false", "-ldflags", f"-s -w {linker}".strip(), "-o", output, package)


def _digest(main: str) -> str:
    digest = hashlib.sha256()
    for source in ("go.mod", "go.sum", main):
        digest.update((SOURCES / source).read_bytes())
    return digest.hexdigest()


def _build(tool: Tool) -> None:
    _check_go()
    BINARIES.mkdir(parents=True, exist_ok=True)
    print(f"building {tool.name} (the first time some minutes) ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    done = _go(*tool.build, where=tool.where)
    if done.returncode != 0:
        raise BuildError(
            f"{tool.name} does not build; `go {' '.join(tool.build)}` said:\n{done.stderr[-4000:]}"
        )
    print(f"built {tool.name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _go(*arguments: str, where: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GOBIN": str(BINARIES), "GOWORK": "off"}
    return subprocess.run(
        ["go", *arguments],
        cwd=where,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def _check_go() -> None:
    if shutil.which("go") is None:
        raise BuildError("there is no `go`: install Go 1.26 or newer, or put it on PATH")
    said = subprocess.run(["go", "version"], capture_output=True, text=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < GO:
        raise BuildError(f"Go 1.26 or newer is needed; `go version` says {said.strip()!r}")
