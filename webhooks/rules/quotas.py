"""Quotas whose parts contradict each other, and quotas that do not hold for anything."""

from collections.abc import Iterator
from typing import Any, Final

from crds.models.device_match import DeviceMatch
from crds.models.profile_map import PROFILE_NAME_PATTERN
from crds.models.vnpu_quota import Amounts, PerPod, QuotaSpec
from crds.near_matches import did_you_mean
from webhooks.rules.hardware import meant
from webhooks.rules.pointers import EACH, pointer, steps_of
from webhooks.rules.quantities import amount_of, amounts_below_one
from webhooks.rules.rule import Example, Fault, rule
from webhooks.rules.structural import pattern
from webhooks.rules.subject import Subject
from webhooks.rules.vgpu_profiles import is_impossible, is_of_card
from webhooks.rules.view import UNKNOWN, View
from webhooks.rules.violation import Severity

_KINDS: Final = ("VNPUQuota",)
_WHOLE: Final = 100
"""Cores of a whole device: each is charged as many."""
_RESOURCES: Final = ("devices", "cores", "memory")
_LEAST_SENSIBLE: Final = 2**20


def _limits(subject: Subject) -> Amounts:
    return next((found for _, found in subject.models(Amounts, "spec", "limits")), Amounts())


def _per_pod(subject: Subject) -> PerPod:
    return next((found for _, found in subject.models(PerPod, "spec", "perPod")), PerPod())


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else amount_of(value)


def _bounds(subject: Subject) -> Iterator[tuple[str, int | None, int | None, int | None]]:
    """For each resource: the limit, the least and the most of a pod, in whole units."""
    limits, per_pod = _limits(subject), _per_pod(subject)
    for name in _RESOURCES:
        yield (
            name,
            _number(getattr(limits, name)),
            _number(getattr(per_pod, f"min_{name}")),
            _number(getattr(per_pod, f"max_{name}")),
        )


@rule(
    "NPF-VQ-102",
    kinds=_KINDS,
    title="profiles of a quota are profiles that a card can have",
    reason="""A limit for a name that no card's profile has holds for nothing. It is an error where the name is one of
    the catalogue in other letters, or one that the card it begins with cannot have. What the catalogue does not list
    and a card may offer all the same is a warning.""",
    good=("limits: {profiles: {L40S-24Q: 2}}",),
    bad=(
        "limits: {profiles: {l40s-24q: 2}}",
        "limits: {profiles: {L40S-24X: 2}}",
        "limits: {profiles: {L40S-25Q: 2}}",
        "limits: {profiles: {L40-24Q: 2}}",
    ),
)
def unknown_profiles(subject: Subject, view: View) -> Iterator[Fault]:
    products = tuple(view.catalogue.products.values())
    known = [profile.name for product in products for profile in product.profiles]
    for at, _ in subject.each("spec", "limits", "profiles", EACH):
        name = steps_of(at)[-1]
        if name not in known and pattern(PROFILE_NAME_PATTERN).search(name):
            near = did_you_mean(name, known).removeprefix("; ")
            if is_impossible(name, products):
                fix = near or "write it as the driver does, e.g. L40S-24Q"
                yield Fault(at, f'no card has a profile "{name}"', fix, about=name)
            else:
                fix = "" if is_of_card(name, products) else near
                fix = fix or "the limit holds once a card offers it"
                yield Fault(at, f'the catalogue has no profile "{name}"', fix, Severity.WARNING)


@rule(
    "NPF-VQ-103",
    kinds=_KINDS,
    title="the least of a pod is within the limit of the namespace",
    reason="""A pod that asks for less than the least is refused, and one that asks for the least exceeds the limit: no
    pod is ever let through. Who wants none at all says so with a limit of 0.""",
    good=("{limits: {cores: 300, memory: 96Gi}, perPod: {minCores: 50, minMemory: 96Gi}}", "limits: {devices: 0}"),
    bad=(
        "{limits: {cores: 40}, perPod: {minCores: 50}}",
        "{limits: {memory: 8Gi}, perPod: {minMemory: 8193Mi}}",
    ),
)
def least_above_limit(subject: Subject, _: View) -> Iterator[Fault]:
    for name, limit, least, _most in _bounds(subject):
        if limit and least is not None and least > limit:
            field = f"min{name.capitalize()}"
            message = f"no pod that asks for any is ever let through: {field} is above limits.{name}"
            fix, excess = f"lower it, or raise limits.{name}", least - limit
            yield Fault(f"/spec/perPod/{field}", message, fix, about=name, excess=excess)


