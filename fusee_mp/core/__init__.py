"""The pure core: records, state machines and rules. No I/O, no clock, no randomness, no threads, no asyncio."""
