"""Only what is surely a secret refuses an object, and its value is told to nobody."""

import time

import pytest

from crds.catalogue import load_catalogue
from crds.models.kinds import BY_NAME
from tests.builders.objects import node_policy
from webhooks.rules import KnownView, Severity, Subject, Violation
from webhooks.rules.judge import SERVER_LAYERS, judge

VIEW = KnownView(load_catalogue())


def found(text: str, key: str = "npufleet.io/break-glass-reason") -> list[Violation]:
    policy = node_policy(meta={"annotations": {key: text}})
    judged = judge(Subject.of(BY_NAME["NPUNodePolicy"], policy), VIEW, layers=SERVER_LAYERS)
    return [violation for violation in judged if violation.rule.startswith("NPF-ALL-1")]


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
        "-----BEGIN PRIVATE KEY-----",
        "key AKIA" + "Q" * 15 + "7",
        "ghp_" + "a1" * 18,
        "glpat-" + "x" * 20,
        "xoxb-" + "1" * 24,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN",
        "postgres://fleet:correct-horse@db.example.com/x",
    ],
)
def test_a_secret_is_refused_and_not_repeated(text: str) -> None:
    (told,) = found(text)
    assert (told.rule, told.severity) == ("NPF-ALL-111", Severity.ERROR)
    assert text[4:12] not in told.line
    assert text not in told.value


@pytest.mark.parametrize(
    "text",
    [
        "card 0000:23:00.0 of node-7 throws ECC errors, see OPS-1234",
        "https://git.example.com/fleet/commit/0123456789abcdef0123456789abcdef01234567",
        "token expired; the new one is in the vault",
        "git@github.com:example/fleet.git",
        "https://ci:$TOKEN@git.example.com/fleet and https://ci:<token>@git.example.com",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "/dev/vfio/42 and /sys/bus/pci/devices/0000:23:00.0 are held by pid 4711",
        "npufleet:npufleet.io/NPUNodePolicy:/policy",
        "password: see vault",
        "ratio 1/2 and/or a b/c",
        "ASIAPACIFICNORTHEAST",
        "https://user:PASSWORD@git.example.com/fleet and https://user:your-token@git.example.com",
        "oci://registry:5000@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "secret: npu-registry-credentials",
        "",
    ],
)
def test_ordinary_reasons_are_left_alone(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize("text", ["password=hunter2hunter2", "API_KEY: 0123456789abcdef"])
def test_what_may_be_a_secret_is_a_warning(text: str) -> None:
    assert [(told.rule, told.severity) for told in found(text)] == [("NPF-ALL-111", Severity.WARNING)]


@pytest.mark.parametrize(
    "text", ["see /home/someone/notes", "in ~/notes.txt", "log: C:\\logs\\x.txt", "/etc/passwd", '"/var/log/x"']
)
def test_a_path_of_a_host_is_a_warning_in_our_annotations_only(text: str) -> None:
    assert [(told.rule, told.severity) for told in found(text)] == [("NPF-ALL-112", Severity.WARNING)]
    assert found(text, "config.kubernetes.io/path") == []


def test_the_copy_that_kubectl_keeps_is_not_searched() -> None:
    assert found('{"password": "hunter2hunter2"}', "kubectl.kubernetes.io/last-applied-configuration") == []


def test_a_huge_annotation_takes_no_time() -> None:
    before = time.process_time()
    for text in (
        "a" * 262144,
        "eyJ" * 80000,
        "=/" * 100000,
        "a://b:c" * 30000,
        "token:" * 40000,
        "-----BEGIN " * 20000,
    ):
        found(text, "npufleet.io/note")
    assert time.process_time() - before < 10
