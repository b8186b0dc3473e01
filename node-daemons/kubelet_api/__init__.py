"""The kubelet's gRPC interfaces of a node, as messages and stubs: plugin registration, DRA, health, pod-resources.

The ``.proto`` files here are the source; ``*_pb2.py`` and ``*_pb2_grpc.py`` are made from them when the project is
installed (`hack/kubelet_stubs.py`) and never committed. Field numbers and method names are those of the Go module
k8s.io/kubelet (pkg/apis); there is nothing of ours on these wires.
"""
