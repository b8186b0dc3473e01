"""The slices of this node as the steps of a hand-over need them: written whole, and what is in them when that ended."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dra_publisher.handover.ports import PublishError
from dra_publisher.offers.offer import Offer
from dra_publisher.slices.writer import Outcome, SliceWriter
from runtime.errors import ApiError


@dataclass(slots=True)
class NodeSlices:
    """``drivers`` are those in use, ``node_uid`` that of the Node, which owns the slices: both set before each look."""

    writer: SliceWriter
    drivers: frozenset[str] = frozenset()
    node_uid: str | None = None
    last: Outcome = field(default_factory=Outcome)

    async def publish(self, offers: Collection[Offer]) -> None:
        """Make the slices hold these devices and no others. Raises PublishError, with some of it done or nothing.

        While somebody else keeps changing them, nobody knows who gets what: that is a failure too.
        """
        if self.node_uid is None:
            raise PublishError("the Node of this name cannot be read, and slices belong to it")
        try:
            self.last = await self.writer.publish(by_driver(offers, self.drivers), node_uid=self.node_uid)
        except ApiError as error:
            raise PublishError(f"the slices were not written: {error}") from error
        if self.last.problem is not None:
            raise PublishError(self.last.problem)
        if self.last.waits is not None:
            raise PublishError("somebody else changes the slices again and again; they are put right at intervals")


def by_driver(offers: Collection[Offer], drivers: Collection[str]) -> Mapping[str, tuple[Offer, ...]]:
    """Offers in the order of their names; drivers in use without any have none."""
    every = {*drivers, *(offer.driver for offer in offers)}
    ordered = sorted(offers, key=lambda offer: offer.name)
    return {driver: tuple(offer for offer in ordered if offer.driver == driver) for driver in sorted(every)}
