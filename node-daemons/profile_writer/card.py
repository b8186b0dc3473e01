"""A card as the profile writer sees it at one moment, and the steps that change it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from crds.models.node_state import DeviceState
from crds.models.profiling import ProfileReason

FOR_MODE: Final = ""
"""Instead of a profile: the card's mode is what functions are cleared for."""


class Switch(StrEnum):
    """The state of a mode of the card; unknown is not off."""

    ON = "On"
    OFF = "Off"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why something may not be changed now."""

    reason: ProfileReason
    message: str


@dataclass(frozen=True, slots=True)
class FunctionSeen:
    """One virtual function.

    `type_id` is 0 for none, None where it cannot be read (`fault` says why) or the driver makes no vGPU of it
    (`is_vgpu` False). `profile` is the name of its type, None without one or where no name is known. `creatable` are
    the profiles that it could take now, with their numbers. `obstacle`: somebody has it, or may have it; `users` are
    their names. `former`: the profile that it had before the boot, as whoever had it knows it, or that it was given.
    `promised`: all that it may get, and stay, until it is handed over, because pods could have it so before the boot;
    None where nobody waits for it.
    """

    address: str
    is_vgpu: bool = True
    type_id: int | None = 0
    profile: str | None = None
    creatable: Mapping[str, int] = field(default_factory=dict)
    obstacle: Obstacle | None = None
    users: tuple[str, ...] = ()
    former: str | None = None
    fault: str | None = None
    promised: frozenset[str] | None = None

    @property
    def is_typed(self) -> bool:
        return bool(self.type_id)

    @property
    def is_free(self) -> bool:
        """Whether it may be changed."""
        return self.obstacle is None and self.fault is None


@dataclass(frozen=True, slots=True)
class MdevParentSeen:
    """A function that makes mediated devices, the card or one of its virtual functions. `directories` are its types in
    sysfs by profile, `available` how many more of each it makes now.
    """

    address: str
    directories: Mapping[str, str] = field(default_factory=dict)
    available: Mapping[str, int] = field(default_factory=dict)
    obstacle: Obstacle | None = None


@dataclass(frozen=True, slots=True)
class MdevSeen:
    """One mediated device of the card; as of `FunctionSeen`."""

    uuid: str
    parent: str
    profile: str | None
    obstacle: Obstacle | None = None
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CardFormer:
    """What a card had before npufleet changed it in this boot. `profiles` by function, of those that had one."""

    number: int
    profiles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rearranged:
    """For which profiles functions that were as wanted have been cleared: once for each, whether that helped or not.

    Kept for as long as the layout and the load of the driver are the same; forgetting it costs no more than another
    attempt. `begun`: nothing else was given since.
    """

    begun: frozenset[str] = frozenset()
    done: frozenset[str] = frozenset()

    def after(self, step: "Step") -> "Rearranged":
        """The same once the step was done."""
        if isinstance(step, ClearType) and step.rearranges is not None:
            return Rearranged(self.begun | {step.rearranges}, self.done)
        if isinstance(step, SetType) and self.begun - {step.profile}:
            return Rearranged(self.begun & {step.profile}, self.done | (self.begun - {step.profile}))
        return self


@dataclass(frozen=True, slots=True)
class CardSeen:
    """The card itself. `obstacle`: it is not there, is another one, or the host needs it; then nothing is done.

    `users` are those of the card itself, not of its functions. `names` are profiles that the driver is known to have,
    `sizes` their frame buffers in GB where the catalogue knows them, `frame_buffer` what all have together. `former` is
    None while npufleet has changed nothing in this boot, `given` what it gave to functions in this boot.
    `has_tool`, `has_smi`: the vendor's programs are there. `rearranged` is for the present layout and load of the
    driver. `failed`: what failed in this pass, by function or UUID, or by the card's address. `identity` is the same
    after a reboot, and what UUIDs of mediated devices are made from.
    """

    address: str
    driver: str | None
    is_on_vfio: bool = False
    total: int | None = None
    number: int = 0
    functions: tuple[FunctionSeen, ...] = ()
    users: tuple[str, ...] = ()
    obstacle: Obstacle | None = None
    mig: Switch = Switch.OFF
    mixed: Switch = Switch.UNKNOWN
    has_tool: bool = False
    has_smi: bool = False
    names: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)
    frame_buffer: int | None = None
    former: CardFormer | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    rearranged: Rearranged = field(default_factory=Rearranged)
    failed: Mapping[str, Obstacle] = field(default_factory=dict)
    identity: str = ""
    parents: tuple[MdevParentSeen, ...] = ()
    mdevs: tuple[MdevSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class EnableFunctions:
    """Have the card make all its virtual functions, `number` of them."""

    number: int


@dataclass(frozen=True, slots=True)
class DisableFunctions:
    """Take the card's virtual functions away; none has a type or a user."""


@dataclass(frozen=True, slots=True)
class FindDriver:
    """Have the kernel look for the card's driver: enabling its functions has left it without one."""


@dataclass(frozen=True, slots=True)
class MixSizes:
    """Let profiles of several frame buffer sizes live on the card, or not."""

    allowed: bool


@dataclass(frozen=True, slots=True)
class ClearType:
    """Take the type off a function. `rearranges`: it is one that is wanted, and is given anew behind this profile, or
    behind the change of the mode (`FOR_MODE`); None for one that is not wanted.
    """

    function: str
    profile: str
    rearranges: str | None = None


@dataclass(frozen=True, slots=True)
class SetType:
    """Give a function a type."""

    function: str
    type_id: int
    profile: str


@dataclass(frozen=True, slots=True)
class CreateMdev:
    """Make a mediated device: write `uuid` to `create` of the type's directory below the parent."""

    parent: str
    directory: str
    uuid: str
    profile: str


@dataclass(frozen=True, slots=True)
class RemoveMdev:
    """Take a mediated device away that nobody uses."""

    parent: str
    uuid: str
    profile: str


Step: TypeAlias = (
    EnableFunctions | DisableFunctions | FindDriver | MixSizes | ClearType | SetType | CreateMdev | RemoveMdev
)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one vGPU stands; `profile` is what it has, or is to get, `uuid` is a mediated device's."""

    address: str
    profile: str | None
    state: DeviceState
    reason: ProfileReason
    message: str = ""
    users: tuple[str, ...] = ()
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Nothing is to be done to the card now, and why."""

    state: DeviceState
    reason: ProfileReason
    message: str = ""
    vgpus: tuple[Standing, ...] = ()


def describe(step: Step, card: str) -> str:
    """One line for people."""
    match step:
        case EnableFunctions(number):
            return f"enable the {number} virtual functions of {card}"
        case DisableFunctions():
            return f"disable the virtual functions of {card}"
        case FindDriver():
            return f"have the kernel find the driver of {card} again"
        case MixSizes(allowed):
            return f"{'allow' if allowed else 'end'} mixed sizes on {card}"
        case ClearType(function, profile):
            return f"take {profile} off {function}"
        case SetType(function, type_id, profile):
            return f"make {function} {profile} (type {type_id})"
        case CreateMdev(parent, _, uuid, profile):
            return f"make {uuid} on {parent}, a {profile}"
        case RemoveMdev(_, uuid, profile):
            return f"remove {uuid}, a {profile}"
