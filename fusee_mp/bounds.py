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
# Why a run is cancelled or terminated: text for people.
REASON_BYTES_MAX = 8 * KIB
# One record: a payload and what goes with it (ID, name, attributes, request ID).
RECORD_BYTES_MAX = PAYLOAD_BYTES_MAX + 64 * KIB
# One frame on any connection: at least a record with its envelope.
FRAME_BYTES_MAX = 8 * MIB
# An answer longer than this goes in parts: two of them fit a frame, so that its envelope never matters.
PART_BYTES = FRAME_BYTES_MAX // 2
# A client's question whose answer is longer than this is refused; it belongs in pages, or in an export.
ANSWER_BYTES_MAX = 32 * MIB
# Calls on one shard that wait for their answers, in number and in bytes; beyond them callers hear Busy.
CALLS_WAITING_MAX = 10_000
CALLS_WAITING_BYTES_MAX = 64 * MIB
# Questions to one keeper that are under way for clients.
READS_WAITING_MAX = 1_000
# What one connection may have of these, so that one client leaves room for the others.
CALLS_OF_ONE_MAX = 8_000
CALLS_OF_ONE_BYTES_MAX = 48 * MIB
READS_OF_ONE_MAX = 800
# The same for calls that a process passes on to another's shard, where all that come from there have what one connection may have.
FORWARDED_OF_ONE_MAX = 6_000
FORWARDED_OF_ONE_BYTES_MAX = 40 * MIB
FORWARDED_READS_OF_ONE_MAX = 600
# Frames of clients of which a process has a part, all together: beyond it the one gives way that had nothing new for longest.
UNFINISHED_BYTES_MAX = 256 * MIB
# Answers that wait in a process for clients who do not read, all together: beyond it the one with most is ended.
UNREAD_BYTES_MAX = 256 * MIB
# Of one connection's questions so many are with the keeper, or have an answer in memory that the connection does not take.
READS_AT_ONCE = 4
# Appended and not written yet: beyond this the holder is not listened to until the disk has caught up.
APPENDED_BYTES_MAX = 32 * MIB
# How long a request's ID is known after its run was deleted, or after its end where journals are not kept: clients repeat within minutes.
REQUESTS_KEEP_MS = 3_600_000
# Updates whose IDs a run that continues as new hands on, in number and in the bytes of their IDs: the newest. Each link of a chain records
# them anew, and clients repeat within minutes.
UPDATE_IDS_HANDED_ON_MAX = 1_000
UPDATE_IDS_HANDED_ON_BYTES = 64 * KIB
# One file of the archive; a journal is never cut.
ARCHIVE_FILE_BYTES = 64 * MIB
# Records that a crash must leave all or none of: they go in one append, which one frame carries and one batch holds.
TOGETHER_BYTES_MAX = FRAME_BYTES_MAX - MIB
# A ring between two processes. The least is a page, the default holds what a busy shard sends in a few ms.
RING_BYTES_MIN = 4 * KIB
RING_BYTES_DEFAULT = 1 * MIB
RING_BYTES_MAX = 64 * MIB
# One that a worker or client offers: it is memory of the shard process until the connection ends.
RING_OFFERED_BYTES_MAX = 1 * MIB
# Connections of workers and clients by rings, for each shard process; each has two rings and three descriptors there.
RING_CONNECTIONS_MAX = 256
# One packet between processes of a server: it must fit a Unix socket's buffer, which is about 200 KiB.
PACKET_BYTES_MAX = 64 * KIB
# Descriptors that come with one packet: a link has three; the kernel allows 253.
PACKET_DESCRIPTORS_MAX = 16
# One batch of the log: at least a frame's worth of records.
BATCH_BYTES_MAX = 16 * MIB
# One segment file: a few of the largest batches and the header.
SEGMENT_BYTES_DEFAULT = 64 * MIB
SEGMENT_BYTES_MIN = 32 * MIB
# More shards than this in one directory would not fit one machine.
SHARDS_MAX = 1024

assert PAYLOAD_BYTES_MAX < RECORD_BYTES_MAX < FRAME_BYTES_MAX < BATCH_BYTES_MAX
assert CALLS_OF_ONE_MAX < CALLS_WAITING_MAX and READS_AT_ONCE < READS_OF_ONE_MAX < READS_WAITING_MAX
assert FORWARDED_OF_ONE_MAX < CALLS_OF_ONE_MAX and FORWARDED_READS_OF_ONE_MAX < READS_OF_ONE_MAX
assert RING_BYTES_DEFAULT <= RING_OFFERED_BYTES_MAX <= RING_BYTES_MAX
assert UNFINISHED_BYTES_MAX >= 16 * FRAME_BYTES_MAX
assert ANSWER_BYTES_MAX < FORWARDED_OF_ONE_BYTES_MAX < CALLS_OF_ONE_BYTES_MAX < CALLS_WAITING_BYTES_MAX
assert APPENDED_BYTES_MAX >= 2 * BATCH_BYTES_MAX
assert BATCH_BYTES_MAX + 64 * KIB <= SEGMENT_BYTES_MIN <= SEGMENT_BYTES_DEFAULT

