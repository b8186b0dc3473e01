"""Where the component only-git-writes is in force, what users want changes through Git, or past it in the open."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from controllers.break_glass import edited_by_hand
from crds.break_glass import REASON_ANNOTATION, UNTIL_ANNOTATION
from tests.builders.node_policy_cluster import ControllerProcess, condition
from tests.builders.only_git_writes import (
    ARGO,
    SAID,
    SYSTEM,
    UNTIL,
    Kubectl,
    Object,
    Who,
    audit_annotations,
    impersonated,
    in_force,
    member,
    node_state,
    policy,
    probe,
    profile_map,
    quota,
    saying,
    writers,
)
from tests.builders.waiting import eventually

NODE_POLICY = "npufleet-node-policy"
TEAM = "only-git-team"
BINDING = "npufleet-needs-configmap-npufleet-writers-in-npufleet-system"
OURS = {"npufleet-only-git-writes", "npufleet-only-controllers-report", "npufleet-only-controllers-order"}
ASK_GIT = "commit the change to Git"
REPORT: Object = {"status": {"observedGeneration": 1}}
OWNED = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "00000000-0000-0000-0000-000000000000"}]
KINDS = ("npunodepolicies", "vgpuprofilemaps", f"vnpuquotas --namespace={TEAM}")
LISTED = f"# who applies Git\n\n  {ARGO}\t\r\nsomebody:else\n"


@pytest.fixture(scope="module")
def git(
    installed: None, control_plane: ControlPlane, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Who]:
    """Argo CD's application controller under its own ServiceAccount, with all the rights that it has by default."""
    kubectl("create", "namespace", "argocd")
    kubectl("create", "namespace", TEAM)
    kubectl("create", "serviceaccount", "argocd-application-controller", "--namespace=argocd")
    kubectl(
        "create",
        "clusterrolebinding",
        "argocd",
        "--clusterrole=cluster-admin",
        "--serviceaccount=argocd:argocd-application-controller",
    )
    out = tmp_path_factory.mktemp("argocd") / "kubeconfig"
    yield Who(kubectl, service_account_kubeconfig(control_plane, "argocd", "argocd-application-controller", out))
    for kind in KINDS:
        kubectl("delete", *kind.split(), "--all")
    kubectl("delete", "namespace", "argocd", TEAM, "--wait=false")
    kubectl("delete", "clusterrolebinding", "argocd")


@pytest.fixture(scope="module")
def listed(git: Who, kubectl: Kubectl) -> Iterator[None]:
    writers(kubectl, LISTED)
    yield
    writers(kubectl, "")


@pytest.fixture(scope="module")
def deny(listed: None, kubectl: Kubectl) -> Iterator[None]:
    yield from in_force(kubectl, "deny")


@pytest.fixture(scope="module")
def eve(deny: None, kubectl: Kubectl) -> Who:
    """A member of the group of break-glass, once the server knows the group's rights."""
    found = member(kubectl)
    eventually(lambda: found.run("auth", "can-i", "patch", "npunodepolicies").stdout.strip() == "yes")
    return found


@pytest.fixture
def controller(deny: None, kubectl: Kubectl, control_plane: ControlPlane, tmp_path: Path) -> Who:
    out = tmp_path / "controller"
    return Who(kubectl, service_account_kubeconfig(control_plane, SYSTEM, NODE_POLICY, out))


@pytest.fixture
def admin(kubectl: Kubectl) -> Who:
    """A cluster administrator (system:masters)."""
    return Who(kubectl)


def at(git: Who, obj: Object) -> str:
    """The object as Git has it; what names it for kubectl."""
    assert git.apply(obj) == ""
    return f"{obj['kind']}/{obj['metadata']['name']}"


def read(admin: Who, resource: str) -> Object:
    done = admin.run("get", resource, "-o", "json", "--show-managed-fields")
    assert done.returncode == 0, done.stderr
    found: Object = json.loads(done.stdout)
    return found


