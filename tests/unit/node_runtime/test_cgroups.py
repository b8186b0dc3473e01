"""A node's cgroups on the three layouts of a machine, read from the kernel's own texts."""

from __future__ import annotations

from pathlib import Path

from tests.node_runtime.cgroups import Cgroup, Hierarchy, hierarchies

HYBRID_MOUNTS = """\
24 23 0:22 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
25 24 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
26 24 0:24 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
27 24 0:25 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
28 24 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
29 23 8:1 / / rw,relatime - ext4 /dev/root rw
"""
HYBRID_SELF = "3:cpu,cpuacct:/\n2:memory:/jobs/one\n1:name=systemd:/\n0::/\n"
CONTAINER_MOUNTS = "26 24 0:24 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"


def test_hybrid_layout_is_read_tree_by_tree() -> None:
    found = {tree.controllers: tree for tree in hierarchies(HYBRID_MOUNTS, HYBRID_SELF)}
    root = Path("/sys/fs/cgroup")
    assert found == {
        "cpu,cpuacct": Hierarchy("cpu,cpuacct", root / "cpu,cpuacct", root / "cpu,cpuacct"),
        "memory": Hierarchy("memory", root / "memory", root / "memory/jobs/one"),
        "name=systemd": Hierarchy("name=systemd", root / "systemd", root / "systemd"),
        "": Hierarchy("", root / "unified", root / "unified"),
    }
    assert found[""].unified


def test_node_lives_below_the_cgroup_of_its_starter_where_limits_are_kept() -> None:
    cgroup = Cgroup("npufleet-node-7-8-0", hierarchies(HYBRID_MOUNTS, HYBRID_SELF))
    assert Path("/sys/fs/cgroup/memory/jobs/one/npufleet-node-7-8-0") in cgroup.directories
    assert cgroup.service_doors == cgroup.doors == [one / "cgroup.procs" for one in cgroup.directories]


def test_alone_the_unified_layout_wants_services_beside_pods_and_a_parent_without_processes() -> None:
    mounts = "30 23 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
    cgroup = Cgroup("npufleet-node-7-8-0", hierarchies(mounts, "0::/user.slice/session.scope\n"))
    assert cgroup.unified_only
    assert cgroup.directories == [Path("/sys/fs/cgroup/npufleet-node-7-8-0")]
    assert cgroup.service_doors == [Path("/sys/fs/cgroup/npufleet-node-7-8-0/runtime/cgroup.procs")]


def test_mount_that_shows_only_a_part_is_taken_from_its_root() -> None:
    inside, outside = "2:memory:/docker/abc/job\n", "2:memory:/elsewhere\n"
    assert hierarchies(CONTAINER_MOUNTS, inside)[0].own == Path("/sys/fs/cgroup/memory/job")
    assert hierarchies(CONTAINER_MOUNTS, outside)[0].own == Path("/sys/fs/cgroup/memory")


def test_second_mount_of_a_tree_and_controllers_that_are_not_ours_are_left_out() -> None:
    twice = HYBRID_MOUNTS + "31 23 0:24 / /mnt/memory rw - cgroup cgroup rw,memory\n"
    twice += "32 23 0:30 / /sys/fs/cgroup/rdma rw - cgroup cgroup rw,rdma\n"
    assert hierarchies(twice, HYBRID_SELF) == hierarchies(HYBRID_MOUNTS, HYBRID_SELF)
