"""`python -m epp.wire.generate`: compile our .proto files into the `messages` beside them (needs grpcio-tools)."""

from importlib.resources import files
from pathlib import Path

FOLDER = Path(__file__).parent
EDS_FOLDER = Path(str(files("discovery"))) / "eds"
ETCD_FOLDER = Path(str(files("discovery"))) / "etcd"
PEERS_FOLDER = FOLDER.parent / "peers"


def main(output: Path | None = None, folder: Path = FOLDER) -> int:
    """Returns the exit code of protoc."""
    try:
        from grpc_tools import protoc  # type: ignore[import-untyped]  # grpcio-tools ships no types
    except ImportError:
        raise SystemExit("epp.wire.generate needs grpcio-tools: pip install grpcio-tools") from None
    output = output or folder / "messages"
    well_known = files("grpc_tools") / "_proto"
    arguments = ["protoc", f"-I{folder}", f"-I{well_known}", f"--python_out={output}", f"--pyi_out={output}"]
    return int(protoc.main([*arguments, *sorted(str(path) for path in folder.glob("*.proto"))]))


if __name__ == "__main__":
    raise SystemExit(
        main() or main(folder=EDS_FOLDER) or main(folder=ETCD_FOLDER) or main(folder=PEERS_FOLDER)
    )