class TestWriters:
    """Who may write, and who is told to ask Git."""

    def test_git_creates_changes_and_deletes_every_kind(self, deny: None, git: Who) -> None:
        for obj in (policy("by-git"), profile_map("by-git"), quota(TEAM, "by-git")):
            at(git, obj)
            obj["metadata"]["labels"] = {"changed": "yes"}
            at(git, obj)
            assert git.does("delete", "-f", "-", input=json.dumps(obj)) == ""

    def test_the_administrator_is_told_to_commit(self, deny: None, git: Who, admin: Who) -> None:
        for obj in (policy("not-by-hand"), profile_map("not-by-hand"), quota(TEAM, "not-by-hand")):
            kind, name = obj["kind"], obj["metadata"]["name"]
            told = admin.create(obj)
            assert f"{ASK_GIT}: create of {kind} {name} is for those whom key writers of ConfigMap" in told
            assert "npufleet-admin is not among them" in told
            at(git, obj)
            where = ["--namespace", TEAM] if kind == "VNPUQuota" else []
            assert f"{ASK_GIT}: update" in admin.annotate(f"{kind}/{name}", {"a": "b"}, *where)
            assert f"{ASK_GIT}: update" in admin.patch(
                f"{kind}/{name}", {"metadata": {"finalizers": ["a.b/c"]}}, *where
            )
            assert f"{ASK_GIT}: delete" in admin.does("delete", kind, name, *where)

    def test_the_refusal_is_forbidden_and_names_whoever_asked_and_the_way_out(self, deny: None, admin: Who) -> None:
        told = admin.create(policy("forbidden"))
        assert "(Forbidden)" in told
        assert "ConfigMap npufleet-writers in namespace npufleet-system lists" in told
        assert told.rstrip().endswith("In an emergency a member of group npufleet:break-glass may write")

    def test_a_dry_run_is_refused_in_the_same_words(self, deny: None, git: Who, admin: Who) -> None:
        assert admin.create(policy("dry"), "--dry-run=server") == admin.create(policy("dry"))
        assert git.create(policy("dry"), "--dry-run=server") == ""
        assert "NotFound" in admin.does("get", "npunodepolicy", "dry")

    def test_deleting_all_at_once_deletes_nothing(self, deny: None, git: Who, admin: Who) -> None:
        kept = at(git, policy("kept"))
        told = admin.does("delete", "--raw", "/apis/npufleet.io/v1alpha1/npunodepolicies")
        assert f"{ASK_GIT}: delete of NPUNodePolicy" in told
        assert "deletionTimestamp" not in read(admin, kept)["metadata"]

    def test_a_tenant_has_no_right_and_with_too_wide_a_right_is_told_to_commit(
        self, deny: None, git: Who, kubectl: Kubectl, control_plane: ControlPlane, tmp_path: Path
    ) -> None:
        kubectl("create", "serviceaccount", "tenant", f"--namespace={TEAM}")
        account = f"--serviceaccount={TEAM}:tenant"
        kubectl("create", "rolebinding", "tenant", "--clusterrole=admin", account, f"--namespace={TEAM}")
        out = tmp_path / "tenant"
        tenant = Who(kubectl, service_account_kubeconfig(control_plane, TEAM, "tenant", out))
        eventually(lambda: tenant.run("auth", "can-i", "create", "configmaps", "-n", TEAM).stdout.strip() == "yes")
        assert "cannot create resource" in tenant.create(quota(TEAM, "mine"))
        kubectl("create", "role", "wide", "--verb=*", "--resource=vnpuquotas.npufleet.io", f"--namespace={TEAM}")
        kubectl("create", "rolebinding", "wide", "--role=wide", account, f"--namespace={TEAM}")
        eventually(lambda: ASK_GIT in tenant.create(quota(TEAM, "mine")))
        at(git, quota(TEAM, "ours", devices=1))
        assert ASK_GIT in tenant.patch("vnpuquota/ours", {"spec": {"limits": {"devices": 9}}}, "-n", TEAM)
        assert f"system:serviceaccount:{TEAM}:tenant is not among them" in tenant.does(
            "delete", "vnpuquota", "ours", "-n", TEAM
        )

    def test_controllers_and_daemons_write_no_object_however_wide_their_rights(
        self, deny: None, git: Who, kubectl: Kubectl
    ) -> None:
        name = at(git, policy("not-by-controllers"))
        for account in (NODE_POLICY, "npufleet-vfio-binder"):
            user = f"system:serviceaccount:{SYSTEM}:{account}"
            wide = impersonated(kubectl, user, "system:masters")
            assert f"{user} is not among them" in wide.annotate(name, {"kopf.dev/touched": "yes"})
            assert f"{user} is not among them" in wide.patch(name, {"spec": {"priority": 1}})

    def test_the_api_server_finds_no_fault_with_the_policies(self, deny: None, kubectl: Kubectl) -> None:
        def checked() -> dict[str, Object]:
            items = json.loads(kubectl("get", "validatingadmissionpolicies", "-o", "json").stdout)["items"]
            ours = {item["metadata"]["name"]: item for item in items if item["metadata"]["name"].startswith("npufleet")}
            return {name: item["status"] for name, item in ours.items() if "typeChecking" in item.get("status", {})}

        eventually(lambda: set(checked()) >= OURS)
        assert {name: status["typeChecking"] for name, status in checked().items()} == {name: {} for name in checked()}


