"""vGPUs in NPUNodeState: what a card is ordered to carry, and what it carries.

An order holds what the profile map says of the card, so that daemons read no map, and a map's change is rolled out as a
policy's is. The resource names of a map change nothing on a host and stay out.
"""

from typing import Annotated, Final

from pydantic import Field

from crds.models.base import ATOMIC_LIST, UID, Model, PCIAddress, Reason, ShortText, absent
from crds.models.device_report import DeviceReport, DeviceState
from crds.models.modes import VGPU
from crds.models.profile_map import Framework, MixedSizes, ProfileName, Unassigned
from crds.models.profiling import ProfileReason

MAX_VGPUS: Final = 256
MAX_OFFERED: Final = 64


class ProfileCount(Model):
    """So many vGPUs of one profile on the card."""

    profile: Annotated[ProfileName, Field(description="The profile by name.")]
    count: Annotated[int, Field(ge=1, le=256, description="How many.")]


class VGPUOrder(VGPU):
    """What a card is to carry: what its profile map says of it, resolved."""

    framework: Annotated[Framework, Field(description="How vGPUs are made; `Auto` takes what the host offers.")] = (
        Framework.AUTO
    )
    mixed_sizes: Annotated[
        MixedSizes, Field(description="Whether the card may carry profiles of different frame buffer sizes.")
    ] = MixedSizes.FORBID
    unassigned: Annotated[Unassigned, Field(description="What is done with virtual functions beyond the layout.")] = (
        Unassigned.LEAVE
    )
    layout: Annotated[
        tuple[ProfileCount, ...],
        Field(
            max_length=32,
            description="The vGPUs of the card.",
            json_schema_extra=ATOMIC_LIST | absent("nothing is known of the map, and the card is left as it is"),
        ),
    ] = ()


class VGPUInstance(Model):
    """One vGPU, or one virtual function that should be one: there is an entry for each that the layout asks for, and
    for each other one that has a type or a fault."""

    address: Annotated[
        PCIAddress, Field(description="The virtual function; of a mediated device, the function that it was made on.")
    ]
    uuid: Annotated[UID | None, Field(description="UUID of the mediated device; absent on virtual functions.")] = None
    profile: Annotated[
        ProfileName | None,
        Field(description="The profile that it has, or is to get; absent where its type has no known name."),
    ] = None
    state: Annotated[DeviceState, Field(description="`Ready`, `Pending`, `Blocked` or `Failed`.")]
    reason: Annotated[Reason, Field(description="One stable CamelCase word.")]
    message: Annotated[ShortText, Field(description="The same for a human, with the fix.")] = ""
    users: Annotated[
        tuple[Annotated[str, Field(max_length=253)], ...],
        Field(max_length=4, description="Who uses it, by name.", json_schema_extra=ATOMIC_LIST),
    ] = ()

    @property
    def is_of_layout(self) -> bool:
        """It is a virtual function, and as the layout wants one."""
        is_function = self.profile is not None and self.uuid is None
        return is_function and self.state is DeviceState.READY and self.reason != ProfileReason.UNASSIGNED


class ProfiledCard(DeviceReport):
    """What the profile writer says of one card and of its vGPUs."""

    vgpus: Annotated[
        tuple[VGPUInstance, ...],
        Field(max_length=MAX_VGPUS, description="By address, then UUID.", json_schema_extra=ATOMIC_LIST),
    ] = ()
    offered: Annotated[
        tuple[ProfileName, ...],
        Field(
            max_length=MAX_OFFERED,
            description=(
                "The profiles that the loaded driver knows for this card, by name, as far as it shows them: a full "
                "card shows none."
            ),
            json_schema_extra=ATOMIC_LIST,
        ),
    ] = ()
    driver_release: Annotated[
        str | None, Field(max_length=64, description="Release of the loaded driver; absent where it tells none.")
    ] = None
