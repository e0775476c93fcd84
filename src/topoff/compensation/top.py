"""TOP: two more lines than the full-batch script, no change to the model."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.batching.overlapping_sets import SAMPLERS, SampledSets
from topoff.compensation.certificate import BatchReport, Residual, describe_batch
from topoff.compensation.compensated import Compensated
from topoff.compensation.embeddings import embed, reinitialised, unreset_parameter
from topoff.compensation.estimator import Compensator
from topoff.compensation.fidelity import Fidelity, LayerErrors, compare_gradients, gradient, output_error
from topoff.compensation.loader import Loader, Progress, whole_graph
from topoff.compensation.refresh import Refreshing
from topoff.data.check import check, check_graph
from topoff.forward.call import Call, caller, evaluating, plain
from topoff.forward.convs import Conv
from topoff.forward.exact import Collect, exact
from topoff.forward.fingerprint import fingerprint
from topoff.forward.plan import Plan, make_plan
from topoff.graph.graph import Graph
from topoff.machine.cache import cached, content_hash
from topoff.machine.memory import readable
from topoff.models.dropout import fast_dropout
from topoff.tasks.metrics import score
from topoff.tasks.task import Loss, default_loss

MASKS = ("train", "val", "test")
VERSIONED = ("topoff", "torch", "torch_geometric")  # packages that a compensation depends on
NARROW, WIDE = 3, 8  # columns of the basis per unit of rank, with and without refresh


class TOP:
    """Train an unmodified PyG model in mini-batches that behave like the whole graph (topological compensation).

    Args:
        model: any PyG model that works per node and neighbour; it is called, never changed.
        data: the whole graph, validated as by `topoff.load`.
        ratio: fraction of the nodes per batch.
        rank: size k of the compensation, or the fraction of the embeddings' energy to keep; 0 compensates nothing.
        batches: "kaminpar", "metis" or "random"; a sampler whose sets overlap, "saint-node", "saint-edge",
            "saint-walk", "shadow" or "ibmb" (losses are then to be weighed by `batch.loss_weight` and summed); or
            `NodeSets` or `SampledSets` of your own.
        parts: clusters that are merged into batches.
        estimator: "ridge" (default), "paper" or "released"; see `Compensator`.
        inits: networks behind the first basis: the current weights and inits - 1 random initialisations. By default 1
            where the basis is soon refreshed, else 2.
        ridge: lambda of the estimator.
        anchors: nodes of a batch that the paper's estimators read.
        refresh: "every=E" re-estimates from current embeddings every E epochs, "adaptive" as often as the basis ages,
            "never" keeps the first basis.
        regroup: merge parts into new batches every epoch.
        train_only: batch the training nodes alone; all others are halo, and compensated.
        tolerance: a certificate above this warns.
        seed: of partition, initialisations and the order of the batches.
        fast_dropout: let `nn.Dropout` inside the model draw its masks faster on the CPU (see `dropout.py`).
        cache: keep partition and first compensation on disk, named by the content of graph, model and settings; with a
            `call`, whose meaning no name can hold, or with `regroup`, the partition alone.
        call: how to call the model on a batch, `lambda model, batch: ...`, where names do not suffice.
        progress: told what is being done, how much of it is done and how much there is.

    >>> import torch, topoff
    >>> from torch_geometric.nn import GCN
    >>> data = topoff.load("wordnet")
    >>> model = GCN(data.num_features, 16, num_layers=2, out_channels=45)
    >>> top = topoff.TOP(model, data, ratio=0.1, rank=16)
    >>> len(top)
    10
    >>> out = top(next(iter(top)))
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        ratio: float = 0.1,
        rank: int | float = 64,
        batches: str | NodeSets | SampledSets = "kaminpar",
        parts: int | None = None,
        estimator: str = "ridge",
        inits: int | None = None,
        ridge: float = 1e-5,
        anchors: int | None = None,
        refresh: str = "every=5",
        regroup: bool = False,
        train_only: bool = False,
        tolerance: float = 0.5,
        seed: int = 0,
        fast_dropout: bool = False,
        cache: bool = False,
        call: Call | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.data = model, check(data).cpu()
        if isinstance(batches, str):
            batches = _sets(batches, ratio=ratio, parts=parts, seed=seed, regroup=regroup, train_only=train_only)
        self.sets = batches
        self.refreshing = Refreshing.parse(refresh)
        width = NARROW if self.refreshing.interval else WIDE  # a basis that must last is worth a wider regression
        self.compensator = Compensator(rank, estimator=estimator, ridge=ridge, anchors=anchors, width=width, seed=seed)
        self.inits = (1 if self.refreshing.interval else 2) if inits is None else inits
        self._held_out = inits != 1  # whether random initialisations may be drawn
        self.tolerance, self.seed, self.call, self.progress = tolerance, seed, call, progress
        self.fast_dropout, self.cache = fast_dropout, cache
        if self.inits < 1:
            raise ValueError(f"Expected inits to be at least 1 (got {inits}).")
        self._certificates: tuple[float, list[float]] | None = None
        self._loader: Loader | None = None
        self._fitted_at = 0  # epoch of the current basis
        self._first = True  # it was never refreshed
        self._run = caller(model, call)

    # ---- training

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.sets)

    def __iter__(self) -> Iterator[Data]:
        """Yield one epoch of batches; refreshes the basis by itself when it is due."""
        loader = self.prepare()
        loader.begin_epoch()
        if self.refresh_due():
            self.refresh()
        for batch in loader:
            yield self.placed(batch)

    def __call__(self, batch: Data) -> Tensor:
        """Return the model's output on the batch, as if it ran on the whole graph; (b, out)."""
        self.prepare()
        quicker = fast_dropout(self.model) if self.fast_dropout else contextlib.nullcontext()
        with self._compensated.on(batch), quicker:
            return self._run(self.model, batch)  # type: ignore[no-any-return]

    def prepare(self, *, networks: Sequence[nn.Module] | None = None, epoch: int = 0) -> Loader:
        """Partition, embed and estimate, at the first call; return the loader, which then begins with `epoch`.

        `networks` are the models whose embeddings make the first basis; by default the model with its current weights
        and inits - 1 random initialisations.
        """
        if self._loader is not None:
            return self._loader
        self.graph = Graph(self.data)
        self.plan: Plan = make_plan(self.model, self.graph, call=self.call)
        if self.compensator.rank == 0:
            self.plan = self.plan.in_batch_only()
        self._compensated = Compensated(self.plan.convs)
        self._report("partitioning", 0, 1)
        if self.sets.parts_ is None:
            self.sets.fit(self.data, cache=self.cache)
        self._report("partitioning", 1, 1)
        keep = self.cache and networks is None  # later bases would fill the disk for one use each
        if networks is None:
            networks = [self.model, *self._random_networks()]
        self._loader = Loader(
            self.graph, self.plan, sets=self.sets, compensator=self.compensator, seed=self.seed, progress=self.progress
        )
        self._loader.epoch = self._fitted_at = epoch
        self.fitted_ = _copied(networks[0])
        if keep and self.compensator.rank and not self.sets.regroup and self.call is None:
            key = f"compensation-{self._fingerprint(networks)}"
            self._loader.restore(cached(key, lambda: self._fit(networks).saved()))
        else:
            self._fit(networks)
        if not self.refreshing.interval:
            self.certify()
        return self._loader

    def _fit(self, networks: Sequence[nn.Module]) -> Loader:
        """Estimate every batch's compensation from the embeddings of some networks."""
        assert self._loader is not None
        principal = self.compensator.start(self.graph, self.plan)
        for done, network in enumerate(networks if self.compensator.rank else ()):
            self._report("basic embeddings", done, len(networks))
            self._embed(network, principal.add)
        self.compensator.finish(principal)
        self._loader.compensate()
        return self._loader

    def _fingerprint(self, networks: Sequence[nn.Module]) -> str:
        """Hash all that a compensation depends on: graph, batches, networks (code and weights), estimator, versions."""
        tensors = [self.data.x, self.data.edge_index, *(self.data[key] for key in self.graph.edge_level)]
        tensors += self.sets.of(0)
        tensors += [value for network in networks for value in network.state_dict().values() if value is not None]
        settings = {key: value for key, value in vars(self.compensator).items() if isinstance(value, int | float | str)}
        words = [fingerprint(plain(self.model)), repr(settings), *map(version, VERSIONED)]
        return content_hash(*words, *(tensor.detach().cpu().numpy() for tensor in tensors))

    def state(self) -> dict[str, Any]:
        """Return where training stands: position, age and certificates of the basis; JSON-able.

        With `fitted_`, the weights that the basis was estimated from, this is all that `restore` needs: the
        compensation itself is estimated again, to the same bits.
        """
        return {
            "loader": self.prepare().state_dict(),
            "fitted_at": self._fitted_at,
            "first": self._first,
            "certificates": self._certificates,
            "refreshing": dataclasses.asdict(self.refreshing),
        }

    def restore(self, state: dict[str, Any], *, fitted: dict[str, Any]) -> None:
        """Go on from a `state`, before anything is prepared; `fitted` are the weights that its basis comes from."""
        if self._loader is not None:
            raise RuntimeError("Expected restore() before anything is prepared (got a prepared TOP); make a new one.")
        network = copy.deepcopy(plain(self.model))
        network.load_state_dict(fitted)
        networks = [network, *(self._random_networks() if state["first"] else ())]
        self.prepare(networks=networks, epoch=state["fitted_at"]).load_state_dict(state["loader"])
        self._first = state["first"]
        self.refreshing = Refreshing(**state["refreshing"])
        certificates = state["certificates"]
        self._certificates = None if certificates is None else (certificates[0], certificates[1])

    def certify(self, network: nn.Module | None = None) -> float:
        """Measure the compensation on the embeddings of a network, by default a held-out random initialisation.

        Where inits=1 was asked for, or a parameter cannot be drawn anew, it is the model itself, which flatters the
        basis.
        """
        loader = self.prepare()
        if not self.compensator.rank_:  # nothing is compensated, or nothing needs to be
            missed = 1.0 if self.compensator.rank == 0 else 0.0
            self._certificates = missed, [missed] * len(loader.batches())
            return missed
        if network is None:
            held_out = self._held_out and unreset_parameter(self.model) is None
            network = reinitialised(self.model, self._init_seed(0)) if held_out else self.model
        residual = loader.residual()
        self._embed(network, residual.add)
        self._certify(residual)
        return self.certificate_

    def refresh_due(self) -> bool:
        """Whether the basis is old enough to be replaced before the epoch that comes; never where there is none."""
        age = self.prepare().epoch - self._fitted_at
        return self.compensator.rank_ > 0 and self.refreshing.due(age)

    def refresh(self) -> Tensor:
        """Re-estimate from the model's current embeddings; return the exact output that comes with them (n, out).

        One exact forward, then one small solve per batch. The certificate is that of the old basis on the new
        embeddings.
        """
        loader = self.prepare()
        self._fitted_at, self._first, self.fitted_ = loader.epoch, False, _copied(self.model)
        if not self.compensator.rank_:
            return self.predict()
        residual, principal = loader.residual(), self.compensator.start(self.graph, self.plan)
        out = self._embed(self.model, residual.add, principal.add)
        self._certify(residual)
        self.refreshing.observe(residual.pooled())
        self.compensator.finish(principal)
        loader.compensate()
        return out

    # ---- looking at the result

    def predict(self) -> Tensor:
        """Return the exact output for every node, in eval mode; (n, out)."""
        self.prepare()
        return exact(self.model, self.graph, self._cover(), call=self.call)

    def evaluate(self, *, metric: str | None = None, refresh: bool = False) -> dict[str, float]:
        """Return exact train, val and test scores on pooled predictions; nothing else changes, unless `refresh`."""
        out = self.refresh() if refresh else self.predict()
        masks = {name: self.data[f"{name}_mask"] for name in MASKS}
        return score(out.cpu(), self.data.y, masks=masks, metric=metric)

    def compensated_outputs(self) -> Tensor:
        """Return the mini-batch outputs in eval mode, NaN for nodes in no batch; (n, out)."""
        batches = self.prepare().batches()
        with evaluating(self.model), torch.no_grad():
            rows = [self(self.placed(batch)).cpu() for batch in batches]
        out = rows[0].new_full((self.graph.num_nodes, *rows[0].shape[1:]), float("nan"))
        out[torch.cat([batch.n_id for batch in batches])] = torch.cat(rows)
        return out

    def fidelity(self, *, gradients: bool = False, loss: Loss | None = None) -> Fidelity:
        """Measure how close the batches are to the exact forward: outputs, every layer, on request the gradient.

        The layers need one n x d matrix each; the gradient runs the whole graph at once and needs what full-batch
        training needs: `gradient_memory` estimates it, and `progress` is told.
        """
        loader, layers = self.prepare(), LayerErrors()
        batches = loader.batches()
        with evaluating(self.model):
            truth = self._embed(self.model, collect=layers.add_exact)
            error, _ = output_error(lambda batch: self._watched(batch, layers), batches, truth)
        gradient_error = cosine = None
        if gradients:
            self._report(f"gradient of the whole graph, about {readable(self.gradient_memory())}", 0, 1)
            gradient_error, cosine = self._gradient_fidelity(batches, loss or default_loss(self.data.y))
        return Fidelity(1 - error, error, layers.values(), gradient_error, cosine, self.certificate_)

    def report(self) -> list[BatchReport]:
        """Describe the compensation of every batch: size, boundary, rank kept, condition, certificate."""
        batches = self.prepare().batches()
        return [
            describe_batch(batch, certificate) for batch, certificate in zip(batches, self.certificates_, strict=True)
        ]

    def gradient_memory(self) -> int:
        """Estimate the bytes that `fidelity(gradients=True)` takes: about four n x d matrices per layer."""
        self.prepare()
        widths = [p.size(0) for p in self.model.parameters() if p.dim() == 2]
        return 4 * self.graph.num_nodes * sum(widths) * int(self.data.x.element_size())

    @property
    def certificate_(self) -> float:
        """How much of the messages from outside the batches is missed: ||A[B,C] (H_C - R H_B)|| / ||A[B,C] H_C||.

        Of the first basis on a held-out random initialisation; after a refresh, of the old basis on the embeddings just
        computed. Pooled over batches and layers.
        """
        return self._certified()[0]

    @property
    def certificates_(self) -> list[float]:
        """The certificate of each batch."""
        return self._certified()[1]

    def _certified(self) -> tuple[float, list[float]]:
        if self._certificates is None:
            self.certify()
        assert self._certificates is not None
        return self._certificates

    # ---- the model's own face

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        parameter = next(self.model.parameters(), None)
        return self.data.x.device if parameter is None else parameter.device

    def placed(self, batch: Data) -> Data:
        """Return a batch on the model's device; the batch itself where it is there."""
        return batch if self.device.type == "cpu" else copy.copy(batch).to(self.device)

    def to(self, device: torch.device | str) -> TOP:
        """Move the model; batches follow it."""
        self.model.to(device)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return the user's own state_dict of the model."""
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the user's own state_dict."""
        self.model.load_state_dict(state)

    def __repr__(self) -> str:
        sets, rank = self.sets, self.compensator.rank
        return (
            f"TOP({type(plain(self.model)).__name__}, nodes={self.data.num_nodes}, "
            f"batches={len(self)} x {sets.method}, rank={rank}, estimator={self.compensator.estimator}, "
            f"refresh={self.refreshing})"
        )

    # ---- inside

    def _embed(self, network: nn.Module, *sinks: Callable[[Tensor], None], collect: Collect | None = None) -> Tensor:
        """Run a network exactly on the whole graph and hand what its convs read to every sink."""

        def hand_out(conv: Conv, hop: int, rows: Tensor) -> None:
            """Give the rows to every sink."""
            for sink in sinks:
                sink(rows)

        return embed(network, self.graph, self._cover(), plan=self.plan, collect=collect or hand_out, call=self.call)

    def _certify(self, residual: Residual) -> None:
        pooled = residual.pooled()
        self._certificates = pooled, residual.per_batch()
        if pooled > self.tolerance:
            warnings.warn(
                f"The compensation misses {pooled:.0%} of the messages from outside the batches (tolerance "
                f"{self.tolerance:.0%}): raise rank or inits, refresh more often, or use larger or clustered batches.",
                stacklevel=3,
            )

    def _cover(self) -> list[Data]:
        """Return batches that hold every node once: those at hand where they do."""
        if not self.sets.covers:
            return [self.graph.induced(nodes) for nodes in self.sets.cover()]
        assert self._loader is not None
        return self._loader.batches()

    def _watched(self, batch: Data, layers: LayerErrors) -> Tensor:
        self._compensated.collect = layers.comparing(batch.n_id)
        try:
            return self(batch)
        finally:
            self._compensated.collect = None

    def _gradient_fidelity(self, batches: Sequence[Data], loss: Loss) -> tuple[float, float]:
        whole = whole_graph(self.graph, self.plan).to(self.device)
        truth = gradient(self.model, self, [whole], loss=loss)
        return compare_gradients(gradient(self.model, self, batches, loss=loss), truth)

    def _random_networks(self) -> list[nn.Module]:
        """Return the random initialisations behind the first basis; none where nothing is compensated."""
        inits = self.inits if self.compensator.rank else 1
        return [reinitialised(self.model, self._init_seed(number)) for number in range(1, inits)]

    def _init_seed(self, number: int) -> int:
        """Return the seed of a random initialisation; 0 is the held-out one."""
        return self.seed * 1009 + number

    def _report(self, what: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(what, done, total)


def _sets(
    method: str, *, ratio: float, parts: int | None, seed: int, regroup: bool, train_only: bool
) -> NodeSets | SampledSets:
    """Return the node sets that a name means."""
    if method not in SAMPLERS:
        return NodeSets(method=method, ratio=ratio, parts=parts, seed=seed, regroup=regroup, train_only=train_only)
    if parts is not None or train_only:
        raise ValueError(f"Expected batches '{method}' without parts and train_only (got one of them); leave it out.")
    return SampledSets(method=method, ratio=ratio, seed=seed, regroup=regroup)


def _copied(model: nn.Module) -> dict[str, Any]:
    """Return a copy of a model's state_dict."""
    return copy.deepcopy(plain(model).state_dict())


def predict(
    model: nn.Module,
    data: Data,
    *,
    ratio: float = 0.1,
    batches: str = "kaminpar",
    seed: int = 0,
    call: Call | None = None,
) -> Tensor:
    """Return the model's exact output for every node of a graph, batch by batch, without TOP; (n, out).

    >>> import torch
    >>> from torch_geometric.nn import GCN
    >>> graph = Data(x=torch.rand(4, 3), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
    >>> predict(GCN(3, 8, num_layers=2, out_channels=2), graph, ratio=0.5, batches="random").shape
    torch.Size([4, 2])
    """
    data = check_graph(data)
    sets = NodeSets(method=batches, ratio=ratio, seed=seed).fit(data)
    graph = Graph(data)
    make_plan(model, graph, call=call)
    return exact(model, graph, [graph.induced(nodes) for nodes in sets.cover()], call=call)