class TestTheList:
    """The ConfigMap: what it says, and what happens when it says nothing."""

    @pytest.fixture(autouse=True)
    def restored(self, deny: None, kubectl: Kubectl) -> Iterator[None]:
        yield
        writers(kubectl, LISTED)
        eventually(lambda: ASK_GIT in probe(kubectl).stderr)

    @pytest.mark.parametrize("text", ["", "  \n\n", f"# {ARGO}\n#x"])
    def test_a_list_of_nobody_lets_nobody_write_and_says_what_to_put_in(
        self, kubectl: Kubectl, git: Who, text: str
    ) -> None:
        writers(kubectl, text)
        eventually(lambda: "lists nobody" in git.create(policy("listed")))
        told = git.create(policy("listed"))
        assert "put the user name under which Git is applied into its key writers, one name a line" in told
        assert ARGO in told, "the name that is asked for stands in the message"

    def test_a_part_of_a_name_is_no_name(self, kubectl: Kubectl, git: Who) -> None:
        writers(kubectl, f"{ARGO}s\n{ARGO[:-1]}\n{ARGO} {ARGO}\n")
        eventually(lambda: ASK_GIT in git.create(policy("listed"), "--dry-run=server"))

    def test_without_the_list_nobody_writes_until_it_is_there_again(self, kubectl: Kubectl, git: Who, eve: Who) -> None:
        writers(kubectl, None)
        eventually(lambda: git.create(policy("listed"), "--dry-run=server") != "")
        for who, obj in ((git, policy("listed")), (eve, saying(policy("listed")))):
            told = who.create(obj)
            assert f"binding '{BINDING}' denied request" in told
            assert "no params found" in told
        writers(kubectl, ARGO)
        eventually(lambda: git.create(policy("listed"), "--dry-run=server") == "")

    def test_nobody_who_is_kept_to_it_may_change_the_list_or_the_policies(self, kubectl: Kubectl, eve: Who) -> None:
        accounts = (NODE_POLICY, "npufleet-vfio-binder", "npufleet-dra-publisher")
        components = [impersonated(kubectl, f"system:serviceaccount:{SYSTEM}:{name}") for name in accounts]
        for who in (eve, *components):
            for kind in ("configmaps", "validatingadmissionpolicies", "validatingadmissionpolicybindings", "groups"):
                for verb in ("create", "update", "patch", "delete", "impersonate"):
                    asked = who.run("auth", "can-i", verb, kind, f"--namespace={SYSTEM}")
                    assert asked.stdout.strip() == "no", (who, verb, kind)

    def test_the_list_that_is_installed_lists_nobody(self, kubectl: Kubectl) -> None:
        rendered = kubectl("kustomize", str(Path(__file__).parents[2] / "kustomize/base/settings")).stdout
        assert 'writers: ""' in rendered


class TestHousekeeping:
    """The control plane's own work goes on."""

    def test_a_namespace_goes_with_its_quotas(self, deny: None, git: Who, admin: Who) -> None:
        assert admin.does("create", "namespace", "only-git-gone") == ""
        at(git, quota("only-git-gone"))
        assert admin.does("delete", "namespace", "only-git-gone", "--timeout=50s") == ""

    def test_garbage_goes_with_its_owner(self, deny: None, git: Who, admin: Who) -> None:
        assert admin.does("create", "configmap", "owner", "-n", TEAM) == ""
        owner = json.loads(admin.run("get", "configmap", "owner", "-n", TEAM, "-o", "json").stdout)["metadata"]
        owned = quota(TEAM, "owned")
        owned["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
        ]
        at(git, owned)
        assert admin.does("delete", "configmap", "owner", "-n", TEAM) == ""
        eventually(lambda: "NotFound" in admin.does("get", "vnpuquota", "owned", "-n", TEAM))

    def test_a_deletion_in_the_foreground_ends(self, deny: None, git: Who) -> None:
        at(git, policy("foreground"))
        done = git.does("delete", "npunodepolicy", "foreground", "--cascade=foreground", "--timeout=50s")
        assert done == "", "the garbage collector takes its finalizer away"

    @pytest.mark.parametrize(
        "user",
        [
            "system:serviceaccount:kube-system:generic-garbage-collector",
            "system:serviceaccount:kube-system:namespace-controller",
            "system:serviceaccount:kube-system:storage-version-migrator-controller",
            "system:kube-controller-manager",
        ],
    )
    def test_who_keeps_house_deletes_and_writes_metadata_and_never_a_spec(
        self, deny: None, git: Who, kubectl: Kubectl, user: str
    ) -> None:
        keeper = impersonated(kubectl, user, "system:masters")
        obj = policy("kept-house")
        obj["metadata"]["finalizers"] = ["npufleet.io/test"]
        name = at(git, obj)
        assert keeper.patch(name, {"metadata": {"finalizers": None}}) == ""
        assert ASK_GIT in keeper.patch(name, {"spec": {"priority": 1}})
        assert ASK_GIT in keeper.create(policy("by-keeper"))
        assert keeper.does("delete", "npunodepolicy", "kept-house") == ""

    def test_accounts_of_the_same_names_elsewhere_keep_no_house(self, deny: None, git: Who, kubectl: Kubectl) -> None:
        name = at(git, policy("kept-house"))
        user = f"system:serviceaccount:{TEAM}:generic-garbage-collector"
        assert ASK_GIT in impersonated(kubectl, user, "system:masters").does("delete", name)


