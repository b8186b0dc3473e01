"""The kubelet's side of the publisher: sockets, registration, claims and health over gRPC."""
