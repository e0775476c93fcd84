"""The processes of one run, as torchrun starts them: sums, rows and texts that pass between them, counted in bytes.

A process that is alone is the first of one: it sends nothing and waits for nobody.

>>> import torch
>>> ranks = Ranks()
>>> ranks.sum(torch.ones(2)), ranks.is_first, ranks.sent
(tensor([1., 1.]), True, 0)
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = datetime.timedelta(minutes=30)  # that a process waits for another: the first may partition a large graph


class LostError(ValueError):
    """Say that another process of the run has ended or hangs."""


@dataclass(frozen=True)
class Routes:
    """Hold which rows pass between processes, found out once: those that others want, and how many come from each."""

    give: Tensor  # (g,) numbers of own rows, those for the first process first
    given: list[int]  # how many of them are for each process
    taken: list[int]  # how many rows come from each
    total: int  # rows that pass between any two processes


class Ranks:
    """Let the processes of one run compute together.

    Every function is called by all of them, in the same order. `sent` counts the bytes that had to pass between them so
    far, over all processes: 2 (W - 1) times a sum's size (as a ring of W sends it), W - 1 times what is gathered or
    told, and rows by their number.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size, self.sent = rank, size, 0
        self.counts: dict[str, list[int]] = {}  # of things that were counted: the bytes sent for them, how often

    @property
    def is_first(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    @contextmanager
    def counting(self, what: str) -> Iterator[None]:
        """Count what is sent inside `with`.

        >>> ranks = Ranks()
        >>> with ranks.counting("steps"):
        ...     _ = ranks.tell(b"go")
        >>> ranks.counts
        {'steps': [0, 1]}
        """
        before = self.sent
        yield
        sent, times = self.counts.get(what, (0, 0))
        self.counts[what] = [sent + self.sent - before, times + 1]

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor of all processes, in place; return it."""
        if self.size > 1:
            import torch.distributed as dist

            with _connected():
                dist.all_reduce(tensor)
            self.sent += 2 * (self.size - 1) * _bytes(tensor)
        return tensor

    def routes(self, wanted: Sequence[Tensor]) -> Routes:
        """Tell every process which of its rows this one wants; return what passes from now on."""
        import torch

        counts = torch.tensor([len(numbers) for numbers in wanted])
        table = torch.stack(self.gather(counts.view(1, -1), counts=[1] * self.size)).view(self.size, self.size)
        asked = Routes(torch.empty(0), counts.tolist(), table[:, self.rank].tolist(), int(table.sum()))
        give = self.exchange(torch.cat(list(wanted)), asked)
        return Routes(give, asked.taken, asked.given, asked.total)

    def exchange(self, rows: Tensor, routes: Routes) -> Tensor:
        """Hand rows to the processes that want them; return those that this one wanted, the first process' first."""
        if self.size == 1:
            return rows
        import torch.distributed as dist

        came = rows.new_empty((sum(routes.taken), *rows.shape[1:]))
        with _connected():
            dist.all_to_all_single(came, rows.contiguous(), routes.taken, routes.given)
        self.sent += routes.total * _row_bytes(rows)
        return came

    def gather(self, rows: Tensor, *, counts: Sequence[int]) -> list[Tensor]:
        """Return the rows of all processes, of which each has so many."""
        if self.size == 1:
            return [rows]
        import torch.distributed as dist

        shape = (max(counts), *rows.shape[1:])
        own, found = rows.new_zeros(shape), [rows.new_empty(shape) for _ in counts]
        own[: len(rows)] = rows
        with _connected():
            dist.all_gather(found, own)
        self.sent += (self.size - 1) * sum(counts) * _row_bytes(rows)
        return [each[:count] for each, count in zip(found, counts, strict=True)]

    def tell(self, content: bytes) -> bytes:
        """Return what the first process says; what others say is not heard."""
        if self.size == 1:
            return content
        import torch
        import torch.distributed as dist

        size = torch.tensor([len(content)])
        with _connected():
            dist.broadcast(size, 0)
            said = torch.zeros(int(size), dtype=torch.uint8)
            if self.is_first and content:
                said.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            dist.broadcast(said, 0)
        self.sent += (self.size - 1) * (8 + len(said))
        return said.numpy().tobytes()

    def texts(self, text: str) -> list[str]:
        """Return what every process says."""
        import torch

        content = torch.tensor(list(text.encode()), dtype=torch.uint8)
        counts = torch.cat(self.gather(torch.tensor([len(content)]), counts=[1] * self.size)).tolist()
        return [bytes(each.tolist()).decode() for each in self.gather(content, counts=counts)]


@contextmanager
def joined() -> Iterator[Ranks]:
    """Meet the other processes that torchrun, or whoever sets its variables, has started; alone without those.

    Raises:
        ValueError: they cannot meet.
    """
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        yield Ranks()
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        store.set_timeout(PATIENCE)
        # torchrun keeps its store when it starts processes again: with the addresses of those that have ended
        fresh = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=fresh, rank=rank, world_size=size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error):
            came, remedy = "one that is in use", "choose another MASTER_PORT, or start with torchrun --standalone"
            raise ValueError(f"Expected a free port for {place} (got {came}); {remedy}.") from error
        raise ValueError(
            f"Expected all {os.environ['WORLD_SIZE']} processes to meet at {place} (got {_short(error)}); start them "
            "with torchrun, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."
        ) from error
    yield Ranks(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()  # not after an error: others may never come to it


@contextmanager
def _connected() -> Iterator[None]:
    """Say in one sentence that another process is lost.

    Raises:
        LostError: with what torch says of it.
    """
    try:
        yield
    except RuntimeError as error:
        raise LostError(
            f"Expected all processes of the run to go on (got one that has ended, or hangs: {_short(error)}); its own "
            "message, or that of torchrun, says why."
        ) from error


def _short(error: Exception) -> str:
    """Return the first sentence of an error, without its place in torch's code.

    >>> _short(RuntimeError("[/x/pair.cc:553] Connection closed by peer [127.0.0.1]:3. This is typical."))
    'Connection closed by peer [127.0.0.1]:3'
    """
    text = " ".join(str(error).split())
    text = text.partition("] ")[2] if text.startswith("[/") else text
    return text.partition(". ")[0][:160].rstrip(".")


def _row_bytes(rows: Tensor) -> int:
    """Return the bytes of one row."""
    return rows.shape[1:].numel() * rows.element_size()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
