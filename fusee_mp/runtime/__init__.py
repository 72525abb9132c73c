"""Workflow code at work: the event loop of a run, the context it is given, steps, and the runtime of one shard.

It drives the machines of `core` with real tasks. It reads no clock, draws no randomness and reaches the outside only through
what it is given, so that a simulator can hold it.
"""
