"""Offering tokens, and taking them back: the half of the publisher, which alone knows who has a device.

What is left behind at any moment: an offer that nobody took yet, a taken token, or both where orders changed meanwhile.
Each keeps pods from being prepared with the device; the publisher finds them after a restart and goes on from there.
"""

import json
from collections.abc import Collection, Sequence
from typing import Final

from node_host.acting.locks import Locks
from node_host.durable_file import write_durably
from node_host.evidence.publication import PUBLISHED
from node_host.evidence.publication import VERSION as NOTE_VERSION
from node_host.handover.token_files import RUN, TokenFiles
from node_host.handover.tokens import (
    Token,
    Tokens,
    TokenUnreadableError,
    encode_token,
    offer_name,
    read_token,
    read_tokens,
    taken_name,
)
from node_host.host import Host

OWNER: Final = "npufleet-dra-publisher"


class PublisherHalf:
    """Tokens and the note of one host for the publisher. Methods raise OSError; nothing is half done then.

    ``locks`` are the names of a device's locks (`HostView.locks`, of every device concerned). Where they are wanted,
    LockedError says that somebody is at work on the device: try again later.
    """

    def __init__(self, host: Host, files: TokenFiles | None = None, *, owner: str = OWNER) -> None:
        self._host = host
        self._files = files or TokenFiles(host)
        self._owner = owner

    def tokens(self, address: str) -> Tokens:
        """What lies there for a device."""
        return read_tokens(self._files, address)

    def offer(self, address: str, boot_id: str, entry: str) -> None:
        """Hand the device over for the entry with this digest; an offer for other orders is replaced.

        Nobody may have the device, and nobody get it: it is withheld, unprepared, and no claim has it.
        """
        staged = f".{offer_name(address)}.new"
        self._files.write(staged, encode_token(Token(address, boot_id, entry)))
        self._files.rename(staged, offer_name(address))

    def withdraw(self, address: str) -> bool:
        """Take an offer back. False: the binder has taken it, or there was none."""
        away = f".{offer_name(address)}.withdrawn"
        if not self._files.rename(offer_name(address), away):
            return False
        self._files.remove(away)
        return True

    def renew(self, address: str, boot_id: str, entry: str, *, locks: Sequence[str]) -> None:
        """Hand a device over anew that was taken for other orders.

        The new token is there before the old one goes, so that there is no moment without one; the old one goes under
        the locks, so that nobody is changing the device for the old orders then. Raises LockedError, with both there.
        """
        self.offer(address, boot_id, entry)
        with Locks(self._host, locks, owner=self._owner):
            try:
                taken = read_token(self._files, taken_name(address), address)
            except TokenUnreadableError:
                self._files.remove(taken_name(address))
                return
            if taken is not None and (taken.boot_id, taken.entry) != (boot_id, entry):
                self._files.remove(taken_name(address))

    def locked(self, locks: Sequence[str]) -> Locks:
        """The locks as a context, for looking at a device, ``finish_locked`` and offering it to pods in one."""
        return Locks(self._host, locks, owner=self._owner)

    def finish(self, address: str, *, locks: Sequence[str]) -> None:
        """Remove the device's tokens: it is as ordered, or as it was. Raises LockedError, with all there.

        The tokens go before the device is offered to pods again, and both under the locks (``locked``): a token beside
        an offered device would let it be changed again, and a death in between leaves a device that nobody touches.
        """
        with self.locked(locks):
            self.finish_locked(address)

    def finish_locked(self, address: str) -> None:
        """The same for a caller that holds the locks. The offer goes first: nobody is to take it when all is over."""
        self.withdraw(address)
        self._files.remove(taken_name(address))

    def prepare_refused(self, address: str) -> str | None:
        """Why no pod may be prepared with the device now, or None."""
        for name in (offer_name(address), taken_name(address)):
            try:
                if self._files.exists(name):
                    return f"{address} is being handed over for a change ({name}); try again later"
            except OSError as error:
                return f"whether {address} is being handed over cannot be read: {error.strerror or error}"
        return None

    def write_published(self, addresses: Collection[str], boot_id: str, *, locks: Sequence[str] = ()) -> None:
        """Note which devices pods may have in this boot; on disk before a device first enters a slice.

        ``locks`` are those of the devices that are new in it: who changes one without a token, because it was not
        listed, does so under them. So look at a new device's shape after this returned, not before. Raises LockedError
        and then writes nothing.
        """
        note = {"version": NOTE_VERSION, "bootID": boot_id, "addresses": sorted(addresses)}
        with Locks(self._host, locks, owner=self._owner):
            write_durably(self._host.local(RUN) / PUBLISHED.rpartition("/")[2], (json.dumps(note) + "\n").encode())

    def clean(self, boot_id: str) -> None:
        """At start: remove offers of other boots, and what a death in the middle of a step left behind."""
        for name in self._files.names():
            if name.startswith("."):
                self._files.remove(name)
        for address, token in read_tokens(self._files).offered.items():
            if token.boot_id != boot_id:
                self.withdraw(address)
