"""What one caller, or all of them together, may ask of a replica: beyond it the answer is an error, never a wait."""

from __future__ import annotations

from dataclasses import dataclass

# An object of 3 MiB (what etcd and the API server take at the most), twice on an update, and what stands around it.
_OBJECT_BYTES = 3 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """`body_bytes`: of one review. `seconds`: from the first byte of a review to its answer; the API server's own limit
    (it sends it along) holds where it is shorter. `in_flight`: reviews at a time, each counted from its last byte on.
    `inline_bytes`: a review that is not longer is judged at once; a longer one, or one that takes more than
    `inline_seconds`, in a thread, so that the others need not wait for it. `judge_seconds`: for one in a thread, as it
    cannot be ended from outside.

    `receive_seconds`: from the end of a request's head to its last byte; `receiving_bytes`: of all that are being
    received. `head_seconds`: for the TLS handshake of a connection, and from there to its first request; `connections`:
    open at a time.
    """

    body_bytes: int = 2 * _OBJECT_BYTES + (64 << 10)
    seconds: float = 4.5
    in_flight: int = 256
    inline_bytes: int = 8 << 10
    inline_seconds: float = 0.005
    judge_seconds: float = 2.0
    threads: int = 2
    receive_seconds: float = 3.0
    receiving_bytes: int = 64 << 20
    head_seconds: float = 5.0
    connections: int = 512

    def seconds_for(self, asked: str | None) -> float:
        """The time for one review, by the API server's `timeout` ("5s"): with a margin, so that our words arrive."""
        try:
            given = float((asked or "").removesuffix("s"))
        except ValueError:
            return self.seconds
        return min(self.seconds, given * 0.9) if 0 < given < 3600 else self.seconds