@rule(
    "NPF-VQ-104",
    kinds=_KINDS,
    title="what a namespace may use, a pod may use some of",
    reason="""With 0 as the most of a pod nobody can use anything of a limit that is not 0. Who wants none at all says
    so with a limit of 0.""",
    good=("{limits: {devices: 2}, perPod: {maxDevices: 1}}", "perPod: {maxDevices: 0}"),
    bad=(
        "{limits: {devices: 2}, perPod: {maxDevices: 0}}",
        "{limits: {memory: 8Gi}, perPod: {maxMemory: '0'}}",
    ),
)
def most_is_none(subject: Subject, _: View) -> Iterator[Fault]:
    for name, limit, _least, most in _bounds(subject):
        if limit and most == 0:
            field = f"max{name.capitalize()}"
            message = f"limits.{name} allows what {field} forbids to every pod"
            yield Fault(f"/spec/perPod/{field}", message, f"set limits.{name} to 0, or raise {field}")


@rule(
    "NPF-VQ-105",
    kinds=_KINDS,
    title="a limit of devices goes with cores for a whole one",
    reason="""A whole device is charged 100 cores. Where no pod, or the namespace, may have as many, a limit of whole
    devices that is not 0 allows nothing. Its memory is charged as well: a limit below that of the smallest card that
    is meant is a warning.""",
    good=("limits: {devices: 2, cores: 200}", "{limits: {devices: 0, cores: 50}, perPod: {maxCores: 50}}"),
    bad=(
        "limits: {devices: 2, cores: 50}",
        "{limits: {devices: 2}, perPod: {maxCores: 50}}",
        "{limits: {devices: 5, cores: 150}, perPod: {minDevices: 2}}",
        "{match: {products: [Ascend-910B4]}, limits: {devices: 2, memory: 16Gi}}",
    ),
)
def whole_devices_without_cores(subject: Subject, view: View) -> Iterator[Fault]:
    limits, per_pod = _limits(subject), _per_pod(subject)
    if not limits.devices:
        return
    for field, cores in (("limits.cores", limits.cores), ("perPod.maxCores", per_pod.max_cores)):
        least = per_pod.min_devices or 1
        needed = _WHOLE * least
        if cores is not None and cores < needed:
            what = "a whole device is" if least == 1 else f"the {least} devices that a pod asks for at least are"
            message = f"{what} charged {needed} cores, and {field} is {cores}"
            fix = f"raise {field} to at least {needed}, or set devices to 0"
            yield Fault("/spec/limits/devices", message, fix, about=field, excess=needed - cores)
            return
    memory = amount_of(limits.memory)
    for _, match in subject.models(DeviceMatch, "spec", "match"):
        meaning = meant(match, view.catalogue)
        sizes = [(amount_of(product.memory), product) for product in meaning.products if meaning.only]
        least_memory = min((size for size, _ in sizes if size is not None), default=None)
        if memory is not None and sizes and all(size is not None and size > memory for size, _ in sizes):
            product = next(product for size, product in sizes if size == least_memory)
            message = f"a whole {product.name} is charged {product.memory}, and limits.memory is {limits.memory}"
            fix = "raise limits.memory, or set devices to 0"
            yield Fault("/spec/limits/devices", message, fix, Severity.WARNING)


@rule(
    "NPF-VQ-106",
    kinds=_KINDS,
    title="minMemory is not above maxMemory",
    reason="With the least above the most no pod could ever be let through.",
    good=("perPod: {minMemory: 1Gi, maxMemory: 1024Mi}",),
    bad=("perPod: {minMemory: 2Gi, maxMemory: 2G}",),
)
def memory_bounds_cross(subject: Subject, _: View) -> Iterator[Fault]:
    per_pod = _per_pod(subject)
    least, most = amount_of(per_pod.min_memory), amount_of(per_pod.max_memory)
    if least is not None and most is not None and least > most:
        message = f"minMemory {per_pod.min_memory} is above maxMemory {per_pod.max_memory}"
        fix = "lower it, or raise maxMemory"
        yield Fault("/spec/perPod/minMemory", message, fix, about="minMemory", excess=least - most)


@rule(
    "NPF-VQ-107",
    kinds=_KINDS,
    title="amounts of memory are at least one byte",
    reason="The suffix m is a thousandth: 96m of memory is a tenth of a byte. Mi is what is meant.",
    good=("limits: {memory: 96Mi}",),
    bad=("limits: {memory: 96m}",),
)
def below_a_byte(subject: Subject, _: View) -> Iterator[Fault]:
    yield from amounts_below_one(subject, *_MEMORY)


_MEMORY: Final = (("spec", "limits", "memory"), ("spec", "perPod", "minMemory"), ("spec", "perPod", "maxMemory"))


