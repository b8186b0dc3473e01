"""Command line and environment, and what is said about wrong values."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from runtime.settings import Address, Settings, add_arguments, from_arguments


def parse(*arguments: str, **environment: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_arguments(parser, port=9440, environment=environment)
    return from_arguments("npufleet-test", parser.parse_args(arguments))


def test_defaults() -> None:
    settings = parse()
    assert settings.kubeconfig is None and settings.listen == Address("", 9440)
    assert (settings.log_format, settings.log_level) == ("json", "info")
    assert (settings.writes_per_second, settings.burst) == (20, 40)


def test_the_environment_is_below_the_command_line() -> None:
    environment = {"NPUFLEET_LISTEN": "127.0.0.1:1", "NPUFLEET_KUBECONFIG": "/a", "NPUFLEET_WRITES_PER_SECOND": "2.5"}
    settings = parse("--listen", "127.0.0.1:0", **environment)
    assert settings.listen == Address("127.0.0.1", 0)
    assert settings.kubeconfig == Path("/a") and settings.writes_per_second == 2.5


def test_each_process_has_an_identity_of_its_own() -> None:
    assert parse().identity != parse().identity


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (["--listen", "nine"], {}, "'nine' is not HOST:PORT"),
        (["--listen", "::1:9440"], {}, "goes in brackets"),
        (["--listen", "h:99999"], {}, "from 0 to 65535"),
        (["--writes-per-second", "0"], {}, "not a number above 0"),
        (["--writes-per-second", "nan"], {}, "not a number above 0"),
        (["--writes-per-second", "inf"], {}, "not a number above 0"),
        (["--burst", "1.5"], {}, "not a whole number above 0"),
        (["--log-format", "xml"], {}, "not one of json, text"),
        ([], {"NPUFLEET_LOG_LEVEL": "loud"}, "'loud' is not one of"),
        ([], {"NPUFLEET_LISTEN": "nine"}, "'nine' is not HOST:PORT"),
    ],
)
def test_wrong_values_end_with_usage_and_name_the_value(
    arguments: list[str], environment: dict[str, str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*arguments, **environment)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("text", ["127.0.0.1:9440", ":0", "[::1]:9440", "localhost:80"])
def test_addresses_survive_a_round_trip(text: str) -> None:
    assert str(Address.parse(text)) == text