# A duration: a hundred years. A longer one is a mistake of units, and twice this still fits every time stamp in milliseconds.
DURATION_MS_MAX = 36_500 * 86_400_000
# Attempts of a step and occurrences that a record counts: a count fits 32 bits.
ATTEMPTS_MAX = (1 << 31) - 1
# Payloads nested deeper than this come from a mistake; the readers of every process can follow this far.
NESTING_MAX = 200

# A failure is for people to read and for code to catch. Text beyond these is cut in the middle, and says so.
FAILURE_MESSAGE_CHARS_MAX = 8 * KIB
FAILURE_TRACEBACK_CHARS_MAX = 16 * KIB
FAILURE_FRAMES_MAX = 64
# One argument or attribute as JSON; a larger one is kept as the beginning of its repr.
FAILURE_VALUE_BYTES_MAX = 4 * KIB
FAILURE_VALUES_MAX = 64
# Exceptions in one failure: causes, contexts and members of groups together.
FAILURE_NODES_MAX = 64
FAILURE_BYTES_MAX = 512 * KIB

assert FAILURE_BYTES_MAX < PAYLOAD_BYTES_MAX

# The unit of writing of the log: no flush rewrites one that holds acknowledged bytes. 512 is what every disk writes whole.
LOG_BLOCK_BYTES = 512
# The first segment of an open that finds no spare: small, because it is made while somebody waits.
LOG_STARTER_BYTES = 4 * MIB
# Space kept back on the disk for the keeper when everything else is full, so that segments come free again.
LOG_RESERVE_BYTES_DEFAULT = 64 * MIB
# After so long without a batch an empty one seals the last.
LOG_SEAL_AFTER_MS = 200
# Zero-filling ahead in pieces of this size with this pause leaves the flush times of the same disk alone (measured).
LOG_FILL_PIECE_BYTES = 256 * KIB
LOG_FILL_PAUSE_MS = 10
# A full disk is tried again after so long.
LOG_FULL_RETRY_MS = 1000
# Flushes move from the helper process into the loop once so many have had their p99 under the first bound, and back at the first
# one over the second.
LOG_INLINE_AFTER_FLUSHES = 1000
LOG_INLINE_P99_MS = 1.0
LOG_INLINE_WORST_MS = 20.0
# Who waits for a flush of so few records stays awake for so long: it covers the flush of a fast disk and a short step.
LOG_AWAKE_US = 400
LOG_AWAKE_RECORDS_MAX = 2

assert LOG_STARTER_BYTES < SEGMENT_BYTES_MIN

# Connections of which the router has not the whole preface; beyond these the oldest of the address that has most gives way. So many
# clients do not begin at once.
ROUTER_GREETINGS_MAX = 4096
# So many connections begin in one second, when more want to: the address's turn comes again. One costs 0.2 ms here and in its process.
ROUTER_GREETINGS_PER_SECOND = 1500
ROUTER_GREETING_MS = 10_000
# Connections that wait for a shard process that is being started again; beyond these they are told to come back.
ROUTER_WAITING_MAX = 1024
ROUTER_WAITING_MS = 5_000
# Refused connections that may still read why. One that does not listen must cost little.
ROUTER_FAREWELLS_MAX = 256
# Control connections: workers, and those who ask for the state of the server.
ROUTER_SESSIONS_MAX = 4096
# Workflows of one worker.
WORKER_WORKFLOWS_MAX = 1_000
# One frame from them: a HELLO with as many of the longest workflow names.
CONTROL_FRAME_BYTES_MAX = 2 * MIB
# How long the rest of one of their frames may take.
CONTROL_FRAME_MS = 30_000
# What all of them together may have begun and not finished, and have been sent and not read.
CONTROL_UNFINISHED_BYTES_MAX = 32 * MIB
CONTROL_UNREAD_BYTES_MAX = 64 * MIB
# A worker's name and the instance's together, so that both fit the name of a lease's holder, and all of a full server one frame.
WORKER_NAME_BYTES_MAX = 512
# Workflows that a worker is told others have: the first that came.
ELSEWHERE_NAMES_MAX = 4 * WORKER_WORKFLOWS_MAX
ELSEWHERE_BYTES_MAX = 1 * MIB
# Workflows that the runs of one shard need and its holder lacks.
LACKED_MAX = WORKER_WORKFLOWS_MAX
# Workflow names in the answer to STATUS, of all workers together. A worker takes 256 bytes beside its names, a shard 1 KiB.
STATUS_NAMES_BYTES_MAX = 1 * MIB

assert WORKER_NAME_BYTES_MAX < NAME_BYTES_MAX <= CONTROL_FRAME_BYTES_MAX <= FRAME_BYTES_MAX
assert WORKER_WORKFLOWS_MAX * (NAME_BYTES_MAX + 8) < CONTROL_FRAME_BYTES_MAX and ELSEWHERE_BYTES_MAX < CONTROL_FRAME_BYTES_MAX
assert (
    ROUTER_SESSIONS_MAX * (WORKER_NAME_BYTES_MAX + 256) + SHARDS_MAX * (2 * WORKER_NAME_BYTES_MAX + KIB) + STATUS_NAMES_BYTES_MAX
    < FRAME_BYTES_MAX
)

