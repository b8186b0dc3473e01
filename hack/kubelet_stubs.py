"""Build hook: Python messages and gRPC stubs, with their types, from node-daemons/kubelet_api/*.proto.

Runs whenever the project is built or installed, also editable. What is generated lies beside its source, is in no
commit, and is part of the wheel. Each file is replaced in one step: programs may be importing them meanwhile.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE_ROOT = Path("node-daemons")
PACKAGE = "kubelet_api"


class KubeletStubs(BuildHookInterface[Any]):
    """Named in pyproject.toml as the wheel's custom hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before files are collected, for a wheel and for an editable install."""
        generate(Path(self.root))


def generate(root: Path) -> None:
    """Bring the generated files of the project at ``root`` up to date; RuntimeError when a .proto is refused."""
    # Both belong to the build environment alone.
    from grpc_tools import protoc

    source_root = root / SOURCE_ROOT
    package = source_root / PACKAGE
    protos = sorted(package.glob("*.proto"))
    with tempfile.TemporaryDirectory(prefix=".stubs-", dir=package) as staging:
        outputs = [f"--{kind}_out={staging}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
        plugin = f"--plugin=protoc-gen-mypy={_program('protoc-gen-mypy')}"
        grpc_plugin = f"--plugin=protoc-gen-mypy_grpc={_program('protoc-gen-mypy_grpc')}"
        arguments = [f"-I{source_root}", plugin, grpc_plugin, *outputs, *(str(proto) for proto in protos)]
        if protoc.main(["protoc", *arguments]) != 0:
            raise RuntimeError(f"protoc refused the files in {package}")
        made = sorted((Path(staging) / PACKAGE).iterdir())
        for file in made:
            file.replace(package / file.name)
    for stale in {path.name for path in package.glob("*_pb2*.py*")} - {file.name for file in made}:
        (package / stale).unlink()


def _program(name: str) -> str:
    """The plugin of protoc: in a build environment of its own, or beside the Python that builds."""
    beside = Path(sys.executable).parent
    found = shutil.which(name) or shutil.which(name, path=str(beside))
    if found is None:
        raise RuntimeError(f"{name} of mypy-protobuf is not installed in the build environment")
    return found
