"""Measurements of the whole product on real servers: `make bench`. Figures are written with their conditions in docs/benchmarks.md."""
