"""How far each leg is behind and how fast it goes, as `tallyflow status` tells it at once."""

import re
from contextlib import closing

import pytest
from support.pipeline_case import PipelineCase, wait_until

from pipelines.config import load
from pipelines.connectors.sources import open_source
from pipelines.protocol.naming import Names
from pipelines.runner.pace import Pace
from pipelines.runner.status import StatusServer
from pipelines.testing import LEGS, SINGLE

pytestmark = pytest.mark.integration


def test_lag_counts_every_leg_in_records_and_seconds(case: PipelineCase) -> None:
    case.write_file()
    case.create_topic()
    case.send_events(100)
    case.run_in_turn("ingest")
    case.send_events(50)
    config = load(case.file, case.environment())
    with closing(case.log()) as log:
        pace = Pace(log, Names(case.pipeline), SINGLE, {LEGS[0]: open_source(config, config.sources[0].source_id)}, {})
        pace.look(0.0)
        assert [pace.legs[leg].waiting for leg in LEGS] == [50, 100, 0]
        assert {leg.rows_per_second for leg in pace.legs.values()} == {None}
        assert pace.legs["process"].waiting_seconds > 0 == pace.legs["sink"].waiting_seconds

        def is_old() -> bool:
            pace.look(1.0)
            return pace.legs["ingest"].waiting_seconds >= 2

        wait_until(is_old, "records that are two seconds old")
        case.run_in_turn("ingest", "process")
        pace.look(20.0)
        assert [pace.legs[leg].waiting for leg in LEGS] == [0, 0, 150]
        assert [pace.legs[leg].rows_per_second for leg in LEGS] == [2.5, 7.5, 0.0]
        case.run_in_turn("sink")
        pace.look(40.0)
        assert [pace.legs[leg].waiting for leg in LEGS] == [0, 0, 0]
        assert [pace.legs[leg].waiting_seconds for leg in LEGS] == [0.0, 0.0, 0.0]
        # Of the last half minute: what was looked at before counts no more.
        assert [pace.legs[leg].rows_per_second for leg in LEGS] == [0.0, 0.0, 7.5]


def test_a_single_status_shows_rates_and_lag(case: PipelineCase) -> None:
    case.write_file()
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    runner.on_start = StatusServer
    case.in_background(runner)
    with case.load():
        wait_until(lambda: (now := case.ask()) and now["legs"]["sink"]["rows_per_second"], "a rate of the sink")
        shown = case.invoke("status", str(case.file)).stdout
    (sink,) = (line.split() for line in shown.splitlines() if line.split()[:1] == ["sink"])
    # Behind the rate stands how long ago the last batch ended.
    assert int(sink[-3].replace(",", "")) > 0
    assert re.search(r"lag [\d,]+ records?", shown)
    assert max(map(len, shown.splitlines())) <= 80
