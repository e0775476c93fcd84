"""Exact inference of any unmodified model on the whole graph, batch by batch, in lockstep.

Every batch runs the user's own forward, in a thread of its own of which only one is awake at a time. At each
propagation the batch hands in its rows and sleeps; when all have, the rows are one n x d matrix, and each batch goes on
with true halo rows. What a sleeping batch holds is what its forward still needs: memory is one batch's work plus one
n x d matrix per live layer, with no analysis of liveness and no layer computed twice. (The alternative, replaying the
model from the start for each layer, costs the square of the depth; see docs/decisions.md.)

>>> import torch
>>> from torch_geometric.nn import GCN
>>> from torch_geometric.data import Data
>>> ring = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]]))
>>> model = GCN(4, 8, num_layers=3, out_channels=2).eval()
>>> graph = Graph(ring)
>>> out = exact(model, graph, [graph.induced(torch.tensor([0, 1])), graph.induced(torch.tensor([2, 3]))])
>>> torch.allclose(out, model(ring.x, ring.edge_index), atol=1e-6)
True
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import Call, caller, evaluating, plain
from topoff.forward.convs import Conv, describe
from topoff.forward.intercept import Collect, ConvCall, Handler, extended
from topoff.graph.graph import Graph, Neighborhood
from topoff.graph.operators import Operator, Sparse

# Told the same rows by their place in the forward, "conv/call/hop", as `Subgraph` names it.
Remember = Callable[[str, Tensor], None]


def exact(
    model: nn.Module,
    graph: Graph,
    batches: Sequence[Data],
    *,
    call: Call | None = None,
    collect: Collect | None = None,
    remember: Remember | None = None,
) -> Tensor:
    """Return the model's output for every node, equal to the full-batch forward in eval mode; (n, out).

    Args:
        model: any PyG model; its mode and parameters are left as they are.
        graph: the whole graph.
        batches: `graph.induced(nodes)` of node sets that hold every node once; their size bounds the memory.
        call: how to call the model on a batch, where its arguments cannot be filled by name.
        collect: told the (n, d) input of every conv, but for raw features.
        remember: the same, by place (see `Remember`).

    Raises:
        ValueError: for a model that cannot be batched, with the reason.
    """
    model = plain(model)
    convs = describe(model)
    run = caller(model, call)
    with evaluating(model):
        parameter = next(model.parameters(), graph.data.x)
        lockstep = _Lockstep(convs, graph, batches, collect, remember, device=parameter.device)
        with lockstep.on(batches[0]):
            return lockstep.run(lambda batch: run(model, batch))


class _Lockstep(Handler):
    """Run one forward per batch, all in step."""

    def __init__(
        self,
        convs: list[Conv],
        graph: Graph,
        batches: Sequence[Data],
        collect: Collect | None,
        remember: Remember | None,
        *,
        device: torch.device,
    ) -> None:
        self.graph = graph
        self.batches = [_Batch(graph, batch, device=device) for batch in batches]
        self.collect, self.remember = collect, remember
        self.awake = self.batches[0]
        super().__init__(convs)

    @property
    def now(self) -> ConvCall | None:
        """The running conv of the batch that is awake."""
        return self.awake.now

    @now.setter
    def now(self, call: ConvCall | None) -> None:
        self.awake.now = call

    @property
    def calls(self) -> dict[str, int]:
        """The calls of every conv so far, of the batch that is awake."""
        return self.awake.calls

    @calls.setter
    def calls(self, calls: dict[str, int]) -> None:
        self.awake.calls = calls

    def run(self, forward: Callable[[Data], Any]) -> Tensor:
        """Run all batches to the end and return their outputs in the order of the nodes."""
        runners = [_Runner(batch, forward) for batch in self.batches]
        try:
            while True:
                handed = [self._step(runner) for runner in runners]
                if all(runner.done for runner in runners):
                    return self._gather(handed)
                if any(runner.done for runner in runners):
                    raise ValueError(
                        "Expected every batch to pass the same convs (got a forward whose depth depends on the "
                        "batch): such a model cannot be batched."
                    )
                self._share(handed)
        finally:
            for runner in runners:
                runner.close()

    def _step(self, runner: _Runner) -> Any:
        self.awake = runner.batch
        return runner.step()

    def _share(self, handed: list[tuple[Conv, int | None, Tensor]]) -> None:
        """Make one (n, d) matrix of what the batches handed in, and give it to all."""
        conv, hop, _ = handed[0]
        if any((other.name, count) != (conv.name, hop) for other, count, _ in handed):
            raise ValueError("Expected every batch to pass the same convs (got other convs for other batches).")
        whole = self._gather([rows for _, _, rows in handed])
        if self.collect and hop is not None:
            self.collect(conv, hop, whole)
        if self.remember and hop is not None:
            self.remember(f"{conv.name}/{self.calls[conv.name]}/{hop}", whole)
        for batch in self.batches:
            batch.shared = whole

    def _gather(self, rows: list[Any]) -> Tensor:
        """Put the rows of all batches into one matrix, in the order of the nodes."""
        whole: Tensor | None = None
        for batch, part in zip(self.batches, rows, strict=True):
            if not isinstance(part, Tensor) or part.dim() == 0 or part.size(0) != batch.size:
                got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
                raise ValueError(
                    f"Expected one row per node of the batch (got {got} for {batch.size} nodes): pooling over nodes "
                    f"cannot be batched; let the model return node embeddings and pool outside."
                )
            if whole is None:
                whole = part.new_empty((self.graph.num_nodes, *part.shape[1:]))
            whole[batch.nodes] = part
        assert whole is not None
        return whole

    def convolve(self, call: ConvCall) -> Any:
        """Run a conv of the batch that is awake on true halo rows."""
        batch, conv = self.awake, call.conv
        if conv.path == "general":
            around = batch.neighborhood(conv.module.flow)
            return extended(call, batch.data, around, lambda h: batch.exchange(call, h)[around.halo]).run()
        given = call.linear(batch.data)
        told = self.collect or self.remember
        call.aggregated = bool(told and conv.transforms_first and given["x"] is not batch.data.x)
        if call.aggregated:  # (A H) W = A (H W): what is collected is propagated at once
            given["x"] = batch.rows(call.operator) @ batch.exchange(call, given["x"])
        return call.forward(**given)

    def propagate(self, call: ConvCall, operand: Tensor) -> Tensor:
        """Multiply the rows of the global operator with the operand of all batches."""
        batch = self.awake
        if call.aggregated:
            return operand
        if operand is batch.data.x:
            call.hop += 1
            return batch.rows(call.operator) @ self.graph.features(operand.device)
        return batch.rows(call.operator) @ batch.exchange(call, operand, record=not call.conv.transforms_first)


class _Batch:
    """Hold what one batch needs while it runs."""

    def __init__(self, graph: Graph, batch: Data, *, device: torch.device) -> None:
        """Take the batch to the model's device."""
        self.graph, self.device = graph, device
        self.nodes: Tensor = batch.n_id.cpu()
        self.size = self.nodes.numel()
        self.data = batch if batch.x.device == device else batch.to(device)
        self.shared: Tensor | None = None  # the (n, d) matrix of the current exchange
        self.now: ConvCall | None = None  # the conv that is running
        self.calls: dict[str, int] = {}  # of every conv so far
        self._rows: dict[Operator, Sparse] = {}
        self._around: dict[str, Neighborhood] = {}
        self.runner: _Runner

    def exchange(self, call: ConvCall, rows: Tensor, *, record: bool = True) -> Tensor:
        """Hand in this batch's rows, sleep until all have, and return the (n, d) matrix of them."""
        self.runner.hand_in((call.conv, call.hop if record else None, rows))
        call.hop += record
        whole, self.shared = self.shared, None
        assert whole is not None
        return whole

    def rows(self, operator: Operator) -> Sparse:
        """Return A[B, :] of an operator, cut at the first call."""
        if operator not in self._rows:
            self._rows[operator] = self.graph.aggregation(operator).rows(self.nodes).to(self.device)
        return self._rows[operator]

    def neighborhood(self, flow: str) -> Neighborhood:
        """Return the edges N(B) -> B, cut at the first call."""
        if flow not in self._around:
            self._around[flow] = self.graph.neighborhood(self.nodes, flow=flow).to(self.device)
        return self._around[flow]


