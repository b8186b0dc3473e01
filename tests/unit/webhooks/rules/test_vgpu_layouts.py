"""Layouts are refused exactly where no way of putting the vGPUs on the card's functions exists."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from crds.catalogue import Catalogue, load_catalogue
from crds.models.kinds import BY_NAME
from tests.builders.devices_of_matches import drawn
from tests.builders.examples import Digits, at_least
from tests.builders.objects import device_rule, node_policy, profile_map
from webhooks.rules import KnownView, Severity, Subject
from webhooks.rules.judge import SERVER_LAYERS, judge

VENDOR = """
id: "10de"
name: NVIDIA
source: ["A vendor that is made up for a test"]
products:
- name: CARD
  physical: ["0001"]
  virtualFunctions: 5
  profiles:
  - {name: CARD-1Q, frameBufferGiB: 1, maximum: 12}
  - {name: CARD-2Q, frameBufferGiB: 2, maximum: 6}
  - {name: CARD-3Q, frameBufferGiB: 3, maximum: 4}
  - {name: CARD-4Q, frameBufferGiB: 4, maximum: 3}
  - {name: CARD-12Q, frameBufferGiB: 12, maximum: 1}
  source: ["A card that is made up for a test"]
"""
CATALOGUE = Catalogue({"made-up.yaml": VENDOR})
SEEN = Catalogue({"made-up.yaml": VENDOR.replace("virtualFunctions:", "virtualFunctionsSeen:")})
REAL = load_catalogue()
SIZES = {"CARD-1Q": 1, "CARD-2Q": 2, "CARD-3Q": 3, "CARD-4Q": 4, "CARD-12Q": 12}
FLOOR = 2000


def broken(found: dict[str, Any], catalogue: Catalogue = REAL) -> set[str]:
    subject = Subject.of(BY_NAME["VGPUProfileMap"], found)
    judged = judge(subject, KnownView(catalogue), layers=SERVER_LAYERS)
    return {violation.rule for violation in judged if violation.severity is Severity.ERROR}


def fits(vgpus: list[str], free_gb: int, free_functions: int, size: int | None) -> bool:
    """Tries to make one vGPU after the other, as the profile writer would; where sizes do not mix, of one `size`."""
    if not vgpus:
        return True
    first, *rest = vgpus
    needed = SIZES[first]
    if size is not None and needed != size:
        return False
    return free_gb >= needed and free_functions > 0 and fits(rest, free_gb - needed, free_functions - 1, size)


def test_a_layout_is_refused_exactly_where_the_vgpus_cannot_be_made() -> None:
    verdicts = {True: 0, False: 0}

    @settings(max_examples=FLOOR + 300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn())
    def agree(digits: Digits) -> None:
        examples.one()
        layout = [
            {"profile": digits.pick(tuple(SIZES)), "count": digits.pick((1, 1, 1, 2, 2, 3, 4, 5, 6))}
            for _ in range(digits.pick((1, 1, 2, 3)))
        ]
        mixed = digits.pick(("Forbid", "Allow"))
        vgpus = [str(item["profile"]) for item in layout for _ in range(int(str(item["count"])))]
        size = SIZES[vgpus[0]] if mixed == "Forbid" else None
        can_be = fits(vgpus, 12, 5, size)
        verdicts[can_be] += 1
        gpus = [{"match": {"products": ["CARD"]}, "layout": layout, "mixedSizes": mixed}]
        assert (not broken(profile_map(gpus=gpus), CATALOGUE)) == can_be, f"{layout} {mixed}"

    with at_least(FLOOR, "layouts fit as they can be made") as examples:
        agree()
    print(verdicts)
    assert min(verdicts.values()) > FLOOR // 5


def refused(products: list[str], *profiles: str, count: int = 1, **card: Any) -> set[str]:
    layout = [{"profile": profile, "count": count} for profile in profiles]
    return broken(profile_map(gpus=[{"match": {"products": products}, "layout": layout} | card]))


@pytest.mark.parametrize("profile", ["L40S-24q", "l40s-24Q", "L4OS-24Q", "L40S-25Q", "L40S-96Q", "A40-24Q"])
def test_a_profile_that_no_driver_can_offer_for_the_card_is_refused(profile: str) -> None:
    assert refused(["L40S"], profile) == {"NPF-PM-102"}


@pytest.mark.parametrize("profile", ["L40S-16Q", "L40S-3Q", "L40S-24C", "L40S-12B", "L40S-2B4", "L40S-24X", "48Q"])
def test_a_profile_that_a_driver_may_offer_is_not_refused(profile: str) -> None:
    assert refused(["L40S"], profile) == set()


def test_profiles_of_cards_of_which_none_is_known_are_not_refused() -> None:
    assert refused(["H100_PCIE"], "H100-80C") == set()
    assert refused(["FLEX_170"], "anything") == set()


def test_what_is_not_known_of_a_card_bounds_nothing() -> None:
    assert refused(["A40"], "A40-24Q", count=2) == set()


def test_a_size_that_the_name_tells_counts_as_well() -> None:
    assert refused(["L40S"], "L40S-16Q", count=4) == {"NPF-PM-105"}
    assert refused(["L40S"], "L40S-16Q", "L40S-24Q") == {"NPF-PM-106"}
    assert refused(["L40S"], "L40S-24Q", "L40S-24C") == set()


def test_a_card_carries_slices_of_one_kind_only() -> None:
    assert refused(["L40S"], "L40S-1-12Q", "L40S-48Q", mixedSizes="Allow") == {"NPF-PM-106"}
    assert refused(["L40S"], "L40S-1-12Q", "L40S-2-24Q") == set()


@pytest.mark.parametrize("name", ["T4-1B4", "T4-2B4", "T4-8Q", "T4-1B"])
def test_profiles_that_a_driver_has_under_names_of_their_own_are_not_refused(name: str) -> None:
    assert refused(["TESLA_T4"], name) == set()
    quota = {
        "apiVersion": "npufleet.io/v1alpha1",
        "kind": "VNPUQuota",
        "metadata": {"name": "a", "namespace": "b"},
        "spec": {"limits": {"profiles": {name: 4}}},
    }
    told = judge(Subject.of(BY_NAME["VNPUQuota"], quota), KnownView(REAL), layers=SERVER_LAYERS)
    assert [(found.severity, found.fix) for found in told] == [
        (Severity.WARNING, "the limit holds once a card offers it")
    ]


def test_a_name_built_as_those_of_the_card_is_never_corrected_to_another_size() -> None:
    for product, profile in (("A40", "A40-2Q"), ("TESLA_T4", "T4-8Q"), ("A30_PCIE", "A30-1-6C"), ("L40S", "L40S-16C")):
        found = profile_map(products=[product], layout={profile: 1})
        told = judge(Subject.of(BY_NAME["VGPUProfileMap"], found), KnownView(REAL), layers=SERVER_LAYERS)
        assert [(one.rule, one.fix) for one in told] == [
            ("NPF-PM-109", "it is taken when the driver on the host offers it")
        ]


@pytest.mark.parametrize(
    ("product", "profile", "count"),
    [("A40", "A40-48Q", 2), ("A10", "A10-24Q", 5), ("H100_PCIE", "H100-80C", 3), ("A100_PCIE_40GB", "A100-20C", 3)],
)
def test_the_frame_buffer_of_the_card_bounds_profiles_that_are_not_listed(
    product: str, profile: str, count: int
) -> None:
    assert refused([product], profile, count=count) == {"NPF-PM-105"}
    assert refused([product], profile, count=1) == set()


def test_sizes_mixed_on_a_card_without_a_mode_for_it_are_a_warning() -> None:
    gpus = [
        {
            "match": {"products": ["TESLA_T4"]},
            "layout": [{"profile": "T4-8Q", "count": 1}, {"profile": "T4-4Q", "count": 1}],
            "mixedSizes": "Allow",
        }
    ]
    subject = Subject.of(BY_NAME["VGPUProfileMap"], profile_map(gpus=gpus))
    told = judge(subject, KnownView(REAL), layers=SERVER_LAYERS)
    assert [found.severity for found in told if found.rule == "NPF-PM-106"] == [Severity.WARNING]


def test_a_number_of_functions_that_a_driver_may_raise_refuses_nothing() -> None:
    def of(profile: str, count: int) -> dict[str, Any]:
        return profile_map(products=["CARD"], layout={profile: count})

    assert broken(of("CARD-1Q", 8), SEEN) == set()
    assert broken(of("CARD-1Q", 13), SEEN) == {"NPF-PM-105"}
    mixed = [{"profile": "CARD-1Q", "count": 4}, {"profile": "CARD-2Q", "count": 4}]
    gpus = [{"match": {"products": ["CARD"]}, "layout": mixed, "mixedSizes": "Allow"}]
    assert broken(profile_map(gpus=gpus), SEEN) == set()
    policy = node_policy(rules=[device_rule(products=["CARD"], passthrough={"virtualFunctions": 32})])
    told = judge(Subject.of(BY_NAME["NPUNodePolicy"], policy), KnownView(SEEN), layers=SERVER_LAYERS)
    assert [(found.rule, found.severity) for found in told] == [("NPF-NP-108", Severity.WARNING)]


def test_a_number_of_functions_that_is_sure_refuses() -> None:
    policy = node_policy(rules=[device_rule(products=["CARD"], passthrough={"virtualFunctions": 6})])
    told = judge(Subject.of(BY_NAME["NPUNodePolicy"], policy), KnownView(CATALOGUE), layers=SERVER_LAYERS)
    assert [(found.rule, found.severity) for found in told] == [("NPF-NP-108", Severity.ERROR)]


def test_cards_that_may_be_others_are_not_judged() -> None:
    gpus = [{"match": {"vendors": ["10de"]}, "layout": [{"profile": "L40S-24Q", "count": 9}]}]
    assert broken(profile_map(gpus=gpus)) == set()
    gpus = [{"match": {"vendors": ["10de"], "devices": ["26b9"]}, "layout": [{"profile": "L40S-24Q", "count": 3}]}]
    assert broken(profile_map(gpus=gpus)) == {"NPF-PM-105"}


def test_the_fix_names_the_nearest_number() -> None:
    subject = Subject.of(BY_NAME["VGPUProfileMap"], profile_map(products=["CARD"], layout={"CARD-1Q": 20}))
    told = [violation.line for violation in judge(subject, KnownView(CATALOGUE), layers=SERVER_LAYERS)]
    assert told == [
        "spec.gpus[0].layout[0].count: CARD carries at most 5 of CARD-1Q, one for each of its 5 virtual functions, "
        "not 20; the nearest is 5 [NPF-PM-105]"
    ]
