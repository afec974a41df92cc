"""The demo: a pipeline with real servers, and its records."""
