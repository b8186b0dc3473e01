"""The DRA service in both its versions, for one driver: messages in, messages out."""
# Names of methods are those of the .proto files.
# ruff: noqa: N802

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from grpc import StatusCode
from grpc.aio import Server, ServicerContext

from dra_publisher.kubelet.calls import ClaimCalls, TooManyClaimsError
from dra_publisher.kubelet.service import AnsweredDevice, ClaimRef
from kubelet_api import dra_v1_pb2 as v1
from kubelet_api import dra_v1beta1_pb2 as v1beta1
from kubelet_api.dra_v1_pb2_grpc import DRAPluginServicer as V1Servicer
from kubelet_api.dra_v1_pb2_grpc import add_DRAPluginServicer_to_server as add_v1
from kubelet_api.dra_v1beta1_pb2_grpc import DRAPluginServicer as V1Beta1Servicer
from kubelet_api.dra_v1beta1_pb2_grpc import add_DRAPluginServicer_to_server as add_v1beta1


def add_claim_services(server: Server, driver: str, calls: ClaimCalls) -> None:
    """Serve both versions for this driver."""
    add_v1(_V1(driver, calls), server)
    add_v1beta1(_V1Beta1(driver, calls), server)


class _V1(V1Servicer):
    def __init__(self, driver: str, calls: ClaimCalls) -> None:
        self._side = _Side(driver, calls)

    async def NodePrepareResources(
        self, request: v1.NodePrepareResourcesRequest, context: ServicerContext[Any, Any]
    ) -> v1.NodePrepareResourcesResponse:
        response = v1.NodePrepareResourcesResponse()
        for uid, answer in (await self._side.prepare(request.claims, context)).items():
            entry = response.claims[uid]
            if isinstance(answer, str):
                entry.error = answer
            else:
                entry.devices.extend(_v1_device(device) for device in answer)
        return response

    async def NodeUnprepareResources(
        self, request: v1.NodeUnprepareResourcesRequest, context: ServicerContext[Any, Any]
    ) -> v1.NodeUnprepareResourcesResponse:
        response = v1.NodeUnprepareResourcesResponse()
        for uid, error in (await self._side.unprepare(request.claims, context)).items():
            response.claims[uid].error = error or ""
        return response


class _V1Beta1(V1Beta1Servicer):
    def __init__(self, driver: str, calls: ClaimCalls) -> None:
        self._side = _Side(driver, calls)

    async def NodePrepareResources(
        self, request: v1beta1.NodePrepareResourcesRequest, context: ServicerContext[Any, Any]
    ) -> v1beta1.NodePrepareResourcesResponse:
        response = v1beta1.NodePrepareResourcesResponse()
        for uid, answer in (await self._side.prepare(request.claims, context)).items():
            entry = response.claims[uid]
            if isinstance(answer, str):
                entry.error = answer
            else:
                entry.devices.extend(_v1beta1_device(device) for device in answer)
        return response

    async def NodeUnprepareResources(
        self, request: v1beta1.NodeUnprepareResourcesRequest, context: ServicerContext[Any, Any]
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        response = v1beta1.NodeUnprepareResourcesResponse()
        for uid, error in (await self._side.unprepare(request.claims, context)).items():
            response.claims[uid].error = error or ""
        return response


class _Claim(Protocol):
    """A claim of either version."""

    namespace: str
    name: str
    uid: str


class _Side:
    """What both versions do alike."""

    def __init__(self, driver: str, calls: ClaimCalls) -> None:
        self._driver = driver
        self._calls = calls

    async def prepare(
        self, claims: Iterable[_Claim], context: ServicerContext[Any, Any]
    ) -> Mapping[str, tuple[AnsweredDevice, ...] | str]:
        try:
            return await self._calls.prepare(self._driver, _references(claims), context.time_remaining())
        except TooManyClaimsError as error:
            await context.abort(StatusCode.INVALID_ARGUMENT, str(error))

    async def unprepare(self, claims: Iterable[_Claim], context: ServicerContext[Any, Any]) -> Mapping[str, str | None]:
        try:
            return await self._calls.unprepare(self._driver, _references(claims), context.time_remaining())
        except TooManyClaimsError as error:
            await context.abort(StatusCode.INVALID_ARGUMENT, str(error))


def _references(claims: Iterable[_Claim]) -> list[ClaimRef]:
    return [ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims]


def _v1_device(device: AnsweredDevice) -> v1.Device:
    return v1.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id,
    )


def _v1beta1_device(device: AnsweredDevice) -> v1beta1.Device:
    return v1beta1.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
    )
