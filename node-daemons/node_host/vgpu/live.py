"""The profile that a virtual function has now, for whoever offers it or hands it to a pod."""

from dataclasses import dataclass

from node_host.host import Host
from node_host.pci.device import DEVICES
from node_host.vgpu.driver import read_driver_load
from node_host.vgpu.functions import read_function
from node_host.vgpu.type_names import read_type_names
from node_host.vgpu.types import profile_of


@dataclass(frozen=True, slots=True)
class LiveProfile:
    """`profile` is None when the function has none that is known by name; then `why` says so."""

    profile: str | None
    why: str = ""


def live_profile(host: Host, address: str, ids: str, boot_id: str) -> LiveProfile:
    """The profile of the function now; `ids` as `vendor:device` of the card. Never raises; may hang as reads do."""
    function = read_function(host, address)
    if function is None:
        return LiveProfile(None, "it is no vGPU function: its driver makes none of it")
    if function.current is None:
        return LiveProfile(None, f"its type cannot be read: {function.fault}")
    if function.current == 0:
        return LiveProfile(None, "it has no vGPU type")
    try:
        driver = host.read_link(f"{DEVICES}/{address}/driver").rpartition("/")[2]
        load = read_driver_load(host, driver, boot_id)
    except OSError as error:
        return LiveProfile(None, f"its driver cannot be read: {error.strerror or error}")
    name = None if load is None else read_type_names(host, load).of(ids).get(function.current)
    if name is None:
        return LiveProfile(None, f"its vGPU type {function.current} has no known name")
    return LiveProfile(profile_of(name))
