"""What exactly-once rests on: frames and positions, the ledger, leases, purging. Pure."""
