"""Certificates from a directory: served when they are whole, by their content, and honest about who trusts them."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path

import pytest

from runtime import errors
from runtime.certificates import Authority, new_authority, new_leaf
from runtime.resources import VALIDATING_WEBHOOKS
from tests.builders.webhook_cluster import VALIDATING, configuration
from tests.builders.webhook_replicas import HOST, START, World
from webhooks.certificates.files import Files
from webhooks.certificates.keeper import Keeper
from webhooks.certificates.serving import Serving


class Mounted:
    """A directory with certificates, a keeper that follows it, and the cluster whose API server has to trust it."""

    def __init__(self, directory: Path) -> None:
        self.world = World()
        self.directory = directory
        self.first, self.second = (
            new_authority(name, now=START, lifetime=timedelta(days=30)) for name in ("first", "second")
        )
        self.serving = Serving()
        files = Files(
            self.world.cluster,
            directory,
            now=self.world.now,
            clock=lambda: self.world.seconds,
            targets=(VALIDATING,),
        )
        self.keeper = Keeper(
            files,
            self.serving,
            hosts=frozenset({HOST}),
            now=self.world.now,
            clock=lambda: self.world.seconds,
        )
        self.write(self.first)
        self.trust(self.first)

    def write(self, signer: Authority, *, host: str = HOST, life: timedelta = timedelta(days=1)) -> None:
        pair = new_leaf(signer, "server", hosts=[host], now=self.world.now(), lifetime=life)
        (self.directory / "tls.crt").write_bytes(pair.certificate)
        (self.directory / "tls.key").write_bytes(pair.key)

    def trust(self, *authorities: Authority) -> None:
        """As an injector does."""
        item = configuration(VALIDATING.name, ("objects.npufleet.io", "b.x.y"))
        bundle = base64.b64encode(b"".join(one.pem for one in authorities)).decode()
        for entry in item["webhooks"]:
            entry["clientConfig"] = entry["clientConfig"] | {"caBundle": bundle}
        self.world.cluster.put(VALIDATING_WEBHOOKS, item)

    async def after(self, seconds: float) -> str:
        """Look every second for so long; the digest of what is served then."""
        for _ in range(int(seconds)):
            self.world.seconds += 1
            await self.keeper.look()
        return self.served

    @property
    def served(self) -> str:
        return self.serving.pair.digest if self.serving.pair is not None else ""


@pytest.fixture
async def mounted(tmp_path: Path) -> Mounted:
    found = Mounted(tmp_path)
    await found.keeper.look()
    assert found.keeper.fault() is None
    return found


async def test_renewed_certificate_of_the_same_authority_is_served_within_a_minute(mounted: Mounted) -> None:
    before = mounted.served
    mounted.write(mounted.first)
    assert await mounted.after(59) != before
    assert mounted.keeper.fault() is None


async def test_same_content_is_no_change_though_the_files_are_new(mounted: Mounted) -> None:
    before = mounted.serving.pair
    for name in ("tls.crt", "tls.key"):
        path = mounted.directory / name
        path.write_bytes(path.read_bytes())
    await mounted.after(60)
    assert mounted.serving.pair is before


async def test_half_written_pair_is_not_served_and_the_former_goes_on(mounted: Mounted) -> None:
    before = mounted.served
    key = (mounted.directory / "tls.key").read_bytes()
    mounted.write(mounted.first)
    (mounted.directory / "tls.key").write_bytes(key)
    assert await mounted.after(60) == before
    assert mounted.keeper.fault() is None
    assert "tls.key is not the key" in (mounted.keeper.source_fault or "")


async def test_certificate_of_a_new_authority_waits_for_the_trust_in_it(mounted: Mounted) -> None:
    before = mounted.served
    mounted.write(mounted.second)
    assert await mounted.after(Files.grace_seconds / 2) == before
    mounted.trust(mounted.second, mounted.first)
    assert await mounted.after(15) != before
    assert mounted.keeper.fault() is None


async def test_certificate_that_nobody_comes_to_trust_is_served_and_not_ready(mounted: Mounted) -> None:
    before = mounted.served
    mounted.write(mounted.second)
    assert await mounted.after(59) != before
    assert "caBundle of ValidatingWebhookConfiguration npufleet.io does not trust" in (mounted.keeper.fault() or "")
    mounted.trust(mounted.second)
    await mounted.after(2)
    assert mounted.keeper.fault() is None


async def test_trust_that_is_taken_away_is_noticed(mounted: Mounted) -> None:
    mounted.trust(mounted.second)
    await mounted.after(20)
    assert "does not trust" in (mounted.keeper.fault() or "")


async def test_files_that_are_gone_leave_what_is_served(mounted: Mounted) -> None:
    (mounted.directory / "tls.crt").unlink()
    await mounted.after(5)
    assert mounted.keeper.fault() is None
    assert "tls.crt: No such file or directory" in (mounted.keeper.source_fault or "")


async def test_certificate_for_another_name_is_not_ready(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path)
    mounted.write(mounted.first, host="elsewhere.example.com")
    await mounted.keeper.look()
    assert mounted.keeper.fault() == f"the certificate is not for {HOST}"


async def test_certificate_near_its_end_is_not_ready_before_it_fails(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path)
    mounted.write(mounted.first, life=timedelta(hours=10))
    await mounted.keeper.look()
    assert mounted.keeper.fault() is None
    mounted.world.seconds += 9.6 * 3600
    assert "was not renewed" in (mounted.keeper.fault() or "")
    mounted.world.seconds += 3600
    assert "the certificate ended at" in (mounted.keeper.fault() or "")


async def test_api_server_that_cannot_be_asked_delays_nothing(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path)

    def unreachable(when: str, verb: str, name: str) -> None:
        raise errors.Unreachable(0, "", "connection refused")

    before, mounted.world.cluster.fault = mounted.world.cluster.fault, unreachable
    await mounted.keeper.look()
    assert mounted.served
    assert "is not known: connection refused" in (mounted.keeper.fault() or "")
    mounted.world.cluster.fault = before
    await mounted.keeper.look()
    assert mounted.keeper.fault() is None


async def test_empty_directory_says_which_file_is_missing(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).unlink()
    await mounted.keeper.look()
    assert mounted.keeper.fault() == (f"there is no certificate yet: {tmp_path}/tls.crt: No such file or directory")
