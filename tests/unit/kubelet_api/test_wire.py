"""The kubelet's wires, field by field: a number that is off would be taken for another field without a word."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from kubelet_api import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    pod_resources_v1_pb2,
    registration_pb2,
)

REPOSITORY = Path(__file__).parents[3]

# Of the Go module k8s.io/kubelet 0.37, pkg/apis/*/api.proto. "*" repeated, "?" optional.
REGISTRATION = {
    "InfoRequest": {},
    "PluginInfo": {1: "string type", 2: "string name", 3: "string endpoint", 4: "*string supported_versions"},
    "RegistrationStatus": {1: "bool plugin_registered", 2: "string error"},
    "RegistrationStatusResponse": {},
}
DRA_V1BETA1 = {
    "Claim": {1: "string namespace", 2: "string uid", 3: "string name"},
    "NodePrepareResourcesRequest": {1: "*Claim claims"},
    "NodePrepareResourcesResponse": {1: "*NodePrepareResourcesResponse.ClaimsEntry claims"},
    "NodePrepareResourceResponse": {1: "*Device devices", 2: "string error"},
    "Device": {
        1: "*string request_names",
        2: "string pool_name",
        3: "string device_name",
        4: "*string cdi_device_ids",
    },
    "NodeUnprepareResourcesRequest": {1: "*Claim claims"},
    "NodeUnprepareResourcesResponse": {1: "*NodeUnprepareResourcesResponse.ClaimsEntry claims"},
    "NodeUnprepareResourceResponse": {1: "string error"},
}
DRA_V1 = DRA_V1BETA1 | {"Device": DRA_V1BETA1["Device"] | {5: "?string share_id"}}
HEALTH = {
    "NodeWatchResourcesRequest": {},
    "NodeWatchResourcesResponse": {1: "*DeviceHealth devices"},
    "DeviceIdentifier": {1: "string pool_name", 2: "string device_name"},
    "DeviceHealth": {
        1: "DeviceIdentifier device",
        2: "HealthStatus health",
        3: "int64 last_updated_time",
        4: "int64 health_check_timeout_seconds",
        5: "string message",
    },
}
POD_RESOURCES = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {1: "*PodResources pod_resources"},
    "AllocatableResourcesRequest": {},
    "AllocatableResourcesResponse": {1: "*ContainerDevices devices", 2: "*int64 cpu_ids", 3: "*ContainerMemory memory"},
    "GetPodResourcesRequest": {1: "string pod_name", 2: "string pod_namespace"},
    "GetPodResourcesResponse": {1: "PodResources pod_resources"},
    "PodResources": {
        1: "string name",
        2: "string namespace",
        3: "*ContainerResources containers",
        4: "*int64 cpu_ids",
        5: "*ContainerMemory memory",
    },
    "ContainerResources": {
        1: "string name",
        2: "*ContainerDevices devices",
        3: "*int64 cpu_ids",
        4: "*ContainerMemory memory",
        5: "*DynamicResource dynamic_resources",
    },
    "ContainerDevices": {1: "string resource_name", 2: "*string device_ids", 3: "TopologyInfo topology"},
    "ContainerMemory": {1: "string memory_type", 2: "uint64 size", 3: "TopologyInfo topology"},
    "TopologyInfo": {1: "*NUMANode nodes"},
    "NUMANode": {1: "int64 ID"},
    "DynamicResource": {
        2: "string claim_name",
        3: "string claim_namespace",
        4: "*ClaimResource claim_resources",
    },
    "ClaimResource": {
        1: "*CDIDevice cdi_devices",
        2: "string driver_name",
        3: "string pool_name",
        4: "string device_name",
        5: "?string share_id",
    },
    "CDIDevice": {1: "string name"},
}
TYPES = {3: "int64", 4: "uint64", 8: "bool", 9: "string"}


def shape(module: ModuleType) -> dict[str, dict[int, str]]:
    """Every message with its fields by number."""
    file = module.DESCRIPTOR
    prefix = f"{file.package}."
    found: dict[str, dict[int, str]] = {}
    for name, message in file.message_types_by_name.items():
        found[name] = {}
        for field in message.fields:
            kind = field.message_type or field.enum_type
            text = kind.full_name.removeprefix(prefix) if kind is not None else TYPES[field.type]
            optional = field.containing_oneof is not None
            mark = "*" if field.is_repeated else "?" if optional else ""
            found[name][field.number] = f"{mark}{text} {field.name}"
    return found


@pytest.mark.parametrize(
    ("module", "messages"),
    [
        (registration_pb2, REGISTRATION),
        (dra_v1_pb2, DRA_V1),
        (dra_v1beta1_pb2, DRA_V1BETA1),
        (health_v1_pb2, HEALTH),
        (health_v1alpha1_pb2, HEALTH),
        (pod_resources_v1_pb2, POD_RESOURCES),
    ],
    ids=lambda value: value.__name__ if isinstance(value, ModuleType) else "",
)
def test_messages_are_those_of_the_kubelet(module: ModuleType, messages: dict[str, dict[int, str]]) -> None:
    assert shape(module) == messages


@pytest.mark.parametrize("module", [dra_v1_pb2, dra_v1beta1_pb2])
def test_answers_are_told_apart_by_the_claims_uid(module: ModuleType) -> None:
    for method in ("Prepare", "Unprepare"):
        response = module.DESCRIPTOR.message_types_by_name[f"Node{method}ResourcesResponse"]
        entry = response.nested_types_by_name["ClaimsEntry"]
        assert entry.GetOptions().map_entry
        assert entry.fields_by_name["key"].type == 9
        assert entry.fields_by_name["value"].message_type.name == f"Node{method}ResourceResponse"


def test_methods_have_the_names_that_the_kubelet_calls() -> None:
    methods: dict[str, str] = {}
    for module in (
        registration_pb2,
        dra_v1_pb2,
        dra_v1beta1_pb2,
        health_v1_pb2,
        health_v1alpha1_pb2,
        pod_resources_v1_pb2,
    ):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                kind = "stream" if method.server_streaming else "unary"
                methods[f"/{service.full_name}/{method.name}"] = kind
    assert methods == {
        "/pluginregistration.Registration/GetInfo": "unary",
        "/pluginregistration.Registration/NotifyRegistrationStatus": "unary",
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources": "unary",
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources": "unary",
        "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources": "unary",
        "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources": "unary",
        "/v1.DRAResourceHealth/NodeWatchResources": "stream",
        "/v1alpha1.DRAResourceHealth/NodeWatchResources": "stream",
        "/v1.PodResourcesLister/List": "unary",
        "/v1.PodResourcesLister/GetAllocatableResources": "unary",
        "/v1.PodResourcesLister/Get": "unary",
    }


def test_health_is_numbered_as_the_kubelet_numbers_it() -> None:
    for module in (health_v1_pb2, health_v1alpha1_pb2):
        assert dict(module.HealthStatus.items()) == {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}


def test_nothing_that_is_generated_is_committed() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "node-daemons/kubelet_api"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.split()
    assert {Path(path).suffix for path in listed} == {".proto", ".py"}
    assert [path for path in listed if "_pb2" in path] == []


def test_each_proto_has_its_stubs_and_each_stub_its_proto() -> None:
    package = REPOSITORY / "node-daemons/kubelet_api"
    made = {path.name for path in package.glob("*_pb2*.py*")}
    kinds = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
    assert made == {f"{proto.stem}{kind}" for proto in package.glob("*.proto") for kind in kinds}
