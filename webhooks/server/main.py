"""`npufleet-webhook`: one replica of the admission server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from runtime import logs
from runtime.settings import add_arguments, from_arguments
from webhooks.server.options import COMPONENT, HEALTH_PORT, add_review_arguments, options_from

_DESCRIPTION = """\
Answers the API server's admission reviews of NPUNodePolicy, VGPUProfileMap and VNPUQuota: a bad object is refused with
everything that is wrong with it, each fault with its field, what would be right, and the id of its rule
(`npufleet explain ID`). `npufleet lint` says the same of files. Nothing is written for a review, dry run or not.
"""
_EPILOG = """\
examples:
  npufleet-webhook                                        in a pod; certificates of its own making
  npufleet-webhook --certificates /etc/npufleet/tls       certificates of an issuer, from a mounted Secret
  npufleet-webhook --kubeconfig FILE --host 10.0.0.7      outside of the cluster, asked by URL

exit codes: 0 stopped as asked, 2 wrong usage, 3 anything else (start it again)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; wrong usage exits with 2."""
    parser = argparse.ArgumentParser(
        prog=COMPONENT,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_review_arguments(parser)
    add_arguments(parser, port=HEALTH_PORT)
    arguments = parser.parse_args(argv)
    try:
        settings = from_arguments(COMPONENT, arguments)
        options = options_from(arguments)
    except ValueError as error:
        parser.error(str(error))
    if options.certificates is not None and not options.certificates.is_dir():
        parser.error(f"--certificates {options.certificates} is no directory")
    logs.setup(settings.component, log_format=settings.log_format, level=settings.log_level)
    from webhooks.server.service import run  # the API client and the rules take most of the start-up

    return run(settings, options)


if __name__ == "__main__":
    sys.exit(main())
