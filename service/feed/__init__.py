"""Closed, ordered, validated candles from an exchange or a file."""
