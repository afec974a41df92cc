"""Hosts on this machine: each has processes, a network address and a disk of its own, and shares with the others the release, read-only.

They are namespaces of the kernel behind a switch that is one, too; nothing of them is seen in this machine's own network. A host reaches
this machine's servers at their loopback addresses, by its forwarder (forwarder.py).
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from resources.local.java import find_java
from support.pipeline_case import with_text

_NEW = ("--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
# A host that this process leaves behind ends with it.
_UNSHARED = ("setpriv", "--pdeathsig", "KILL", "unshare", *_NEW)
_TRIAL = "mount -t tmpfs none /mnt && hostname trial && ip link add eth0 type veth peer name eth1"
CAN_MAKE_HOSTS = not subprocess.run(["sh", "-c", '"$@"', "sh", *_UNSHARED, "sh", "-c", _TRIAL], capture_output=True, check=False).returncode
"""Whether this account may give processes namespaces, mounts and a network."""
_SWITCH = "ip link add switch type bridge && ip link set switch up && echo ready && exec sleep infinity"
_FORWARDER = Path(__file__).with_name("forwarder.py")
_HOST = """
set -e
hostname "$NAME"
nsenter --net="/proc/$SWITCH/ns/net" sh -ec "
    ip link add $LINK type veth peer name eth0 address $MAC netns 1
    ip link set $LINK master switch up"
ip link set lo up
ip address add "$ADDRESS/24" dev eth0
ip link set eth0 up
"$PYTHON" -I -S "$FORWARDER" "/proc/$OUTSIDE/ns/net" $PORTS
mount -t tmpfs -o mode=755,size=1m none "$ROOT"
for path in $LINKS; do cp -a "$path" "$ROOT$path"; done
for path in $RELEASE; do
    mkdir -p "$ROOT$path"
    mount --bind "$path" "$ROOT$path"
    mount -o remount,bind,ro "$ROOT$path"
done
echo "$NAMES" >"$ROOT/hosts"
mount --bind "$ROOT/hosts" "$ROOT/etc/hosts"
mkdir "$ROOT/proc" "$ROOT/dev" "$ROOT/tmp" "$ROOT/old"
mount -t proc none "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs none "$ROOT/dev/shm"
mount --bind "$DISK" "$ROOT/tmp"
cd "$ROOT"
pivot_root . old
cd /tmp
umount -l /old
"$@" &
wait $!
"""


def _release() -> tuple[list[Path], list[Path]]:
    """What a host needs to run the release: (directories, links of the root)."""
    code = Path(__file__).parents[2]
    needed = [
        Path(path).resolve() for path in ("/usr", "/etc", code, sys.prefix, sys.base_prefix, find_java().executable.resolve().parents[1])
    ]
    roots = [Path(path) for path in ("/bin", "/sbin", "/lib", "/lib64")]
    needed += [path for path in roots if path.is_dir() and not path.is_symlink()]
    outermost = [path for path in dict.fromkeys(needed) if not any(path.is_relative_to(other) for other in needed if other != path)]
    return outermost, [path for path in roots if path.is_symlink()]


class Network:
    """A switch, and the addresses of its hosts by name. A context manager."""

    def __init__(self, directory: Path, names: Sequence[str], ports: Sequence[int]) -> None:
        self.directory, self.ports = directory, tuple(ports)
        """`ports`: those of this machine's loopback that every host reaches under the same address."""
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self.links = 0

    def __enter__(self) -> "Network":
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", _SWITCH]
        self.switch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.switch.stdout is not None
        assert self.switch.stdout.readline() == "ready\n"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.switch.kill()
        self.switch.communicate()


class Host:
    """A host of the network. What it writes is on its disk, its /tmp; `disk` is that directory as this machine sees it."""

    def __init__(self, network: Network, name: str) -> None:
        self.name, self._network = name, network
        self.address = network.addresses[name]
        self.disk = network.directory / name / "disk"
        self.log = network.directory / name / "console.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._link = ""

    def start(self, command: Sequence[str], environment: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Starts the host with one command, and these files, by name, on its disk; the host ends with its command."""
        network, root = self._network, self.disk.with_name("root")
        root.mkdir(parents=True, exist_ok=True)
        self.disk.mkdir(exist_ok=True)
        for name, text in files.items():
            (self.disk / name).write_text(text)
        network.links += 1
        self._link = f"host{network.links}"
        release, links = _release()
        last = int(self.address.rpartition(".")[2])
        own = {
            "NAME": self.name,
            "ADDRESS": self.address,
            # The same in each life of the host: its neighbors remember it.
            "MAC": f"02:00:00:00:00:{last:02x}",
            "LINK": self._link,
            "SWITCH": str(network.switch.pid),
            "OUTSIDE": str(os.getpid()),
            "PORTS": " ".join(map(str, network.ports)),
            "PYTHON": sys.executable,
            "FORWARDER": str(_FORWARDER),
            "ROOT": str(root),
            "DISK": str(self.disk),
            "RELEASE": " ".join(map(str, release)),
            "LINKS": " ".join(map(str, links)),
            "NAMES": "\n".join(["127.0.0.1 localhost", *(f"{address} {name}" for name, address in network.addresses.items())]),
        }
        script = "".join(f"{name}={shlex.quote(value)}\n" for name, value in own.items()) + _HOST
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_UNSHARED, "sh", "-c", script, "host", *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        """What the command has written since the host was started."""
        return self.log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code of the command; None while it runs."""
        return self._process.poll() if self._process else None

    def processes(self) -> list[psutil.Process]:
        """All that runs on the host."""
        with suppress(psutil.NoSuchProcess):
            if self._process is not None:
                return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def command(self) -> psutil.Process:
        """The process of the command."""
        assert self._process is not None
        (first,) = psutil.Process(self._process.pid).children()
        return next(process for process in first.children() if str(_FORWARDER) not in process.cmdline())

    def kill(self) -> None:
        """Takes the host away with everything that runs there; nothing of it runs any more when this returns."""
        if self._process is not None and self._process.poll() is None:
            outer = psutil.Process(self._process.pid)
            # With the first process of a host the kernel ends all others; before there is one, nothing runs.
            (*outer.children(), outer)[0].kill()
            self._process.wait()

    def cut_off(self) -> None:
        """Takes its network away; nobody is told, and all that runs there goes on."""
        self._set_link("down")
        self._forwarder().suspend()

    def reconnect(self) -> None:
        """Gives the network back; what was under way arrives, late."""
        self._set_link("up")
        self._forwarder().resume()

    def _set_link(self, state: str) -> None:
        network = f"--net=/proc/{self._network.switch.pid}/ns/net"
        subprocess.run(["nsenter", network, "ip", "link", "set", self._link, state], check=True)

    def _forwarder(self) -> psutil.Process:
        return with_text(self.processes(), str(_FORWARDER))[0]

    def wait(self, seconds: float) -> int:
        """Waits until the command has ended, and gives its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def files(self, under: str) -> list[Path]:
        """What is on its disk below directories whose name begins so."""
        found = [Path(directory, name) for directory, _, names in os.walk(self.disk) for name in names]
        return [path for path in found if any(part.startswith(under) for part in path.relative_to(self.disk).parts[:-1])]

    def wipe(self) -> None:
        """Empties its disk."""
        shutil.rmtree(self.disk, ignore_errors=True)