class TestReports:
    """Status is for the controller of the kind."""

    def test_a_status_write_of_the_controller_takes_nothing_else_along(
        self, git: Who, admin: Who, controller: Who
    ) -> None:
        name = at(git, policy("reported"))
        before = read(admin, name)
        more = saying(policy("reported", priority=7)) | REPORT
        more["metadata"] |= {"labels": {"a": "b"}, "finalizers": ["a.b/c"]}
        assert controller.apply(more, "--subresource=status", manager=NODE_POLICY) == ""
        after = read(admin, name)
        assert after["status"] == REPORT["status"]
        assert after["spec"] == before["spec"]
        kept = ("labels", "annotations", "finalizers", "generation")
        assert [after["metadata"].get(key) for key in kept] == [before["metadata"].get(key) for key in kept]

    def test_nobody_else_reports(self, git: Who, admin: Who, eve: Who, kubectl: Kubectl) -> None:
        name = at(git, saying(policy("reported")))
        told = f"status of NPUNodePolicy reported is written by {NODE_POLICY}, not by "
        wide = impersonated(kubectl, "eve", "npufleet:break-glass", "system:masters")
        for who, user in ((git, ARGO), (admin, "npufleet-admin"), (wide, "eve")):
            assert told + user in who.patch(name, REPORT, "--subresource=status")

    @pytest.mark.parametrize(
        ("kind", "component"), [("vgpuprofilemap", "npufleet-profile-map"), ("vnpuquota", "npufleet-vnpu-quota")]
    )
    def test_each_kind_has_a_controller_of_its_own(
        self, deny: None, git: Who, kubectl: Kubectl, kind: str, component: str
    ) -> None:
        at(git, profile_map("reported") if kind == "vgpuprofilemap" else quota(TEAM, "reported"))
        where = ["--subresource=status", "--namespace", TEAM]
        own, other = (
            impersonated(kubectl, f"system:serviceaccount:{SYSTEM}:{name}", "system:masters")
            for name in (component, NODE_POLICY)
        )
        assert own.patch(f"{kind}/reported", REPORT, *where) == ""
        told = other.patch(f"{kind}/reported", REPORT, *where)
        assert f"is written by {component}, not by system:serviceaccount:{SYSTEM}:{NODE_POLICY}" in told


