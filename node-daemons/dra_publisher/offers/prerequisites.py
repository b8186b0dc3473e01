"""What must have been done to a device of each mode before pods may have it, and as what they get it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from crds.device_names import NamedKind
from crds.models.modes import Mode

BINDER: Final = "npufleet-vfio-binder"
"""Whose subtree is `bindings`."""
WRITER: Final = "npufleet-profile-writer"
"""Whose subtree is `profiles`."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """As what devices of a mode are published.

    `prerequisites` are the subtrees of NPUNodeState.status, by their names there, each of which must report the device
    Ready in the running boot.
    """

    kind: NamedKind
    prerequisites: tuple[str, ...]


RECIPES: Final[Mapping[Mode, Recipe]] = {
    Mode.PASSTHROUGH: Recipe(NamedKind.VFIO, ("bindings",)),
    Mode.CONTAINER: Recipe(NamedKind.NPU, ("bindings",)),
    Mode.VGPU: Recipe(NamedKind.VGPU, ("bindings", "profiles")),
}
"""Modes that are not here are not published."""


def recipe(mode: Mode) -> Recipe | None:
    """How devices of the mode are published; None when they are not."""
    return RECIPES.get(mode)


def prerequisites(mode: Mode) -> tuple[str, ...]:
    """The subtrees that must report a device of the mode Ready; none for a mode that is not published."""
    found = RECIPES.get(mode)
    return found.prerequisites if found else ()
