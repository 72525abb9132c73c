"""Shared-memory rings between processes of one host, and descriptors passed between them. Linux on x86-64."""