class TestOrders:
    """Orders to nodes follow from Git: nobody writes them past npufleet, Git neither."""

    REVISION: ClassVar[Object] = {"spec": {"revision": "0"}}

    def test_the_controller_orders_even_without_a_list_of_writers(
        self, controller: Who, git: Who, admin: Who, kubectl: Kubectl
    ) -> None:
        writers(kubectl, None)
        try:
            eventually(lambda: git.create(policy("listed"), "--dry-run=server") != "")
            assert controller.apply(node_state("ordered"), manager=NODE_POLICY) == ""
            told = "of NPUNodeState ordered is not for "
            for who, user in ((git, ARGO), (admin, "npufleet-admin")):
                assert f"update {told}{user}" in who.patch("npunodestate/ordered", self.REVISION)
                assert f"update {told}{user}" in who.patch(
                    "npunodestate/ordered", {"status": {}}, "--subresource=status"
                )
                assert f"delete {told}{user}" in who.does("delete", "npunodestate", "ordered")
                assert "create of NPUNodeState made-up is not for" in who.create(node_state("made-up"))
            assert controller.does("delete", "npunodestate", "ordered") == ""
        finally:
            writers(kubectl, LISTED)
            eventually(lambda: git.create(policy("listed"), "--dry-run=server") == "")

    def test_an_emergency_is_said_on_the_orders_first(self, controller: Who, eve: Who, kubectl: Kubectl) -> None:
        assert controller.apply(node_state("ordered"), manager=NODE_POLICY) == ""
        name = "npunodestate/ordered"
        told = eve.does("delete", name)
        assert "why this delete of NPUNodeState ordered cannot wait for npufleet, before deleting it" in told
        assert "is soon, which is no time" in eve.annotate(name, SAID | {UNTIL_ANNOTATION: "soon"})
        wide = impersonated(kubectl, "eve", "npufleet:break-glass", "system:masters")
        assert "is not for eve" in wide.patch(name, {"metadata": {"annotations": SAID}}, "--subresource=status")
        assert eve.patch(name, {"metadata": {"annotations": SAID}} | self.REVISION) == ""
        other: Object = {"spec": {"revision": "1"}}
        mallory = member(kubectl, "mallory")
        assert "say anew, in the same request, why and until when" in mallory.patch(name, other)
        anew = {"metadata": {"annotations": {UNTIL_ANNOTATION: "2026-12-01T11:00:00Z"}}} | other
        told = mallory.patch(name, anew, "--field-manager=mallory")
        assert "was not set by field manager mallory, which changes the orders" in told
        for key, value in (("ownerReferences", OWNED), ("finalizers", ["a.b/c"])):
            assert f"metadata.{key} is not changed by hand" in eve.patch(name, {"metadata": {key: value}})
        none = {"metadata": {"annotations": dict.fromkeys(SAID)}}
        assert "is missing" in eve.patch(name, none | other)
        assert eve.patch(name, none) == ""
        assert eve.annotate(name, SAID) == ""
        assert eve.does("delete", name) == ""


