"""A systemd of its own: process 1 of new namespaces, for tests of units on machines whose process 1 it is not.

It knows the units in one folder, and sees the file system of this machine with `/etc`, `/mnt`, `/opt`, `/run`, `/tmp`
and `/var/tmp` of its own. Its network is a loopback interface, and it cannot change the kernel's settings.
Not here: what a test expects of a unit.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SYSTEMD = Path("/lib/systemd/systemd")
UNITS = Path("/run/units")
"""Where it looks for units, in its own view of the file system."""

LOG = Path("/run/services.log")
"""Where services shall write their output: there is no journal."""

PROGRAMS = Path("/opt/tensor-gateway/bin")
"""`tensor-gateway` and `python`, with what this interpreter has, in its own view of the file system."""

TARGETS = ("sysinit", "basic", "shutdown", "network-online", "multi-user")
"""The targets that a service depends on. They are empty: nothing of the machine's own is started."""

BOOT_S = 30.0
NAMESPACES = ["--mount", "--pid", "--fork", "--ipc", "--uts", "--net", "--kill-child"]

_ENTER = """
for group in $CONTROL_GROUPS; do
    echo $$ > "$group/cgroup.procs"
done
exec unshare "$@"
"""

# As the first process of the namespaces, and then systemd itself; the arguments are the installation's parts.
_SCRIPT = f"""
set -eu
mount --make-rprivate /
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/tensor-gateway/bin
cd /mnt/tensor-gateway
for part in python packages source; do
    mkdir $part
    mount --bind "$1" $part
    shift
done
cat > bin/python <<'END'
#!/bin/sh
here=/opt/tensor-gateway
export PYTHONPATH=$here/source:$here/packages LD_LIBRARY_PATH=$here/python/lib PYTHONDONTWRITEBYTECODE=1
exec $here/python/bin/python3 "$@"
END
cat > bin/tensor-gateway <<'END'
#!/bin/sh
exec /opt/tensor-gateway/bin/python -m gateway "$@"
END
chmod 755 bin/python bin/tensor-gateway
cd /
mount --rbind /mnt /opt  # only now: the parts may come from any of the folders that are replaced
for folder in /run /tmp /var/tmp; do
    mount -t tmpfs tmpfs $folder
done
cp -a /etc /run/etc
mount --bind /run/etc /etc
mkdir -p /run/systemd/system {UNITS}
for target in {" ".join(TARGETS)}; do
    printf '[Unit]\\nDescription=%s\\nDefaultDependencies=no\\n' "$target" > "{UNITS}/$target.target"
done
mount --make-rshared /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=sandbox SYSTEMD_UNIT_PATH={UNITS} \
    {SYSTEMD} --system --unit=basic.target --show-status=no --log-target=console
"""


class Sandbox:
    """A running systemd. `booted` makes and ends it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def command(self, *command: str | Path) -> list[str]:
        """What runs *command* beside systemd's services."""
        return ["nsenter", "--target", str(self._pid), "--all", "--", *map(str, command)]

    def run(self, *command: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run *command* to its end; *given* is its standard input."""
        return subprocess.run(
            self.command(*command), input=given, capture_output=True, text=True, check=False, timeout=120
        )

    def write(self, path: Path | str, text: str, mode: str = "644") -> None:
        """Make a file of root's."""
        done = self.run("install", "-D", "-m", mode, "/dev/stdin", path, given=text)
        assert done.returncode == 0, done.stderr

    def systemctl(self, *arguments: str) -> str:
        """What a systemctl that must succeed prints."""
        done = self.run("systemctl", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr + self.run("cat", LOG).stdout
        return done.stdout.strip()

    def show(self, key: str, unit: str) -> str:
        """A property of *unit*."""
        return self.systemctl("show", "--property", key, "--value", unit)

    def main_pid(self, unit: str) -> int:
        """The main process of *unit*, as this side of the namespaces numbers it."""
        inside = self.show("MainPID", unit)
        namespace = os.readlink(f"/proc/{self._pid}/ns/pid")
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                numbers = re.search(r"^NSpid:(.*)$", (process / "status").read_text(), re.MULTILINE)
                if numbers and numbers[1].split()[-1] == inside and os.readlink(process / "ns/pid") == namespace:
                    return int(process.name)
        raise ProcessLookupError(f"{unit}: {inside}")


@contextlib.contextmanager
def booted(folder: Path, source: Path) -> Iterator[Sandbox]:
    """A systemd with the gateway of *source* in `/opt/tensor-gateway`; *folder* is for its log.

    The test is skipped where the machine does not let this user have one.
    """
    allowed = os.geteuid() == 0 and SYSTEMD.exists() and shutil.which("unshare") is not None
    if not allowed or subprocess.run(["unshare", *NAMESPACES, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a systemd of one's own needs root, namespaces and Debian's package `systemd`")
    groups = _make_groups(f"tensor-gateway-test-{os.getpid()}")
    parts = (sys.base_prefix, sysconfig.get_path("purelib"), source)
    log = folder / "systemd.log"
    with log.open("wb") as output:
        unshare = subprocess.Popen(
            ["sh", "-c", _ENTER, "sh", *NAMESPACES, "sh", "-c", _SCRIPT, "sh", *parts],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "CONTROL_GROUPS": " ".join(map(str, groups))},
        )
    try:
        pid = _wait_until_booted(unshare)
        if pid is None:
            pytest.skip(f"systemd does not start here: {log.read_text()[-500:]}")
        yield Sandbox(pid)
    finally:
        unshare.send_signal(signal.SIGKILL)
        unshare.wait()
        _remove_groups(groups)


def _wait_until_booted(unshare: subprocess.Popen[bytes]) -> int | None:
    """The process that is systemd, once it takes commands; None if it does not come to that."""
    deadline_s = time.monotonic() + BOOT_S
    while time.monotonic() < deadline_s and unshare.poll() is None:
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
        if children and _is_booted(pid := int(children[0])):
            return pid
        time.sleep(0.05)
    return None


def _is_booted(pid: int) -> bool:
    try:
        is_systemd = Path(f"/proc/{pid}/comm").read_text() == "systemd\n"
    except OSError:  # it has ended
        return False
    return is_systemd and Sandbox(pid).run("systemctl", "is-active", "basic.target").returncode == 0


def _make_groups(name: str) -> list[Path]:
    """A control group for it in each hierarchy that systemd uses: the only one, or two beside those of version 1."""
    root = Path("/sys/fs/cgroup")
    hierarchies = [path for path in (root, root / "systemd", root / "unified") if (path / "cgroup.procs").exists()]
    groups = [path / name for path in hierarchies]
    for group in groups:
        try:
            group.mkdir()
        except OSError as error:
            pytest.skip(f"a systemd of one's own needs a control group: {error}")
    return groups


def _remove_groups(groups: list[Path]) -> None:
    """Remove the groups once they are empty, also those that systemd made in other hierarchies."""
    deadline_s = time.monotonic() + BOOT_S
    name = groups[0].name if groups else ""
    for top in (*groups, *Path("/sys/fs/cgroup").glob(f"*/{name}")):
        folders = sorted((Path(folder) for folder, _, _ in os.walk(top)), reverse=True)
        for folder in folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:  # the last of its processes has not ended yet
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.02)
