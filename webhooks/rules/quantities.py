"""Amounts of memory that are quantities to Kubernetes and slips to everybody else."""

from collections.abc import Iterator

from crds.models.quantity import parse_quantity
from webhooks.rules.pointers import Step
from webhooks.rules.rule import Fault
from webhooks.rules.subject import Subject


def amount_of(value: object) -> int | None:
    """The amount in whole units, rounded up; None when the value is no quantity."""
    try:
        amount = parse_quantity(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if amount is None else -(-amount.numerator // amount.denominator)


def amounts_below_one(subject: Subject, *places: tuple[Step, ...]) -> Iterator[Fault]:
    """Amounts of memory with parts of a byte: the suffixes m, u and n are fractions."""
    for steps in places:
        for at, value in subject.each(*steps):
            if not isinstance(value, str) or value[-1:] not in {"m", "u", "n"} or amount_of(value) is None:
                continue
            if parse_quantity(value).denominator != 1:
                told = f'"{value}" is a fraction of a byte: the suffix {value[-1]} divides'
                yield Fault(at, told, f'did you mean "{value[:-1]}Mi"?')
