"""An S3 object store on loopback, SeaweedFS: the durable tier of key stores that many hosts reach."""

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from pyarrow import fs

from resources.local.ports import HOST, choose_port
from support.pipeline_case import wait_until

_KEY, _SECRET = "tallyflow", "only-of-this-test-0123456789"
_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc")
BUCKET = "keys"


class ObjectStore:
    """A server with one bucket. A context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ports: list[int] = []
        for _ in _PORTS:
            ports.append(choose_port(ports))
        self._ports = dict(zip(_PORTS, ports, strict=True))
        self.port = self._ports["s3.port"]
        self.uri = f"s3://{BUCKET}/stores?region=us-east-1"
        """For a client that has `environment`."""

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What reaches the store, at its own port or through a proxy."""
        return {
            "AWS_ENDPOINT_URL": f"http://{HOST}:{port or self.port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            # Without them the driver would look for a role of this machine at a fixed address.
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def filesystem(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            endpoint_override=f"{HOST}:{self.port}",
            scheme="http",
            region="us-east-1",
            access_key=_KEY,
            secret_key=_SECRET,
            allow_bucket_creation=True,
        )

    def __enter__(self) -> "ObjectStore":
        login = {"accessKey": _KEY, "secretKey": _SECRET}
        users = {"identities": [{"name": "tests", "credentials": [login], "actions": ["Admin", "Read", "Write", "List"]}]}
        (self._directory / "users.json").write_text(json.dumps(users))
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for port in self._ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink()

    def start(self) -> None:
        """Starts it with what it has stored; returns when it has its bucket."""
        data = self._directory / "data"
        data.mkdir(exist_ok=True)
        own = {
            **self._ports,
            "ip": HOST,
            "ip.bind": HOST,
            "dir": data,
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 256,
            "volume.max": 0,
            "filer": "true",
            "filer.localSocket": self._directory / "filer.sock",
            "s3": "true",
            "s3.config": self._directory / "users.json",
            "s3.localSocket": self._directory / "s3.sock",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.iam": "false",
            # As the big ones do, it refuses what goes to a bucket that nobody has made.
            "s3.autoCreateBucket": "false",
        }
        command = [
            Path(sys.executable).with_name("weed"),
            "-logtostderr=true",
            "server",
            *(f"-{name}={value}" for name, value in own.items()),
        ]
        with (self._directory / "console.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)
        filesystem = self.filesystem()
        wait_until(lambda: self._process.poll() is not None or _has_bucket(filesystem), "an object store with its bucket")
        assert self._process.poll() is None, (self._directory / "console.log").read_text()[-2000:]

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()


def _has_bucket(filesystem: fs.S3FileSystem) -> bool:
    try:
        filesystem.create_dir(BUCKET)
        with filesystem.open_output_stream(f"{BUCKET}/probe") as stream:
            stream.write(b"it stores")
    except OSError:
        return False
    return True
