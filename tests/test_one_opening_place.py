"""One module opens things where other users can make names; what does so otherwise is listed, with why."""

from __future__ import annotations

import ast

import pytest

from tests.sources import modules
from wsm.signals.names import SHARED_MEMORY_DIRECTORY

#: What opens, makes, locks or removes a name.
OF_OS = {
    *("open", "mkdir", "makedirs", "mkfifo", "mknod", "unlink", "remove", "rename", "replace", "link"),
    *("symlink", "rmdir", "removedirs", "chmod", "chown", "umask", "truncate"),
}
OF_PATHS = {
    *("mkdir", "unlink", "rmdir", "touch", "write_text", "write_bytes", "read_text", "read_bytes"),
    *("rename", "symlink_to", "hardlink_to", "chmod", "bind"),
}
MODULES = {"shutil", "tempfile", "fcntl"}

#: The place itself, and the descriptors that it hands out.
PLACE = {"shared_directory", "own_descriptor"}

#: Modules that open names otherwise, by the reason why nobody can have put something else there.
ELSEWHERE = {
    "files of the kernel": {
        "actions.backends.paddle_memory",
        "fastdeploy._membership",
        "signals.presence",
    },
    "calls of FastDeploy, bound to its own objects and read in its own source": {
        "fastdeploy._calls",
        "fastdeploy._control_calls",
        "fastdeploy._dynamic_weights",
        "fastdeploy._runner_surfaces",
    },
    "files that the user names, read or written as any program does": {
        "cli.diagrams",
        "cli.journal",
        "demo.loop",
        "demo.report",
        "demo.run",
        "strategies.snapshot.convert",
        "strategies.training_names_file",
        "yaml_reading",
    },
    "directories that the user names; the files in them are opened in the place": {
        "controller.group_view",
        "strategies.ipc.shared_device_tensors",
        "worker.recording",
    },
    "published versions: only who may write in the trainer's directory can put something there": {
        "strategies.adopt.taking",
        "strategies.delta.publish",
        "strategies.delta._published",
        "strategies.delta._writer",
        "strategies.files.atomic_file",
        "strategies.files.leases",
        "strategies.files.safetensors",
        "strategies.files.snapshot_directory",
        "strategies.snapshot.publish",
        "strategies.trainer.retention",
        "strategies.trainer.staged_directory",
    },
    "the run directory of a group, mode 0700, which the place has made": {
        "actions.backends.rendezvous",
        "rollout.cache_process",
        "rollout.rank_processes",
        "rollout.run_directory",
        "rollout.worker_process",
    },
    "ports, which have no names": {
        "actions.backends._gloo_sockets",
        "http._serving",
        "strategies.messages.listener",
    },
    "record locks, and the last name, of files that the place has opened": {
        "signals.lock_file",
        "signals._memory",
    },
    "a segment's own way to remove its name": {
        "group_segment",
        "rollout.supervisor",
        "worker._attachment",
    },
    "a temporary directory of mode 0700": {"testing.hypothesis"},
    "the device that swallows everything": {"cli.main"},
    "what the kernel says of a process": {"clock"},
    "a method of something else that is called so": {"cli._base", "controller._command_request"},
}


def opens(call: ast.Call) -> bool:
    """Whether a call may open, make, lock or remove a name."""
    if isinstance(call.func, ast.Name):
        return call.func.id == "open"
    if not isinstance(call.func, ast.Attribute):
        return False
    of, name = call.func.value, call.func.attr
    if isinstance(of, ast.Name) and of.id == "os":
        return name in OF_OS
    of_module = isinstance(of, ast.Name) and of.id in MODULES
    return of_module or name in OF_PATHS or (name == "open" and _has_mode(call))


def _has_mode(call: ast.Call) -> bool:
    """Whether an `open` is that of a path, and not that of a strategy."""
    first = call.args[0] if call.args else None
    by_mode = (
        isinstance(first, ast.Constant) and isinstance(first.value, str) and set(first.value) <= set("rwab+x")
    )
    return by_mode or any(keyword.arg in ("mode", "buffering", "encoding") for keyword in call.keywords)


def test_whatever_opens_a_name_is_the_one_place_or_says_why_not() -> None:
    found = {
        module.removeprefix("wsm."): sorted(
            {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and opens(node)}
        )
        for module, tree in modules().items()
    }
    opening = {module: lines for module, lines in found.items() if lines and module not in PLACE}
    listed = set().union(*ELSEWHERE.values())
    assert {module: lines for module, lines in opening.items() if module not in listed} == {}
    assert listed - set(opening) == set(), "these open nothing any more"


def test_nothing_in_shared_memory_is_reached_but_by_its_declared_users() -> None:
    """A path in /dev/shm is made in few modules; each of them hands it to the place."""
    naming = {
        module.removeprefix("wsm.")
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).startswith(str(SHARED_MEMORY_DIRECTORY))
    }
    assert naming <= {"signals.names", "strategies.ipc.shared_segment"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("os.open(path, 0)", True),
        ("open(path)", True),
        ("path.open('rb')", True),
        ("path.open(encoding='utf-8')", True),
        ("strategy.open(source, version)", False),
        ("fcntl.flock(descriptor, 2)", True),
        ("shutil.rmtree(path)", True),
        ("segment.close()", False),
    ],
)
def test_the_check_sees_what_opens(line: str, expected: bool) -> None:
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    assert opens(call) is expected
