"""A card with vGPU functions on paper: its frame buffer, its users, its vendor's rules, and who obeys the plan.

The rules are those of the simulated kernel: without mixed sizes one size per card, with them places of powers of two.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from crds.models.node_state import Intent
from crds.models.profile_map import Framework, MixedSizes, Unassigned
from crds.models.profiling import ProfileReason as Reason
from crds.models.vgpu_state import ProfileCount, VGPUOrder
from profile_writer.card import (
    CardFormer,
    CardSeen,
    ClearType,
    DisableFunctions,
    EnableFunctions,
    FindDriver,
    FunctionSeen,
    MixSizes,
    Obstacle,
    Rearranged,
    SetType,
    Step,
    Switch,
    Verdict,
)
from profile_writer.plan import next_step

CARD: Final = "0000:02:00.0"
SIZES: Final = {f"L40S-{size}Q": size for size in (1, 2, 4, 6, 8, 12, 24, 48)}
IDS: Final = {profile: 1140 + number for number, profile in enumerate(SIZES)}
FRAME_BUFFER: Final = 48
MAX_STEPS: Final = 200


def function(number: int) -> str:
    """The address of a virtual function of the card."""
    return f"0000:02:{number // 8:02x}.{number % 8}"


def order(
    *layout: tuple[str, int],
    mixed: bool = False,
    clear: bool = False,
    framework: Framework = Framework.AUTO,
) -> VGPUOrder:
    """Profiles by their end, as in `("24Q", 2)`."""
    return VGPUOrder.model_validate(
        {
            "profileMapRef": {"name": "cards"},
            "framework": framework,
            "mixedSizes": MixedSizes.ALLOW if mixed else MixedSizes.FORBID,
            "unassigned": Unassigned.CLEAR if clear else Unassigned.LEAVE,
            "layout": [
                ProfileCount(profile=f"L40S-{end}", count=count).model_dump(by_alias=True) for end, count in layout
            ],
        }
    )


@dataclass
class PaperCard:
    """The card; functions are numbered from 1. `refused`: functions that the driver refuses to change."""

    total: int = 16
    number: int = 16
    types: dict[int, str] = field(default_factory=dict)
    users: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    card_users: tuple[str, ...] = ()
    driver: str | None = "nvidia"
    mig: Switch = Switch.OFF
    mixed: bool = False
    has_smi: bool = True
    mode_works: bool = True
    makes_vgpus: bool = True
    known: frozenset[str] = frozenset(SIZES)
    former: dict[int, str] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)
    unnamed: set[int] = field(default_factory=set)
    changed: bool = False
    given: dict[int, str] = field(default_factory=dict)
    before: CardFormer | None = None
    failed: dict[str, Obstacle] = field(default_factory=dict)
    rearranged: Rearranged = field(default_factory=Rearranged)
    places: dict[int, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        typed, self.types = self.types, {}
        for number, profile in typed.items():
            self.put(number, profile)

    def put(self, number: int, profile: str) -> None:
        """Give a function a type, as anybody may."""
        place = self.place(profile)
        assert place is not None and number not in self.types and 1 <= number <= self.number, "the driver refuses that"
        self.types[number], self.places[number] = profile, place

    def take(self, number: int) -> None:
        """Take the type off a function, as anybody may."""
        del self.types[number], self.places[number]

    def reboot(self) -> None:
        """Nothing of the card outlives it, but what is remembered of its functions."""
        self.former = {**self.former, **self.given}
        self.number, self.mixed, self.changed, self.before, self.given = 0, False, False, None, {}
        self.types.clear()
        self.places.clear()
        self.users.clear()
        self.rearranged = Rearranged()

    def place(self, profile: str) -> int | None:
        """Where the vendor's driver would let it begin now."""
        size, taken = SIZES[profile], [(self.places[n], SIZES[p]) for n, p in self.types.items()]
        places, stride = FRAME_BUFFER // size, size
        if self.mixed:
            places = 1 << (places.bit_length() - 1)
            stride = FRAME_BUFFER // places
        elif any(other != size for _, other in taken):
            return None
        for start in range(0, places * stride, stride):
            if all(start >= begin + other or begin >= start + size for begin, other in taken):
                return start
        return None

    def seen(self) -> CardSeen:
        """As the writer reads it."""
        functions = [self._function(number) for number in range(1, self.number + 1)] if self.driver else []
        return CardSeen(
            address=CARD,
            driver=self.driver,
            total=self.total,
            number=self.number,
            functions=tuple(functions),
            users=self.card_users,
            mig=self.mig,
            mixed=Switch.ON if self.mixed else Switch.OFF,
            has_smi=self.has_smi,
            names=self.known,
            sizes=SIZES,
            frame_buffer=FRAME_BUFFER,
            former=self.before,
            given={function(number): profile for number, profile in self.given.items()},
            rearranged=self.rearranged,
            failed=dict(self.failed),
        )

    def _function(self, number: int) -> FunctionSeen:
        profile = self.types.get(number)
        listed = {}
        if profile is None and self.mig is not Switch.ON:
            listed = {p: IDS[p] for p in SIZES if p in self.known and self.place(p) is not None}
        unread = number in self.unread
        return FunctionSeen(
            function(number),
            is_vgpu=self.makes_vgpus,
            type_id=None if unread else IDS[profile] if profile else 0,
            profile=None if unread or number in self.unnamed else profile,
            creatable={} if unread else listed,
            obstacle=Obstacle(Reason.IN_USE, "in use by qemu (pid 7)") if number in self.users else None,
            users=("qemu (pid 7)",) if number in self.users else (),
            former=self.former.get(number),
            fault="EIO" if unread else None,
        )

    def do(self, step: Step) -> None:
        """What the step does, as the kernel and the vendor's programs would; AssertionError for what is forbidden."""
        self.steps.append(step)
        if self.before is None:
            profiles = {function(number): profile for number, profile in self.types.items()}
            self.before = CardFormer(self.number, profiles)
        match step:
            case EnableFunctions(number):
                assert self.number == 0 and not self.card_users
                self.number = number
            case DisableFunctions():
                assert not self.types and not self.users and not self.card_users
                self.number, self.mixed = 0, False
            case FindDriver():
                self.driver = "nvidia"
            case MixSizes(allowed):
                assert not self.types, "the mode changes while no function has a type"
                if self.mode_works:
                    self.mixed = allowed
                else:
                    self.failed[CARD] = Obstacle(Reason.MIXED_SIZES_FAILED, "nvidia-smi said no")
            case ClearType(address, profile):
                number = _number(address)
                assert number not in self.users, f"{address} is in use"
                assert self.types[number] == profile
                if number in self.refused:
                    self.failed[address] = Obstacle(Reason.TYPE_FAILED, "EIO")
                    return
                self.take(number)
                self.given.pop(number, None)
            case SetType(address, type_id, profile):
                number = _number(address)
                assert number not in self.users, f"{address} is in use"
                assert type_id == IDS[profile]
                if number in self.refused:
                    self.failed[address] = Obstacle(Reason.TYPE_FAILED, "EIO")
                    return
                self.put(number, profile)
                self.given[number] = profile
        self.rearranged = self.rearranged.after(step)

    def obey(
        self,
        orders: VGPUOrder,
        intent: Intent = Intent.APPLY,
        *,
        restore: bool = True,
        between: Callable[["PaperCard"], None] = lambda _: None,
    ) -> Verdict:
        """One pass of the writer, look by look; ``between`` is what others do after each step. AssertionError when it
        does not end."""
        self.failed = {}
        self.steps = []
        for _ in range(MAX_STEPS):
            answer = next_step(orders, intent, self.seen(), restore=restore)
            assert answer == next_step(orders, intent, self.seen(), restore=restore), "not decided by what is seen"
            if isinstance(answer, Verdict):
                return answer
            self.do(answer)
            between(self)
        raise AssertionError(f"no end after {MAX_STEPS} steps: {self.steps[-8:]}")

    def profiles(self) -> list[str]:
        """What it carries, sorted."""
        return sorted(self.types.values())


def _number(address: str) -> int:
    device, number = address.split(":")[2].split(".")
    return int(device, 16) * 8 + int(number)


def named(ends: Iterable[str]) -> list[str]:
    """Profiles by their end."""
    return sorted(f"L40S-{end}" for end in ends)