class TestBreakGlass:
    """A change past Git, in the open."""

    def test_a_member_who_says_why_and_until_when_creates_changes_and_deletes(self, eve: Who) -> None:
        for obj, where in ((policy("open"), ()), (profile_map("open"), ()), (quota(TEAM, "open"), ("-n", TEAM))):
            assert eve.create(saying(obj)) == ""
            name = f"{obj['kind']}/open"
            assert eve.annotate(name, {"a": "b"}, *where) == ""
            assert eve.does("delete", name, *where) == ""

    @pytest.mark.parametrize(
        ("said", "fault"),
        [
            (
                {"reason": ""},
                f"metadata.annotations[{REASON_ANNOTATION}] is missing or empty: eve has to say there why",
            ),
            ({"reason": "  \n\t "}, f"metadata.annotations[{REASON_ANNOTATION}] is missing or empty"),
            ({"until": ""}, f"metadata.annotations[{UNTIL_ANNOTATION}] is missing: say there until when"),
            (
                {"until": "tomorrow"},
                f"metadata.annotations[{UNTIL_ANNOTATION}] is tomorrow, which is no time of RFC 3339",
            ),
            ({"until": "2026-12-01"}, "is no time of RFC 3339"),
            ({"until": "2026-12-01T10:00:00"}, "is no time of RFC 3339"),
            ({"until": "2026-12-01 10:00:00Z"}, "is no time of RFC 3339"),
            ({"until": "2026-12-01T24:00:00Z"}, "is no time of RFC 3339"),
            ({"until": "2026-02-30T10:00:00Z"}, "is no time of RFC 3339"),
            ({"until": "2026-13-01T10:00:00Z"}, "is no time of RFC 3339"),
            ({"until": f"{UNTIL}\n{UNTIL}"}, "is no time of RFC 3339"),
            ({"until": "9" * 1000}, f"is {'9' * 40}…, which is no time of RFC 3339"),
        ],
        ids=str,
    )
    def test_who_does_not_say_both_is_told_what_is_missing(self, eve: Who, said: dict[str, str], fault: str) -> None:
        told = eve.create(saying(policy("unsaid"), **said))
        assert fault in told

    @pytest.mark.parametrize(
        "until", [UNTIL, "2026-12-01T10:00:00.5Z", "2026-12-01T10:00:00+09:00", "2024-02-29T23:59:59-11:30"]
    )
    def test_any_time_of_rfc_3339_will_do(self, eve: Who, until: str) -> None:
        assert eve.create(saying(policy("timed"), until=until), "--dry-run=server") == ""

    def test_who_is_no_member_may_say_what_he_likes(self, deny: None, admin: Who, kubectl: Kubectl) -> None:
        assert ASK_GIT in admin.create(saying(policy("no-member")))
        close = impersonated(kubectl, "mallory", "npufleet:break-glass2", "system:masters")
        assert ASK_GIT in close.create(saying(policy("no-member")))

    def test_what_was_said_before_counts_for_a_deletion(self, git: Who, eve: Who) -> None:
        name = at(git, policy("to-delete"))
        told = eve.does("delete", name)
        assert "why this delete of NPUNodePolicy to-delete cannot wait for Git, before deleting it" in told
        assert eve.annotate(name, SAID) == ""
        assert eve.does("delete", name) == ""

    def test_what_was_said_is_taken_back_with_nothing_else(self, git: Who, eve: Who, admin: Who) -> None:
        name = at(git, policy("take-back"))
        assert eve.annotate(name, SAID | {"other": "x"}) == ""
        none = dict.fromkeys(SAID)
        also: dict[str, Object] = {
            "spec": {"spec": {"priority": 3}},
            "label": {"metadata": {"annotations": none, "labels": {"a": "b"}}},
            "finalizer": {"metadata": {"annotations": none, "finalizers": ["a.b/c"]}},
            "annotation": {"metadata": {"annotations": none | {"other": "y"}}},
            "annotation gone": {"metadata": {"annotations": none | {"other": None}}},
            "one of two": {"metadata": {"annotations": {REASON_ANNOTATION: None}}},
        }
        also["spec"]["metadata"] = {"annotations": none}
        assert {what: "is missing" in eve.patch(name, change) for what, change in also.items()} == dict.fromkeys(
            also, True
        )
        assert ASK_GIT in admin.annotate(name, none)
        assert eve.annotate(name, none) == ""
        assert set(read(admin, name)["metadata"]["annotations"]) == {"other"}
        assert "is missing" in eve.annotate(name, {"other": None})

    def test_the_tool_that_changes_the_spec_gives_the_reason(self, git: Who, eve: Who) -> None:
        name = at(git, policy("signed"))
        assert eve.annotate(name, SAID, "--field-manager=one") == ""
        told = eve.patch(name, {"spec": {"priority": 3}}, "--field-manager=two")
        assert f"[{REASON_ANNOTATION}] was not set by field manager two, which changes the spec" in told
        assert eve.patch(name, {"spec": {"priority": 3}}, "--field-manager=one") == ""
        again = {"metadata": {"annotations": {REASON_ANNOTATION: "more"}}, "spec": {"priority": 4}}
        assert eve.patch(name, again, "--field-manager=two") == ""

    def test_a_change_that_names_no_tool_is_refused(self, git: Who, eve: Who, admin: Who, tmp_path: Path) -> None:
        """kubectl replace --raw sends what it is given, and names no field manager."""
        name = at(git, policy("unsigned"))
        body = saying({**read(admin, name), "spec": {**policy("unsigned")["spec"], "priority": 3}})
        told = put(eve, body, tmp_path)
        assert "this update of NPUNodePolicy unsigned names no field manager" in told
        assert put(eve, body, tmp_path, "?fieldManager=by-hand") == ""
        assert edited_by_hand(read(admin, name)) is not None

    def test_who_set_the_spec_stays_on_record(self, git: Who, eve: Who, admin: Who, tmp_path: Path) -> None:
        name = at(git, policy("recorded"))
        assert eve.patch(name, {"metadata": {"annotations": SAID}, "spec": {"priority": 3}}) == ""
        nothing: tuple[list[Object], ...] = ([{}], [])
        for erased in nothing:
            body = read(admin, name)
            body["metadata"] |= {"managedFields": erased, "labels": {"a": str(len(erased))}}
            put(eve, body, tmp_path, "?fieldManager=eraser")
            assert edited_by_hand(read(admin, name)) is not None
        assert eve.annotate(name, {"a": "b"}, "--field-manager=other") == ""
        body = saying(read(admin, name), reason="again")
        body["metadata"]["managedFields"] = [{}]
        body["spec"]["priority"] += 1
        assert "was not set by field manager eraser" in put(eve, body, tmp_path, "?fieldManager=eraser")

    def test_the_garbage_collector_is_given_no_owner_to_look_for(self, git: Who, eve: Who) -> None:
        name = at(git, policy("owned"))
        told = eve.patch(name, {"metadata": {"annotations": SAID, "ownerReferences": OWNED}})
        assert "metadata.ownerReferences is not changed by hand" in told

    def test_a_finalizer_is_taken_off_what_is_being_deleted_alone(self, git: Who, eve: Who, admin: Who) -> None:
        kept = policy("final")
        kept["metadata"]["finalizers"] = ["a.b/c"]
        name = at(git, kept)
        refused = "metadata.finalizers is not changed by hand before the object is being deleted"
        for finalizers in (["a.b/c", "a.b/d"], None):
            assert refused in eve.patch(name, {"metadata": {"annotations": SAID, "finalizers": finalizers}})
        assert eve.annotate(name, SAID) == ""
        assert eve.does("delete", name, "--wait=false") == ""
        assert eve.patch(name, {"metadata": {"finalizers": None}}) == ""
        assert "NotFound" in admin.does("get", name)

    def test_the_audit_log_tells_who_why_and_until_when(
        self, git: Who, eve: Who, admin: Who, control_plane: ControlPlane
    ) -> None:
        name = at(git, policy("audited"))
        since = control_plane.audit_log.stat().st_size if control_plane.audit_log else 0
        assert eve.patch(name, {"metadata": {"annotations": SAID}, "spec": {"priority": 3}}) == ""
        assert eve.annotate(name, dict.fromkeys(SAID)) == ""
        assert eve.annotate(name, {"a": "b"}) != ""
        at(git, policy("audited"))
        assert eve.annotate(name, SAID) == ""
        assert eve.does("delete", name) == ""
        if control_plane.audit_log is None:
            return
        key = "npufleet-only-git-writes/break-glass"
        found = partial(audit_annotations, control_plane.audit_log, since=since, name="audited")
        eventually(lambda: any(verb == "delete" for _, verb, _ in found()))
        told = [(who, verb, marks[key]) for who, verb, marks in found() if marks.get(key)]
        assert told == [
            ("eve", "patch", f"update of NPUNodePolicy audited by eve until {UNTIL}: node 7 burns"),
            ("eve", "patch", "update of NPUNodePolicy audited by eve: annotations taken back"),
            ("eve", "patch", f"update of NPUNodePolicy audited by eve until {UNTIL}: node 7 burns"),
            ("eve", "delete", f"delete of NPUNodePolicy audited by eve until {UNTIL}: node 7 burns"),
        ]


