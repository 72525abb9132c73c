"""Calls and names that give a workflow what a replay cannot give it again, by their full dotted names."""
from __future__ import annotations

import ast
from typing import Final

_CLOCK = (
    "time.time time.time_ns time.monotonic time.monotonic_ns time.perf_counter time.perf_counter_ns time.process_time"
    " time.process_time_ns time.clock_gettime time.clock_gettime_ns datetime.datetime.now datetime.datetime.utcnow"
    " datetime.datetime.today datetime.date.today pendulum.now pendulum.today arrow.now arrow.utcnow django.utils.timezone.now"
)
# A clock only when they are not told the time: the most arguments with which they read it.
_CLOCK_WITHOUT: Final = {"time.localtime": 0, "time.gmtime": 0, "time.ctime": 0, "time.asctime": 0, "time.strftime": 1}
_RANDOM = "os.urandom os.getrandom uuid.uuid1 uuid.uuid4 uuid.uuid6 uuid.uuid7"
_ENVIRONMENT = (
    "os.getenv os.environ.get os.getpid os.getppid os.getcwd os.cpu_count os.getlogin os.uname getpass.getuser socket.gethostname"
    " socket.getfqdn"
    " platform.node pathlib.Path.cwd pathlib.Path.home"
)
_IO = (
    "open io.open os.open os.listdir os.scandir os.walk os.stat os.mkdir os.makedirs os.remove os.unlink os.rename os.replace os.rmdir"
    " os.link os.symlink os.system os.popen os.path.exists os.path.isfile os.path.isdir os.path.getsize os.path.getmtime"
    " asyncio.open_connection asyncio.start_server asyncio.open_unix_connection asyncio.create_subprocess_exec"
    " asyncio.create_subprocess_shell sqlite3.connect glob.glob glob.iglob"
)
_IO_OF = (
    *(f"{client}.{verb}" for client in ("requests", "httpx") for verb in
      ("get", "post", "put", "patch", "delete", "head", "options", "request", "stream", "Session", "session", "Client", "AsyncClient")),
    "aiohttp.ClientSession", "aiohttp.request", "psycopg.connect", "psycopg2.connect", "asyncpg.connect", "asyncpg.create_pool",
    "redis.Redis", "redis.from_url", "redis.asyncio.Redis", "redis.asyncio.from_url", "boto3.client", "boto3.resource", "boto3.Session",
    "urllib3.PoolManager", "urllib3.request",
)
_THREAD = "asyncio.to_thread asyncio.run_coroutine_threadsafe"
_LOOP = "asyncio.run asyncio.new_event_loop asyncio.set_event_loop asyncio.Runner"

_EXACT: Final = {
    **{name: rule for names, rule in (
        (_CLOCK, "clock"), (_RANDOM, "random"), (_ENVIRONMENT, "environment"), (_IO, "io"), (_THREAD, "thread"), (_LOOP, "loop"),
        ("time.sleep", "sleep"), ("hash", "hash"), ("input", "input"), ("print", "print")) for name in names.split()},
    **dict.fromkeys(_IO_OF, "io"),
}
# Everything in these, but for what follows.
_WITHIN: Final = {
    "random": "random", "secrets": "random", "numpy.random": "random", "socket": "io", "subprocess": "io", "urllib.request": "io",
    "http.client": "io", "shutil": "io", "tempfile": "io", "smtplib": "io", "threading": "thread", "multiprocessing": "thread",
    "concurrent.futures": "thread", "_thread": "thread",
}
_HARMLESS: Final = {
    "random.Random", "secrets.compare_digest", "numpy.random.default_rng", "numpy.random.SeedSequence", "socket.inet_aton",
    "socket.inet_ntoa", "socket.inet_pton", "socket.inet_ntop", "socket.htons", "socket.htonl", "socket.ntohs", "socket.ntohl",
    "urllib.request.Request", "urllib.request.quote", "urllib.request.unquote", "threading.current_thread", "threading.get_ident",
}
# A generator is the same in every replay only when it is given a seed.
_SEEDED: Final = {"random.Random", "numpy.random.default_rng", "numpy.random.SeedSequence"}
# Methods whose names nobody uses for anything else.
_METHODS: Final = {"read_text": "io", "read_bytes": "io", "write_text": "io", "write_bytes": "io", "run_in_executor": "thread"}
_PATHS: Final = ("pathlib.Path", "pathlib.PosixPath")
_PATH_METHODS: Final = {"open", "exists", "is_file", "is_dir", "iterdir", "glob", "rglob", "mkdir", "unlink", "touch", "stat", "rename"}


def rule_of_call(name: str | None, call: ast.Call) -> str | None:
    """The rule that a call breaks. `name`: what is called, in full, if that is known."""
    given = len(call.args) + len(call.keywords)
    if name is None:
        return _METHODS.get(call.func.attr) if isinstance(call.func, ast.Attribute) else None
    if name in _EXACT:
        return _EXACT[name]
    if name in _CLOCK_WITHOUT:
        return "clock" if given <= _CLOCK_WITHOUT[name] else None
    if name in _SEEDED and not given:
        return "random"
    if name in _HARMLESS or name.endswith(("Error", "Exception", "Expired")):
        return None
    return next((rule for module, rule in _WITHIN.items() if name.startswith(module + ".")), None)


def rule_of_path_call(owner: str | None, method: str) -> str | None:
    """The rule for `Path(..).method()`."""
    return "io" if owner in _PATHS and method in _PATH_METHODS else None


def rule_of_name(name: str) -> str | None:
    """The rule that reading a name breaks."""
    return "environment" if name in ("os.environ", "os.environb") else None
