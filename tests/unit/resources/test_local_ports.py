import json
from functools import partial
from pathlib import Path

import pytest

from resources.local import ports
from resources.local.errors import LocalServerError


def test_kept_ports_are_not_chosen_again(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    path.write_text('{"kafka": 21001, "nats": 21002}')
    assert ports.keep_ports(path, ["kafka", "nats"]) == {"kafka": 21001, "nats": 21002}


def test_missing_and_renewed_ports_are_chosen_free_and_distinct(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    path.write_text('{"kafka": 21001, "nats": 21002}')
    choose = partial(ports.choose_port, offers=iter([21001, 20500, 20500, 20700, 20900]), free=lambda port: port != 20700)
    kept = ports.keep_ports(path, ["kafka", "nats", "clickhouse"], renew=["nats"], choose=choose)
    assert kept == {"kafka": 21001, "nats": 20500, "clickhouse": 20900}
    assert json.loads(path.read_text()) == {"kafka": 21001, "nats": 20500, "clickhouse": 20900}


def test_no_free_port_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError, match="none free"):
        ports.keep_ports(tmp_path / "ports.json", ["kafka"], choose=partial(ports.choose_port, free=lambda _port: False))
    assert not (tmp_path / "ports.json").exists()


def test_ports_lie_below_those_of_outgoing_connections() -> None:
    assert ports.PORT_RANGE.start > 1024
    assert ports.PORT_RANGE.stop <= 32768


@pytest.mark.parametrize("text", ["{", "[1]", '{"kafka": "21001"}', '{"kafka": 0}', '{"kafka": 65536}', '{"kafka": true}'])
def test_damaged_ports_file_names_the_remedy(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    path.write_text(text)
    with pytest.raises(LocalServerError, match="delete it to choose new"):
        ports.read_ports(path)
