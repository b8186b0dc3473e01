"""A pytest plug-in: the tests that take longest are begun first, so that no process is left alone with one in the end.

Their order is all that it changes. Processes that run side by side have to be dealt tests one by one then
(``--maxschedchunk 1``): of the first ones in a row, one process would get all.
"""

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import pytest

LONGEST: Final[tuple[str, ...]] = (
    "tests/unit/controllers/test_node_policy_properties.py",
    "tests/unit/vfio_binder/test_every_step_struck.py",
    "tests/unit/vfio_binder/test_hand_over_properties.py",
    "tests/unit/profile_writer/test_writer_properties.py",
    "tests/unit/profile_writer/test_deaths.py",
    "tests/unit/webhooks/parity/test_same_verdict.py",
    "tests/unit/webhooks/parity/test_acceptance.py",
    "tests/unit/webhooks/parity/test_arbitrary_requests.py",
    "tests/unit/vfio_binder/test_properties.py",
    "tests/unit/controllers/test_held_removals_properties.py",
    "tests/unit/controllers/drain/test_plan_properties.py",
    "tests/unit/webhooks/certificates/test_rotation.py::test_replicas_with_other_names_come_to_one_certificate_for_all_of_them",
    "tests/unit/controllers/drain/test_deaths.py",
    "tests/unit/vfio_binder/test_every_read_struck.py",
    "tests/unit/simulated_node/test_machine_properties.py",
    "tests/unit/dra_publisher/claims/test_properties.py",
    "tests/unit/cli/lint/test_arbitrary_files.py",
    "tests/unit/runtime/test_lease.py::test_there_are_never_two_leaders_and_soon_one_after_the_faults_end",
    "tests/unit/dra_publisher/claims/test_restarts.py::test_a_look_that_hangs_is_an_error_and_holds_nobody_else_up",
    "tests/unit/webhooks/server/test_bytes.py",
    "tests/unit/simulated_node/test_materialise.py",
    "tests/unit/node_host/evidence/test_checkpoint.py",
    "tests/unit/crds/test_schema_agreement.py",
    "tests/unit/dra_publisher/claims/test_kill_nine.py",
    "tests/unit/vfio_binder/test_command.py::test_an_api_server_that_cannot_be_reached_is_no_finding_but_a_failure",
    "tests/unit/vfio_binder/test_daemon.py",
    "tests/unit/runtime/test_process.py::test_a_task_or_thread_that_never_ends_cannot_hold_the_process",
    "tests/unit/runtime/test_kopf_feed.py",
    "tests/unit/vfio_binder/test_kill_nine.py",
    "tests/unit/webhooks/rules/test_ratcheting.py",
    "tests/unit/runtime/test_work_queue.py",
)
"""Files, and single tests of files, that take several seconds or more; those that take longest stand first."""

Item = TypeVar("Item")


def in_order(items: Iterable[tuple[str, Item]], longest: Sequence[str] = LONGEST) -> list[Item]:
    """The items by their ids: the longest in the order of the list, all others behind them as they were."""
    places = {name: place for place, name in enumerate(longest)}

    def place(id: str) -> int:
        test, _, _ = id.partition("[")
        file, _, _ = test.partition("::")
        return min(places.get(test, len(places)), places.get(file, len(places)))

    return [item for _, item in sorted(items, key=lambda pair: place(pair[0]))]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = in_order([(item.nodeid, item) for item in items])
