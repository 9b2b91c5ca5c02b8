"""The learning core: pure, no clock, no files, no network, no settings."""
