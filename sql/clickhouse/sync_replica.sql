-- Waits until this replica holds every part that was inserted into any. Names with a dollar sign stand for checked identifiers.
SYSTEM SYNC REPLICA $database.$table LIGHTWEIGHT
