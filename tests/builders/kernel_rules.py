"""Marks for tests of the simulated kernel: which of its rules a test shows, checked while it runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from simulated_node.rules.registry import observed

Test = TypeVar("Test", bound=Callable[..., Any])


def shows(*rules: str) -> Callable[[Test], Test]:
    """Each of these rules decides something in the test: refuses, for a rule with an errno."""

    def judge(seen: list[str]) -> None:
        missing = sorted(set(rules) - set(seen))
        assert not missing, f"the test does not show {', '.join(missing)}"

    return _watching(judge)


def allows(*rules: str) -> Callable[[Test], Test]:
    """The good case beside the errno: the test does what these rules let pass, and none of them refuses."""

    def judge(seen: list[str]) -> None:
        struck = sorted(set(rules) & set(seen))
        assert not struck, f"the test runs into {', '.join(struck)}"

    return _watching(judge)


def _watching(judge: Callable[[list[str]], None]) -> Callable[[Test], Test]:
    def decorate(test: Test) -> Test:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_async(*arguments: Any, **named: Any) -> None:
                with observed() as seen:
                    await test(*arguments, **named)
                judge(seen)

            return cast(Test, run_async)

        @functools.wraps(test)
        def run(*arguments: Any, **named: Any) -> None:
            with observed() as seen:
                test(*arguments, **named)
            judge(seen)

        return cast(Test, run)

    return decorate
