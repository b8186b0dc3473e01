"""How the kubelet gets to know a driver: it finds the registration socket, asks what is there, and says yes or no."""

from collections.abc import Callable
from typing import Any, Final

from grpc.aio import ServicerContext

from kubelet_api import registration_pb2 as messages
from kubelet_api.registration_pb2_grpc import RegistrationServicer

TYPE: Final = "DRAPlugin"
SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""What is served, as the kubelet names it. It takes the first DRA service of these that it knows."""

INSTANCE_HEADER: Final = "npufleet-publisher"
"""Response header of GetInfo by which instances of the publisher know each other; the kubelet does not look at it."""


class Registration(RegistrationServicer):
    """One driver's registration. ``changed`` is called when the kubelet has said what came of it."""

    def __init__(self, driver: str, endpoint: str, changed: Callable[[], None]) -> None:
        self._info = messages.PluginInfo(type=TYPE, name=driver, endpoint=endpoint, supported_versions=SERVICES)
        self._changed = changed
        self.accepted = False
        self.refused: str | None = None
        """What the kubelet said when it refused the driver; None when it has not, or no longer does."""

    async def GetInfo(self, request: messages.InfoRequest, context: ServicerContext[Any, Any]) -> messages.PluginInfo:  # noqa: N802
        await context.send_initial_metadata(((INSTANCE_HEADER, self._info.name),))
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: messages.RegistrationStatus, context: ServicerContext[Any, Any]
    ) -> messages.RegistrationStatusResponse:
        self.accepted = request.plugin_registered
        self.refused = None if request.plugin_registered else request.error or "the kubelet gave no reason"
        self._changed()
        return messages.RegistrationStatusResponse()