# A permit of a step limit returns by itself so long after its shard's lease has ended. A table that begins anew grants nothing for so long,
# in which a worker says three times what it holds.
PERMIT_LEASE_MS = 3_000
PERMIT_RENEW_MS = 1_000
# Limits whose home is one shard. They stand in one file, which each change writes anew: 10 MiB with the longest names.
LIMITS_MAX = 10_000
# Permits of one limit: a count fits 32 bits.
LIMIT_CONCURRENT_MAX = (1 << 32) - 1
# Weights of fairness keys: up to here the proportion of turns is exact to a millionth.
FAIRNESS_WEIGHT_MAX = 1_000
# Levels of priority fit 32 bits with their sign.
PRIORITY_LEVEL_MAX = (1 << 31) - 1

assert PERMIT_RENEW_MS * 2 < PERMIT_LEASE_MS

# Events of one debounce or batch window: it closes at this many. They are kept in memory until then.
WINDOW_EVENTS_MAX = 10_000
# How long a closed window answers for the event IDs it took, and how many such IDs one shard keeps: the oldest go first.
WINDOW_EVENT_IDS_KEEP_MS = 24 * 3_600_000
WINDOW_EVENT_IDS_MAX = 100_000

assert WINDOW_EVENTS_MAX <= WINDOW_EVENT_IDS_MAX

# What one input to a schedule may start at once; the rest follows with the next.
SCHEDULE_PAGE = 1_000
# Open runs of a schedule whose runs may overlap. More would be a mistake, and each of its starts would look at all of them.
SCHEDULE_OPEN_MAX = 10_000
# The input of a schedule's runs: it stands in one record with what the schedule has become, which is below a MiB.
SCHEDULE_INPUT_BYTES_MAX = 2 * MIB
# Inputs of runs that one record of a schedule starts, together: a page of a schedule with a large input has fewer.
SCHEDULE_PAGE_BYTES = 4 * MIB
# Windows that one record closes.
WINDOWS_CLOSED_MAX = 1_000
# Runs of one backfill. More come in several.
BACKFILL_RUNS_MAX = 100_000
# How long the answer to a request about a schedule or a window is kept for its repeats: a client gives up within a minute.
ANSWER_KEEP_MS = 3_600_000
# After so little lateness an instant is no missed one, whatever its schedule's catch-up window: timers and disks are late too.
SCHEDULE_LATENESS_MS = 1_000
# Stretches of started instants that a schedule remembers. Beyond these the two oldest become one, and the instants between them that
# were skipped can no longer be backfilled.
SCHEDULE_STRETCHES_MAX = 1_000
# Earlier timings of a schedule whose instants it remembers, and instants that a trigger started between those of the timing.
SCHEDULE_TIMINGS_MAX = 16
SCHEDULE_TRIGGERS_MAX = 1_000

assert SCHEDULE_INPUT_BYTES_MAX + MIB < PAYLOAD_BYTES_MAX
assert WINDOWS_CLOSED_MAX * 2 * WORKFLOW_ID_BYTES_MAX < RECORD_BYTES_MAX

# A tokens file, and a file of certificates. Larger ones are mistaken for something else.
TOKENS_BYTES_MAX = 256 * KIB
PEM_BYTES_MAX = 1 * MIB
# A token: its name, and its secret, which nobody must be able to guess. 32 characters of base64 are 192 bits.
TOKEN_NAME_CHARS_MAX = 64
TOKEN_SECRET_CHARS_MIN = 32
TOKEN_SECRET_CHARS_MAX = 256
# Random bytes of each side in a proof, so that none fits twice.
NONCE_BYTES = 32
# Connections of one process that are being secured or have not said what they want; beyond these the oldest of the address that has
# most gives way. A handshake has about 60 KiB.
DOOR_PENDING_MAX = 256
# TLS handshakes that one process starts in a second when more want to: one takes it about 0.5 ms.
DOOR_HANDSHAKES_PER_SECOND = 300
# So long may each phase of beginning a connection take, however the bytes trickle: TLS, the proof of a token, the first frame.
DOOR_TLS_MS = 5_000
DOOR_PROOF_MS = 5_000
DOOR_GREETING_MS = 10_000
# A frame of a proof, the first frame to a shard process, and what all first frames may hold in one process.
PROOF_FRAME_BYTES_MAX = 8 * KIB
GREETING_FRAME_BYTES_MAX = 64 * KIB
DOOR_BYTES_MAX = 16 * MIB
# Connections of clients to the whole server unless `serve` is told otherwise.
CONNECTIONS_DEFAULT = 16_384

assert CONTROL_FRAME_BYTES_MAX < DOOR_BYTES_MAX
assert NAME_BYTES_MAX < PROOF_FRAME_BYTES_MAX <= GREETING_FRAME_BYTES_MAX

# Staying awake for an answer is judged by rounds of so many; those that mostly did not pay end in a pause.
AWAKE_ROUND = 256
AWAKE_PAUSE_S = 0.1
AWAKE_PAUSE_MAX_S = 600.0