class _Closed(BaseException):
    """Unwind a sleeping batch after another one failed."""


class _Runner:
    """Run one batch's forward in a thread that is awake only inside `step`."""

    def __init__(self, batch: _Batch, forward: Callable[[Data], Any]) -> None:
        """Prepare the thread; the first `step` starts it."""
        self.batch = batch
        batch.runner = self
        self.done = False
        self._handed: Any = None
        self._error: BaseException | None = None
        self._closing = False
        self._wake, self._slept = threading.Semaphore(0), threading.Semaphore(0)
        device = batch.device.type  # precision belongs to the thread, too
        self._precision = torch.autocast(
            device, dtype=torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device)
        )
        self._thread = threading.Thread(target=self._main, args=(forward,), daemon=True)

    def step(self) -> Any:
        """Run until the batch hands something in or ends; return that."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._wake.release()
        self._slept.acquire()
        if self._error is not None:
            raise self._error
        handed, self._handed = self._handed, None
        return handed

    def hand_in(self, value: Any) -> None:
        """Called by the batch: hand a value to `step` and sleep until the next one."""
        self._handed = value
        self._slept.release()
        self._wake.acquire()
        if self._closing:
            raise _Closed

    def close(self) -> None:
        """End the thread wherever it is."""
        if self._thread.is_alive():
            self._closing = True
            self._wake.release()
            self._thread.join()

    def _main(self, forward: Callable[[Data], Any]) -> None:
        """Run the forward in the thread; hand over its output or its error."""
        try:
            with torch.no_grad(), self._precision:  # the mode belongs to the thread
                self._handed = forward(self.batch.data)
        except _Closed:
            return
        except BaseException as error:
            self._error = error
        self.done = True
        self._slept.release()
