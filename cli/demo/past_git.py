"""The demo's change past Git: once only who applies Git may write policies, a colleague with every right is refused."""

from __future__ import annotations

import json

from cli.checkout import KUSTOMIZE_BASE
from cli.demo.cluster_view import ClusterView
from cli.errors import CommandError

COMPONENT = KUSTOMIZE_BASE.parent / "components" / "only-git-writes" / "deny"
_PATCH = ("patch", "npunodepolicy", "atom-passthrough", "--type=merge", '--patch={"spec":{"priority":1}}')
_COLLEAGUE = ("--as=alice", "--as-group=system:masters")
COMMAND = f'kubectl {" ".join(_PATCH[:4])} --patch=\'{{"spec":{{"priority":1}}}}\' {" ".join(_COLLEAGUE)}'


def forbid(view: ClusterView) -> None:
    """List who applies the demo's commits, and let nobody else write."""
    writer = view.run("auth", "whoami", "--output", "jsonpath={.status.userInfo.username}")
    listed = json.dumps({"data": {"writers": writer}})
    view.run("patch", "configmap", "npufleet-writers", "--namespace=npufleet-system", "--type=merge", "--patch", listed)
    view.apply(COMPONENT)


def still_possible(view: ClusterView) -> str:
    """What has to happen before the colleague is refused; nothing is changed."""
    return "" if _refused(view, "--dry-run=server") else "the API server to take up the policy"


def refusal(view: ClusterView) -> str:
    """What the API server says to the colleague. Raises CommandError when it takes the change."""
    said = _refused(view)
    if not said:
        raise CommandError("a change past Git was not refused")
    return said.partition("denied request: ")[2]


def _refused(view: ClusterView, *options: str) -> str:
    try:
        view.run(*_PATCH, *_COLLEAGUE, *options)
    except CommandError as error:
        if "ValidatingAdmissionPolicy" not in str(error):
            raise
        return str(error)
    return ""
