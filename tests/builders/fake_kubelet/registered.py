"""One plugin as the kubelet has it registered: a connection, the version that was chosen, the health it told last."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
from grpc.aio import Channel, insecure_channel

from dra_publisher.kubelet.service import ClaimRef
from kubelet_api import dra_v1_pb2 as v1
from kubelet_api import dra_v1beta1_pb2 as v1beta1
from kubelet_api import health_v1_pb2, health_v1alpha1_pb2
from kubelet_api.dra_v1_pb2_grpc import DRAPluginStub as V1Stub
from kubelet_api.dra_v1beta1_pb2_grpc import DRAPluginStub as V1Beta1Stub
from kubelet_api.health_v1_pb2_grpc import DRAResourceHealthStub as HealthV1Stub
from kubelet_api.health_v1alpha1_pb2_grpc import DRAResourceHealthStub as HealthV1Alpha1Stub

CALL_SECONDS = 45.0
# The address of a socket is a number of a descriptor here: no connection may be shared by address.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))

Devices = list[v1.Device]
Health = health_v1_pb2.DeviceHealth | health_v1alpha1_pb2.DeviceHealth


@contextmanager
def directory_of(root: Path, path: str) -> Iterator[str]:
    """A short path of this process for a host's socket."""
    descriptor = os.open(root / path.rpartition("/")[0].removeprefix("/"), os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.rpartition('/')[2]}"
    finally:
        os.close(descriptor)


@contextmanager
def channel_to(root: Path, path: str) -> Iterator[Channel]:
    with directory_of(root, path) as short:
        yield insecure_channel(f"unix:{short}", options=_OPTIONS)


class HungUpError(ConnectionError):
    """The kubelet gave a call up because the plugin's registration went; it would make it again."""


class Registered:
    """``service`` is the DRA version that was chosen, ``health_service`` that of health, "" for none."""

    def __init__(
        self, root: Path, driver: str, endpoint: str, registration: str, service: str, health_service: str
    ) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.registration = registration
        self.service = service
        self.health_service = health_service
        self.health: dict[tuple[str, str], Health] = {}
        self.health_lists = 0
        """How many lists have come; each replaces the one before."""
        self.health_end: grpc.StatusCode | None = None
        self._directory = directory_of(root, endpoint)
        self._channel = insecure_channel(f"unix:{self._directory.__enter__()}", options=_OPTIONS)
        self._is_closed = False
        self._listening = asyncio.create_task(self._listen()) if health_service else None

    @property
    def is_connected(self) -> bool:
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def connect(self) -> None:
        async with asyncio.timeout(5):
            await self._channel.channel_ready()

    async def close(self) -> None:
        self._is_closed = True
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        await self._channel.close()
        self._directory.__exit__(None, None, None)

    async def prepare(
        self, claims: Sequence[ClaimRef], *, service: str | None = None, seconds: float = CALL_SECONDS
    ) -> Mapping[str, Devices | str]:
        """By UID: devices, or the error.

        Raises AssertionError for an answer against the protocol, HungUpError, and AioRpcError for what the plugin says.
        """
        with self._called():
            return await self._prepare(claims, service or self.service, seconds)

    async def unprepare(
        self, claims: Sequence[ClaimRef], *, service: str | None = None, seconds: float = CALL_SECONDS
    ) -> Mapping[str, str]:
        """By UID: the error, "" for none. Raises as ``prepare``."""
        with self._called():
            return await self._unprepare(claims, service or self.service, seconds)

    @contextmanager
    def _called(self) -> Iterator[None]:
        """A channel that is closed cancels its calls, which looks as if the caller were cancelled."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                raise HungUpError(f"{self.endpoint} is registered no longer") from None
            raise

    async def _prepare(self, claims: Sequence[ClaimRef], service: str, seconds: float) -> Mapping[str, Devices | str]:
        answers: dict[str, Devices | str] = {}
        if service == "v1.DRAPlugin":
            request = v1.NodePrepareResourcesRequest(claims=[_v1_claim(claim) for claim in claims])
            response = await V1Stub(self._channel).NodePrepareResources(request, timeout=seconds)
            for uid, answer in response.claims.items():
                assert not (answer.error and answer.devices), f"devices and an error for {uid}"
                answers[uid] = answer.error or list(answer.devices)
        else:
            beta_request = v1beta1.NodePrepareResourcesRequest(claims=[_v1beta1_claim(claim) for claim in claims])
            beta = await V1Beta1Stub(self._channel).NodePrepareResources(beta_request, timeout=seconds)
            for uid, beta_answer in beta.claims.items():
                assert not (beta_answer.error and beta_answer.devices), f"devices and an error for {uid}"
                answers[uid] = beta_answer.error or [
                    v1.Device.FromString(device.SerializeToString()) for device in beta_answer.devices
                ]
        _check_uids(answers, claims)
        return answers

    async def _unprepare(self, claims: Sequence[ClaimRef], service: str, seconds: float) -> Mapping[str, str]:
        if service == "v1.DRAPlugin":
            request = v1.NodeUnprepareResourcesRequest(claims=[_v1_claim(claim) for claim in claims])
            response = await V1Stub(self._channel).NodeUnprepareResources(request, timeout=seconds)
            errors = {uid: answer.error for uid, answer in response.claims.items()}
        else:
            beta_request = v1beta1.NodeUnprepareResourcesRequest(claims=[_v1beta1_claim(claim) for claim in claims])
            beta = await V1Beta1Stub(self._channel).NodeUnprepareResources(beta_request, timeout=seconds)
            errors = {uid: answer.error for uid, answer in beta.claims.items()}
        _check_uids(errors, claims)
        return errors

    async def _listen(self) -> None:
        with suppress(grpc.RpcError):
            while not self._is_closed:
                try:
                    if self.health_service == "v1.DRAResourceHealth":
                        request = health_v1_pb2.NodeWatchResourcesRequest()
                        async for message in HealthV1Stub(self._channel).NodeWatchResources(request):
                            self._told(message.devices)
                    else:
                        old_request = health_v1alpha1_pb2.NodeWatchResourcesRequest()
                        async for old in HealthV1Alpha1Stub(self._channel).NodeWatchResources(old_request):
                            self._told(old.devices)
                    self.health_end = grpc.StatusCode.OK
                except grpc.aio.AioRpcError as error:
                    self.health_end = error.code()
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        raise
                await asyncio.sleep(0.05)

    def _told(self, devices: Sequence[Health]) -> None:
        assert all(len(device.message.encode()) <= 1024 for device in devices), "a health message is too long"
        self.health = {(device.device.pool_name, device.device.device_name): device for device in devices}
        assert len(self.health) == len(devices), "a device is twice in a list of health"
        self.health_lists += 1


def _check_uids(answers: Mapping[str, object], claims: Sequence[ClaimRef]) -> None:
    """The kubelet fails on a claim without an answer, and on an answer without a claim."""
    asked = {claim.uid for claim in claims}
    assert answers.keys() == asked, f"answers for {sorted(answers)} where {sorted(asked)} were asked"


def _v1_claim(claim: ClaimRef) -> v1.Claim:
    return v1.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)


def _v1beta1_claim(claim: ClaimRef) -> v1beta1.Claim:
    return v1beta1.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)
