"""Offline embedding of files."""
