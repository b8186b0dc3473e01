"""Quantities and the amounts that Kubernetes gives them, checked against a real API server in tests/cluster."""

from fractions import Fraction

NANO = Fraction(1, 10**9)

KNOWN: list[tuple[str, Fraction]] = [
    ("0", Fraction(0)),
    ("0Ki", Fraction(0)),
    ("1", Fraction(1)),
    ("+1", Fraction(1)),
    ("007", Fraction(7)),
    ("1.", Fraction(1)),
    (".5", Fraction(1, 2)),
    ("1.5", Fraction(3, 2)),
    ("1n", NANO),
    ("5u", 5000 * NANO),
    ("250m", Fraction(1, 4)),
    ("2k", Fraction(2000)),
    ("2M", Fraction(2 * 10**6)),
    ("1.5G", Fraction(15 * 10**8)),
    ("3T", Fraction(3 * 10**12)),
    ("4P", Fraction(4 * 10**15)),
    ("5E", Fraction(5 * 10**18)),
    ("1Ki", Fraction(1024)),
    ("128Mi", Fraction(128 * 1024**2)),
    ("8Gi", Fraction(8 * 1024**3)),
    ("1Ti", Fraction(1024**4)),
    ("1Pi", Fraction(1024**5)),
    ("7Ei", Fraction(7 * 1024**6)),
    ("0.5Gi", Fraction(512 * 1024**2)),
    ("1.5Ki", Fraction(1536)),
    ("0.1Ki", Fraction(1024, 10)),
    ("1e3", Fraction(1000)),
    ("1E3", Fraction(1000)),
    ("1e+3", Fraction(1000)),
    ("25e-2", Fraction(1, 4)),
    ("1e0", Fraction(1)),
    # Finer than a nano: up.
    ("0.0000000001", NANO),
    ("0.1n", NANO),
    ("1.1n", 2 * NANO),
    ("1e-12", NANO),
    ("0.0000000019", 2 * NANO),
    ("0.000000000001Ki", 2 * NANO),
    # Binary amounts end at the largest int64, decimal ones do not.
    ("8Ei", Fraction(2**63 - 1)),
    ("9Ei", Fraction(2**63 - 1)),
    ("12E", Fraction(12 * 10**18)),
]