Change = Callable[[Who, str, Path], str]


def put(who: Who, obj: Object, folder: Path, query: str = "") -> str:
    """The object as a PUT of these very bytes."""
    file = folder / "body.json"
    file.write_text(json.dumps(obj))
    path = f"/apis/npufleet.io/v1alpha1/npunodepolicies/{obj['metadata']['name']}{query}"
    return who.does("replace", "--raw", path, "-f", str(file))


def by_patch(eve: Who, name: str, folder: Path) -> str:
    return eve.patch(
        name, {"metadata": {"annotations": SAID}, "spec": {"priority": 3, "rollout": {"maxUnavailable": 3}}}
    )


def by_edit(eve: Who, name: str, folder: Path) -> str:
    editor = folder / "editor"
    editor.write_text(
        f"""#!{sys.executable}
import sys, yaml
with open(sys.argv[1]) as file:
    obj = yaml.safe_load(file)
obj["metadata"]["annotations"] = {SAID!r}
obj["spec"].update(priority=3, rollout={{"maxUnavailable": 3}})
with open(sys.argv[1], "w") as file:
    yaml.safe_dump(obj, file)
"""
    )
    editor.chmod(0o755)
    return eve.does("edit", name)


def by_apply(eve: Who, name: str, folder: Path) -> str:
    obj = policy(name.partition("/")[2], priority=3, rollout={"maxUnavailable": 3})
    return eve.apply(saying(obj), manager="kubectl")


def by_put(eve: Who, name: str, folder: Path) -> str:
    obj = json.loads(eve.run("get", name, "-o", "json").stdout)
    obj["spec"] |= {"priority": 3, "rollout": {"maxUnavailable": 3}}
    return eve.does("replace", "-f", "-", input=json.dumps(saying(obj)))


