"""Proofs that every record is accounted for: positions, audit, verification, checks."""
