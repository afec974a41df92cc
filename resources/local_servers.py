"""Which local servers stand in for addresses that neither a pipeline file nor the environment gives.

Enters: the text of a file and an environment. Leaves: the variables to add, and a line for each server that was taken. Kept: what the
servers of TALLYFLOW_HOME keep; one NATS is shared by all pipelines of the home.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pipelines.config.variables import names_no_nats, unset_variables
from pipelines.errors import HaltError
from pipelines.home import default_home

if TYPE_CHECKING:
    from resources.local.stack import LocalStack

NatsUse = Literal["start", "resume", "address"]
"""What a command needs of the local NATS.

- start: starts it, also for the first time.
- resume: reads what an earlier run has left; starts it, but not for the first time.
- address: connects to nothing, or only sometimes; starts nothing.
"""

_ADDRESSES = {"kafka": ("Kafka", ("KAFKA_BOOTSTRAP",)), "clickhouse": ("ClickHouse", ("CLICKHOUSE_HOST", "CLICKHOUSE_PORT"))}
"""The title of a server, and the variables of its address: a file gets its login only if it takes the address from them, too."""


@dataclass(frozen=True)
class Taken:
    """The variables that a file gets of local servers, logins included, and a line for each of the servers."""

    variables: dict[str, str] = field(default_factory=dict, repr=False)
    lines: tuple[str, ...] = ()


def use_local_servers(text: str, use: NatsUse, master: str | None = None) -> tuple[str, ...]:
    """Add what `local_servers_for` gives to the environment of this process, which its child processes inherit; return the lines."""
    taken = local_servers_for(text, os.environ, use, master)
    os.environ.update(taken.variables)
    return taken.lines


def local_servers_for(text: str, environment: Mapping[str, str], use: NatsUse, master: str | None = None) -> Taken:
    """Choose the local servers for the file with this `text`.

    NATS, where neither the file nor NATS_URL names one. Kafka and ClickHouse, where they run and the file refers to their addresses by
    variables, of which, and of those of the login, none is set. `master`: the Spark master of a run; one with executors on other hosts is
    refused. Raise HaltError for that and, with `resume`, where no NATS was ever started; LocalServerError for one that does not start.
    """
    unset = unset_variables(text, environment)
    needs_nats = not environment.get("NATS_URL") and ("NATS_URL" in unset or names_no_nats(text))
    wanted = [name for name, (_, address) in _ADDRESSES.items() if unset.issuperset(address)]
    if not (needs_nats or wanted):
        return Taken()
    from resources.local.stack import LocalStack

    stack = LocalStack(default_home(environment))
    taken = [*_running(stack, wanted, environment)]
    if needs_nats:
        _refuse_other_hosts("NATS", master)
        taken += _nats(stack, use)
    for server, _, _ in taken:
        _refuse_other_hosts(server, master)
    variables = {name: value for _, its, _ in taken for name, value in its.items()}
    return Taken(variables, tuple(f"{server}: the local one {line}" for server, _, line in taken))


def _running(stack: "LocalStack", wanted: Collection[str], environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield (title, variables, rest of its line) of each wanted server that runs and of which no variable is set."""
    if not wanted or not stack.is_set_up:
        return
    every = stack.addresses().environment()
    for name in wanted:
        title, address = _ADDRESSES[name]
        variables = {key: value for key, value in every.items() if key.startswith(f"{name.upper()}_")}
        if environment.keys() & variables.keys() or stack.server(name).pid is None:
            continue
        place = ":".join(variables[key] for key in address)
        yield title, variables, f"at {place}, as {' and '.join(address)} {'is' if len(address) == 1 else 'are'} not set"


def _nats(stack: "LocalStack", use: NatsUse) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield NATS as `_running` does, started if `use` asks for it; nothing if its address is enough and there is none yet."""
    from resources.local.nats import Nats
    from resources.local.stack import LocalStack

    directory = stack.home / "servers" / Nats.name
    if not directory.is_dir() and use != "start":
        if use == "resume":
            raise HaltError(
                f"looking for NATS: the file and NATS_URL name none, and none was ever started in {stack.home}; start the pipeline there "
                "(`tallyflow run`), go to the directory in which it was started, set TALLYFLOW_HOME to its .tallyflow, or set NATS_URL"
            )
        return
    did_run = stack.is_set_up and stack.server(Nats.name).pid is not None
    addresses = stack.addresses() if use == "address" else LocalStack(stack.home, kinds=[Nats()]).up()
    state = "" if did_run or use == "address" else ", started now"
    line = f"at {addresses.nats_address}{state}; it keeps the streams in {directory} and runs until `tallyflow down nats`"
    yield "NATS", {"NATS_URL": addresses.nats_url}, line


def _refuse_other_hosts(server: str, master: str | None) -> None:
    """Raise HaltError for a master whose executors may be on other hosts, where loopback is another machine."""
    if master is None:
        return
    from pipelines.engine.session import is_on_this_host

    if not is_on_this_host(master):
        raise HaltError(
            f"running on the Spark master {master}: the file names no {server}, and executors on other hosts cannot reach the local one; "
            f"name a server that they reach in the file{', or in NATS_URL' if server == 'NATS' else ' or its variables'}"
        )
