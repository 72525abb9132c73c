"""What a worker may say of itself: asked by the worker before it connects, and by the router."""
from __future__ import annotations

from fusee_mp.bounds import WORKER_NAME_BYTES_MAX, WORKER_WORKFLOWS_MAX
from fusee_mp.errors import Rejected
from fusee_mp.names import checked_name
from fusee_mp.wire.messages import Hello


def check_hello(hello: Hello) -> None:
    """Raises Rejected for names that could not be told apart later, and for more than anybody needs."""
    checked_name("worker", hello.worker)
    if not hello.instance or "/" in hello.instance:
        raise Rejected(f"expected an instance without a slash, found {hello.instance!r}")
    size = len((hello.worker + hello.instance).encode())
    if size > WORKER_NAME_BYTES_MAX:
        raise Rejected(
            f"a worker's name and instance have at most {WORKER_NAME_BYTES_MAX} bytes together, these have {size}: use a shorter name")
    if len(hello.workflows) > WORKER_WORKFLOWS_MAX:
        raise Rejected(f"a worker has at most {WORKER_WORKFLOWS_MAX:,} workflows, this one has {len(hello.workflows):,}: share them among"
                       " several workers", found=len(hello.workflows))
    for name in hello.workflows:
        checked_name("workflow", name)
