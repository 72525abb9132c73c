"""The process of one shard: its log, its keeper, its lease, and the sockets of those who work on it."""
