"""Templates of partitions: unknown ones are refused, those of a twin chip are left to the host."""

from crds.catalogue import load_catalogue
from crds.models.kinds import BY_NAME
from tests.builders.objects import device_rule, node_policy
from webhooks.rules import KnownView, Severity, Subject
from webhooks.rules.judge import SERVER_LAYERS, judge


def told(*templates: str) -> list[tuple[str, Severity]]:
    rule = device_rule(products=["Ascend-910B4"], mode="HardVNPU", hardVNPU={"templates": list(templates)})
    subject = Subject.of(BY_NAME["NPUNodePolicy"], node_policy(rules=[rule]))
    return [(one.message, one.severity) for one in judge(subject, KnownView(load_catalogue()), layers=SERVER_LAYERS)]


def test_template_of_a_chip_with_the_same_ids_is_a_warning() -> None:
    ((message, severity),) = told("vir05_1c_16g", "vir10_3c_16g")
    assert severity is Severity.WARNING
    assert message == '"vir05_1c_16g" is a template of another chip with the PCI ids of Ascend-910B4'


def test_template_of_no_such_chip_is_an_error() -> None:
    ((message, severity),) = told("vir99", "vir10_3c_16g")
    assert (message, severity) == ('unknown template "vir99" of Ascend-910B4', Severity.ERROR)
