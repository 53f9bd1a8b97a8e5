"""`python -m epp.wire.generate`: compile the .proto files of this folder into `epp/wire/messages` (needs grpcio-tools)."""

from importlib.resources import files
from pathlib import Path

FOLDER = Path(__file__).parent


def main(output: Path = FOLDER / "messages") -> int:
    """Returns the exit code of protoc."""
    try:
        from grpc_tools import protoc  # type: ignore[import-untyped]  # grpcio-tools ships no types
    except ImportError:
        raise SystemExit("epp.wire.generate needs grpcio-tools: pip install grpcio-tools") from None
    well_known = files("grpc_tools") / "_proto"
    arguments = ["protoc", f"-I{FOLDER}", f"-I{well_known}", f"--python_out={output}", f"--pyi_out={output}"]
    return int(protoc.main([*arguments, *sorted(str(path) for path in FOLDER.glob("*.proto"))]))


if __name__ == "__main__":
    raise SystemExit(main())
