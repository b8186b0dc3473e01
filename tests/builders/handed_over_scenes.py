"""Moves of devices that pods may have and that the publisher has handed over; see ``fault_scenes``."""

from __future__ import annotations

from tests.builders.binder import NPU, audio, graphics, npu, order
from tests.builders.fault_scenes import AUDIO, CARD, IGB, LOADED, SRIOV_CARD, Scene, card, functions_of, sriov_card

HANDED_OVER = (
    Scene("a bind of a device of pods", (npu(),), (order(),), {NPU: "vfio-pci"}, more=LOADED, published=(NPU,)),
    Scene(
        "a bind with a companion of pods",
        (graphics(), audio()),
        (card(companions="Bind"),),
        {CARD: "vfio-pci", AUDIO: "vfio-pci"},
        more=LOADED,
        published=(CARD, AUDIO),
    ),
    Scene(
        "a return of a device of pods",
        (npu(),),
        (order(intent="Release"),),
        {NPU: "rebellions"},
        (order(),),
        published=(NPU,),
    ),
    Scene(
        "functions of pods go",
        (sriov_card(),),
        (functions_of(1, intent="Release"),),
        IGB,
        (functions_of(1),),
        more=LOADED,
        functions=0,
        published=(SRIOV_CARD, "0000:61:10.0"),
    ),
)
