"""A kubelet that is nothing but a client of DRA plugins, and a strict one."""

from tests.builders.fake_kubelet.kubelet import FakeKubelet
from tests.builders.fake_kubelet.registered import HungUpError, Registered

__all__ = ["FakeKubelet", "HungUpError", "Registered"]
