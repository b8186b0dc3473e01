"""``python -m crds.generator [--check]``: write the manifests and the reference, or tell which of them are stale."""

import argparse
import os
import sys
from pathlib import Path

import crds
from crds.catalogue import load_catalogue
from crds.generator import device_classes
from crds.generator.manifests import manifests
from crds.generator.reference import reference_pages


def generated(root: Path) -> dict[Path, str]:
    """Text by path of every generated file below the repository's root."""
    manifest_folder = root / "crds" / "manifests"
    classes_folder = root / "kustomize" / "base" / "device-classes"
    profiles_folder = root / "kustomize" / "samples" / "vgpu-device-classes"
    reference_folder = root / "docs" / "reference" / "api"
    return (
        {manifest_folder / name: text for name, text in manifests().items()}
        | {classes_folder / name: text for name, text in device_classes.manifests().items()}
        | {profiles_folder / name: text for name, text in device_classes.profile_manifests(load_catalogue()).items()}
        | {reference_folder / name: text for name, text in reference_pages().items()}
    )


def stale(files: dict[Path, str]) -> list[tuple[Path, str]]:
    """Files that are not as generated, each with its fault: ``missing``, ``stale`` or ``not generated any more``."""
    faults = []
    for path, text in files.items():
        if not path.is_file():
            faults.append((path, "missing"))
        elif path.read_bytes() != text.encode():
            faults.append((path, "stale"))
    for folder in {path.parent for path in files}:
        if folder.is_dir():
            extra = sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".md"} and path not in files)
            faults += [(path, "not generated any more") for path in extra]
    return sorted(faults)


def write(files: dict[Path, str]) -> None:
    """Make the files as generated: stale ones are replaced as a whole, left-over ones removed."""
    for path, fault in stale(files):
        if fault == "not generated any more":
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_bytes(files[path].encode())
        fresh.replace(path)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 when all is as generated, 1 when ``--check`` found a stale file."""
    parser = argparse.ArgumentParser(prog="python -m crds.generator", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name each stale file and exit 1")
    parser.add_argument(
        "--root", type=Path, default=Path(crds.__file__).parent.parent, help="root of the repository (default: ours)"
    )
    options = parser.parse_args(arguments)
    files = generated(options.root)
    faults = stale(files)
    if options.check:
        for path, fault in faults:
            print(f"{path.relative_to(options.root)}: {fault}", file=sys.stderr)
        if faults:
            print("run `python -m crds.generator` and commit the result", file=sys.stderr)
        return 1 if faults else 0
    write(files)
    for path, fault in faults:
        print(f"{path.relative_to(options.root)}: was {fault}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
