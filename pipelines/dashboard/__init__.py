"""The page that shows the rollups of a pipeline, served on loopback."""
