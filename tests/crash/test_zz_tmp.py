import signal,time,subprocess,pytest
from pipeline_case import *
def test_x(case, session):
    t=time.time()
    def lap(w):
        nonlocal t
        print(w, round(time.time()-t,1), case.sent); t=time.time()
    case.create_topic()
    p=case.start(); lap("spawn")
    case.wait_ready(p); lap("ready")
    with case.load():
        case.wait_count(1000); lap("1000 rows")
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=60); lap("stopped")
    lap("load end")
    case.warm_run(); lap("warm run")
    case.warm_run(); lap("warm run empty")
    case.send_events(2000); lap("2000")
    case.warm_run(driver_offsets=0, driver_frames=0); lap("warm run tasks")
    case.check(); lap("check")