class TestCondition:
    """What was changed by hand is told until Git agrees."""

    @pytest.mark.parametrize("change", [by_patch, by_edit, by_apply, by_put])
    @pytest.mark.parametrize(
        ("answer", "left"),
        [
            ({"priority": 3, "rollout": {"maxUnavailable": 3}}, ()),
            ({"priority": 200, "rollout": {"maxUnavailable": 1}}, ()),
            ({"rollout": {"maxUnavailable": 1}}, ("spec.priority",)),
            ({"priority": 3}, ("spec.rollout.maxUnavailable",)),
        ],
        ids=["the same", "others", "one of them, other", "one of them, same"],
    )
    def test_git_ends_it_field_by_field(
        self,
        git: Who,
        eve: Who,
        admin: Who,
        change: Change,
        answer: Object,
        left: tuple[str, ...],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("KUBE_EDITOR", str(tmp_path / "editor"))
        name = at(git, policy("by-hand", rollout={"maxUnavailable": 1}))
        try:
            assert edited_by_hand(read(admin, name)) is None
            assert change(eve, name, tmp_path) == ""
            found = edited_by_hand(read(admin, name))
            assert found is not None
            assert {"spec.priority", "spec.rollout.maxUnavailable"} <= set(found.fields)
            assert (found.reason, found.until) == (SAID[REASON_ANNOTATION], UNTIL)
            at(git, policy("by-hand", **answer))
            still = edited_by_hand(read(admin, name))
            assert (still.fields if still is not None else ()) == left
        finally:
            assert git.does("delete", name) == ""

    def test_the_controller_tells_it_and_stops_when_git_is_applied(
        self, git: Who, eve: Who, admin: Who, kubectl: Kubectl, control_plane: ControlPlane, tmp_path: Path
    ) -> None:
        kubeconfig = service_account_kubeconfig(control_plane, SYSTEM, NODE_POLICY, tmp_path / "kubeconfig")
        name = at(git, policy("told"))
        process = ControllerProcess(kubeconfig, tmp_path / "controller.log")
        try:

            def is_now(*wanted: tuple[str, str]) -> bool:
                obj = read(admin, name)
                return (condition(obj, "Ready"), condition(obj, "BreakGlass")) == wanted

            ready = ("True", "NoNodesMatched")
            eventually(lambda: is_now(ready, ("", "")), what="an ordinary policy")
            assert eve.patch(name, {"metadata": {"annotations": SAID}, "spec": {"priority": 3}}) == ""
            eventually(lambda: is_now(ready, ("True", "EditedByHand")), what="the change is told")
            (told,) = [c for c in read(admin, name)["status"]["conditions"] if c["type"] == "BreakGlass"]
            assert f"kubectl-patch, until {UNTIL}: spec.priority; because: node 7 burns" in told["message"]
            at(git, policy("told", priority=100))
            eventually(lambda: is_now(ready, ("", "")), what="Git agrees")
            assert eve.annotate(name, dict.fromkeys(SAID)) == ""
        finally:
            assert process.stop() == 0


@pytest.fixture(scope="module")
def audit(listed: None, kubectl: Kubectl) -> Iterator[None]:
    yield from in_force(kubectl, "audit")


@pytest.mark.usefixtures("audit")
class TestAudit:
    """The variant that refuses nobody."""

    def test_who_would_be_refused_is_warned_and_the_log_tells(
        self, admin: Who, git: Who, control_plane: ControlPlane
    ) -> None:
        at(git, policy("reported"))  # each policy of the variant reaches the API server's admission by itself
        report = ("--subresource=status", "--type=merge", "-p", json.dumps(REPORT))
        eventually(lambda: admin.run("patch", "npunodepolicy", "reported", *report).returncode == 0)
        assert git.does("delete", "npunodepolicy", "reported") == ""
        since = control_plane.audit_log.stat().st_size if control_plane.audit_log else 0
        done = admin.run("create", "-f", "-", input=json.dumps(policy("warned")))
        assert done.returncode == 0
        assert "Warning: Validation failed for ValidatingAdmissionPolicy 'npufleet-only-git-writes'" in done.stderr
        assert f"{ASK_GIT}: create of NPUNodePolicy warned" in done.stderr
        status = admin.run("patch", "npunodepolicy", "warned", *report)
        assert status.returncode == 0
        assert "Warning: Validation failed" in status.stderr
        quiet = git.run("annotate", "npunodepolicy", "warned", "a=b")
        assert (quiet.returncode, quiet.stderr) == (0, "")
        assert admin.does("delete", "npunodepolicy", "warned") == ""
        if control_plane.audit_log is None:
            return
        key = "validation.policy.admission.k8s.io/validation_failure"
        found = partial(audit_annotations, control_plane.audit_log, since=since, name="warned")
        eventually(lambda: any(verb == "delete" for _, verb, _ in found()))
        marked = [(who, verb) for who, verb, marks in found() if key in marks]
        assert marked == [("npufleet-admin", verb) for verb in ("create", "patch", "delete")]
        (created,) = [json.loads(marks[key]) for _, verb, marks in found() if verb == "create"]
        assert [(one["policy"], one["validationActions"]) for one in created] == [
            ("npufleet-only-git-writes", ["Audit", "Warn"])
        ]
        assert ASK_GIT in created[0]["message"]

    def test_a_missing_list_refuses_nobody_either(self, admin: Who, kubectl: Kubectl) -> None:
        writers(kubectl, None)
        eventually(lambda: probe(kubectl).stderr == "", what="there is nothing to judge by")
        assert admin.create(policy("unjudged")) == ""
        assert admin.does("delete", "npunodepolicy", "unjudged") == ""
