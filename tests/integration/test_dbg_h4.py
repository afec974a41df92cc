from dedup_case import copies, keyed_by, _frames
def test_dbg(case):
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(600))
    case.warm_run()
    log = case.log()
    print(case.told, case.told and 1)
    from pipelines.ledger import read_chain
    for leg in ("ingest","process"):
        print(leg, read_chain(log, case.names.stream("ledger"), case.names.chain(leg)).done.body)
    from collections import Counter
    print(Counter(p for p, o in case.records()))
    print(Counter(r["partition"] for f in _frames(case, log, "raw") for r in f))
