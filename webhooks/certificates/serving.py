"""The TLS side of the server: one context for its whole life, whose certificate changes between two handshakes.

A connection keeps what it was opened with, so no request is lost when the certificate changes. Each handshake is handed
a context that knows the present certificate and no other: a context that is loaded twice keeps both where their keys
are of different algorithms, and may go on serving the old one.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from webhooks.certificates.serving_pair import ServingPair, UnusablePair

log = logging.getLogger(__name__)


class Serving:
    """`context` is for the listener. Handshakes fail until a first certificate is there."""

    def __init__(self) -> None:
        self.context: Final = _context()
        self.context.sni_callback = self._choose
        self.pair: ServingPair | None = None
        """What is served now; None before the first."""
        self._current: ssl.SSLContext | None = None

    def use(self, pair: ServingPair) -> None:
        """Serve this from the next handshake on. Raises UnusablePair and goes on with what is served."""
        if self.pair is not None and self.pair.digest == pair.digest:
            return
        made = _context()
        try:
            with _as_file(pair.chain_pem) as certificate, _as_file(pair.key_pem) as key:
                made.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise UnusablePair(f"the certificate cannot be served: {error}") from error
        log.info("Serving a certificate that ends at %s", pair.ends.isoformat(timespec="seconds"))
        self._current = made
        self.pair = pair

    def fault(self, now: datetime) -> str | None:
        """Why nobody could or soon can talk to us, as far as the certificate alone tells."""
        return "there is no certificate yet" if self.pair is None else self.pair.age_fault(now)

    def is_former(self, connection: ssl.SSLObject) -> bool:
        """Whether this connection was opened with another certificate than the present one."""
        return connection.context is not self._current

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        # Called in every handshake, with or without a name in it.
        if self._current is None:
            return ssl.AlertDescription.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session would show the certificate of its first handshake.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    context.set_alpn_protocols(["http/1.1"])
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """The library reads files only, and a key has no business on a disk: this one is in memory."""
    descriptor = os.memfd_create("npufleet-webhook-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
