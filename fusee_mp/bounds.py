"""Every limit, with its unit and its reason, and what must hold between them."""
from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20

# IDs are keys of indexes and parts of idempotency keys.
WORKFLOW_ID_BYTES_MAX = 1024
# A name (of a workflow, step, signal) is repeated in records.
NAME_BYTES_MAX = 1024
# One value. A larger one belongs in an object store, with its address in the payload.
PAYLOAD_BYTES_MAX = 4 * MIB
# One record: a payload and what goes with it (ID, name, attributes, request ID).
RECORD_BYTES_MAX = PAYLOAD_BYTES_MAX + 64 * KIB
# One frame on any connection: at least a record with its envelope.
FRAME_BYTES_MAX = 8 * MIB
# One batch of the log: at least a frame's worth of records.
BATCH_BYTES_MAX = 16 * MIB
# One segment file: a few of the largest batches and the header.
SEGMENT_BYTES_DEFAULT = 64 * MIB
SEGMENT_BYTES_MIN = 32 * MIB
# More shards than this in one directory would not fit one machine.
SHARDS_MAX = 1024

assert PAYLOAD_BYTES_MAX < RECORD_BYTES_MAX < FRAME_BYTES_MAX < BATCH_BYTES_MAX
assert BATCH_BYTES_MAX + 64 * KIB <= SEGMENT_BYTES_MIN <= SEGMENT_BYTES_DEFAULT
