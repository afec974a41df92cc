"""Jobs for the launchpad."""
