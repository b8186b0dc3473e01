"""Taking a token: the half of whoever changes devices (the binder, the profile writer).

One rename decides between taking and withdrawing. A death right after it leaves a taken token, which is found again and
is as good as before; a death before it leaves the offer. The caller holds the device's locks throughout, so that the
publisher, which takes them too, never takes a token away from under a change.
"""

from collections.abc import Collection
from typing import Final

from node_host.handover.token_files import HANDOVER, TokenFiles
from node_host.handover.tokens import (
    WAITS,
    Token,
    TokenUnreadableError,
    offer_name,
    read_token,
    read_tokens,
    taken_name,
)

_LOST: Final = "its token was withdrawn, or is for other orders, meanwhile"


class BinderHalf:
    """Tokens of one host for a daemon that changes devices."""

    def __init__(self, files: TokenFiles) -> None:
        self._files = files

    def take(self, address: str, boot_id: str, entries: Collection[str]) -> str | None:
        """Hold the device's token for one of these entries (digests): None when it is held, else why it is not.

        Who uses the device has to be looked at again afterwards: the token was written before.
        """
        obstacle = read_tokens(self._files, address).obstacle(address, boot_id, entries)
        if obstacle is not None:
            return obstacle
        try:
            held = self._taken(address, boot_id, entries)
            if held is not None:
                return None
            if not self._files.rename(offer_name(address), taken_name(address)):
                return WAITS
            # What was renamed may be an offer that came after the one that was read.
            return None if self._taken(address, boot_id, entries) is not None else _LOST
        except TokenUnreadableError as error:
            return f"whether it was handed over cannot be read: {error}"
        except OSError as error:
            return f"its token cannot be taken: {HANDOVER}: {error.strerror or error}"

    def clean(self, address: str, boot_id: str) -> None:
        """Remove a device's tokens of another boot. Raises OSError.

        An offer goes by being taken first: if the publisher has just put one of this boot in its place, that one is
        now taken, and not lost.
        """
        for name in (taken_name(address), offer_name(address)):
            try:
                token = read_token(self._files, name, address)
            except TokenUnreadableError:
                continue
            if token is None or token.boot_id == boot_id:
                continue
            if name == offer_name(address) and not self._files.rename(name, taken_name(address)):
                continue
            self._drop_taken(address, boot_id)

    def _drop_taken(self, address: str, boot_id: str) -> None:
        try:
            token = read_token(self._files, taken_name(address), address)
        except TokenUnreadableError:
            return
        if token is not None and token.boot_id != boot_id:
            self._files.remove(taken_name(address))

    def _taken(self, address: str, boot_id: str, entries: Collection[str]) -> Token | None:
        token = read_token(self._files, taken_name(address), address)
        return token if token is not None and token.boot_id == boot_id and token.entry in entries else None