@rule(
    "NPF-VQ-108",
    kinds=_KINDS,
    title="amounts of memory have a unit",
    severity=Severity.WARNING,
    reason="A number without a suffix is bytes: 96 is 96 bytes, which no device has so few of.",
    good=("limits: {memory: 96Gi}", "limits: {memory: '0'}"),
    bad=("limits: {memory: '96'}",),
)
def bytes_alone(subject: Subject, _: View) -> Iterator[Fault]:
    for steps in _MEMORY:
        for at, value in subject.each(*steps):
            amount = amount_of(value)
            if isinstance(value, str) and value[-1:].isdigit() and amount is not None and 0 < amount < _LEAST_SENSIBLE:
                yield Fault(at, f'"{value}" is {amount} bytes', f'did you mean "{value}Gi"?')


@rule(
    "NPF-VQ-109",
    kinds=_KINDS,
    title="a quota limits something",
    severity=Severity.WARNING,
    reason="What is absent has no limit: a quota without limits and without bounds for pods lets everything through.",
    good=("perPod: {maxDevices: 1}",),
    bad=("whenExceeded: Queue", "match: {products: [Ascend-910B4]}"),
)
def limits_nothing(subject: Subject, _: View) -> Iterator[Fault]:
    for at, spec in subject.models(QuotaSpec, "spec"):
        if spec.limits == Amounts() and spec.per_pod == PerPod():
            yield Fault(at, "the quota limits nothing", "state limits, or bounds perPod")


@rule(
    "NPF-VQ-110",
    kinds=_KINDS,
    title="the most of a pod is within the limit of the namespace",
    severity=Severity.WARNING,
    reason="A bound for pods above the limit of the namespace is never reached: one of the two is not meant so.",
    good=("{limits: {cores: 300}, perPod: {maxCores: 300}}",),
    bad=("{limits: {cores: 300}, perPod: {maxCores: 400}}",),
)
def most_above_limit(subject: Subject, _: View) -> Iterator[Fault]:
    for name, limit, _least, most in _bounds(subject):
        if limit and most is not None and most > limit:
            field = f"max{name.capitalize()}"
            message = f"{field} is above limits.{name}, which holds as well"
            yield Fault(f"/spec/perPod/{field}", message, f"lower it to the limit, or raise limits.{name}")


_USED: Final = """
apiVersion: npufleet.io/v1alpha1
kind: VNPUQuota
metadata: {name: example, namespace: team-a}
spec: {limits: {cores: 300, memory: 64Gi, profiles: {L40S-24Q: 4}}}
status: {used: {cores: 250, memory: 60Gi, profiles: {L40S-24Q: 3}}}
"""


@rule(
    "NPF-VQ-121",
    kinds=_KINDS,
    title="limits are not below what is used",
    severity=Severity.WARNING,
    reason="""What runs, runs on: a lower limit only lets nothing new in, until enough has ended. What is used changes
    all the time, so this is only ever a hint.""",
    good=(Example("limits: {cores: 300}", _USED),),
    bad=(
        Example("limits: {cores: 200}", _USED),
        Example("limits: {memory: 32Gi}", _USED),
        Example("limits: {profiles: {L40S-24Q: 2}}", _USED),
    ),
)
def below_use(subject: Subject, view: View) -> Iterator[Fault]:
    used = view.used(subject.namespace, subject.name)
    if used is UNKNOWN:
        return
    limits = _limits(subject)
    found: list[tuple[str, Any, Any]] = [
        (f"/spec/limits/{name}", getattr(limits, name), getattr(used, name)) for name in _RESOURCES
    ]
    found += [
        (pointer("spec", "limits", "profiles", name), limit, used.profiles.get(name))
        for name, limit in limits.profiles.items()
    ]
    for at, limit, present in found:
        most, now = _number(limit), _number(present)
        if most is not None and now is not None and now > most:
            message = f"{limit} is below the {present} that are used at present"
            yield Fault(at, message, "what runs, runs on, and nothing new is let in")


_NAMESPACE: Final = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team-a, labels: {npufleet.io/quota: enabled}}"


@rule(
    "NPF-VQ-122",
    kinds=_KINDS,
    title="the namespace of a quota is labelled for quotas",
    severity=Severity.WARNING,
    reason="""Pods are held back and charged only in namespaces with the label `npufleet.io/quota: enabled`. In another
    the quota is not Ready (NamespaceNotLabelled) and limits nothing.""",
    good=(Example("limits: {cores: 300}", _NAMESPACE),),
    bad=(
        Example("limits: {cores: 300}", _NAMESPACE.replace("enabled", "disabled")),
        Example("limits: {cores: 300}", _NAMESPACE.replace("{npufleet.io/quota: enabled}", "{}")),
    ),
)
def namespace_not_labelled(subject: Subject, view: View) -> Iterator[Fault]:
    namespaces = view.namespaces()
    labels = None if namespaces is UNKNOWN else namespaces.get(subject.namespace)
    if labels is not None and labels.get("npufleet.io/quota") != "enabled":
        message = f'the namespace "{subject.namespace}" has no label npufleet.io/quota: enabled, so nothing is limited'
        yield Fault("/metadata/namespace", message, "label the Namespace")
