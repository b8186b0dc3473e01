"""Stands between a component and the real API server, and does what networks and servers do on a bad day.

`FaultProxy` is driven by hand from a test; `ProxyServer` with a `Weather` follows a plan of faults drawn from a seed.
"""

from tests.builders.fault_proxy.faults import Fault, Kind, draw
from tests.builders.fault_proxy.requests import Verb
from tests.builders.fault_proxy.server import ProxyServer
from tests.builders.fault_proxy.threaded import FaultProxy
from tests.builders.fault_proxy.weather import Weather

__all__ = ["Fault", "FaultProxy", "Kind", "ProxyServer", "Verb", "Weather", "draw"]
