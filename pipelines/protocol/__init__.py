"""The base of exactly-once: frames and positions, the ledger, leases, purging. Pure."""
