"""TOP: two more lines than the full-batch script, no change to the model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.batching.overlapping_sets import SampledSets, named_sets
from topoff.batching.ratio import chosen_ratio
from topoff.batching.together import check_processes, fit_together
from topoff.compensation.basis import Basis
from topoff.compensation.certificate import BatchReport, as_row, describe_batch, report_of
from topoff.compensation.compensated import Compensated
from topoff.compensation.embeddings import random_networks
from topoff.compensation.estimator import Compensator
from topoff.compensation.fidelity import Fidelity, LayerErrors, gradient_gap, gradient_memory, one_tensor, output_error
from topoff.compensation.loader import Loader
from topoff.compensation.refresh import Refreshing
from topoff.compensation.usual import has_offset, rank_for
from topoff.data.split import given_masks
from topoff.forward.call import Call, Learner, Progress, evaluating, plain
from topoff.forward.plan import Plan
from topoff.forward.room import graph_for
from topoff.forward.subgraph import whole_graph
from topoff.forward.trial import make_plan
from topoff.machine.memory import readable
from topoff.machine.ranks import Ranks
from topoff.tasks.metrics import score
from topoff.tasks.task import Loss, default_loss

NARROW, WIDE = 3, 8  # columns of the basis per unit of rank, with and without refresh


class TOP(Learner):
    """Train an unmodified PyG model in mini-batches that behave like the whole graph (topological compensation).

    Args:
        model: any PyG model that works per node and neighbour; it is called, never changed.
        data: the whole graph, validated as by `topoff.load`; labels and masks may be missing.
        ratio: fraction of the nodes per batch; by default what makes most of time (see `usual_ratio`).
        rank: size k of the compensation, or the fraction of the embeddings' energy to keep; 0 is the offset alone. By
            default 16 for clusters of all nodes with an offset, else 64; 128 for large `train_only` ones (`rank_for`).
        batches: "kaminpar", "metis", "ldg", "random" or "stored" (see `NodeSets`); a sampler whose sets overlap,
            "saint-node", "saint-edge", "saint-walk", "shadow" or "ibmb" (weight the losses by `batch.loss_weight` and
            sum them); or `NodeSets` or `SampledSets` of your own.
        parts: clusters that are merged into batches.
        estimator: "ridge" (default), "paper" or "released"; see `Compensator`.
        inits: networks behind the first basis: the current weights and random ones (1 with a refresh, else 2).
        ridge: lambda of the estimator.
        anchors: nodes of a batch that the paper's estimators read.
        refresh: when to re-estimate from current embeddings: "auto", as often as it pays, "every=E" epochs or "never".
        offset: compensate only what has changed since the last refresh (default with "ridge" and a refresh).
        late: with an offset, leave the first estimate until the first epoch is over: weights move furthest in it.
        regroup: merge parts into new batches every epoch.
        train_only: batch the training nodes alone; all others are halo.
        reach: batch the nodes within so many edges of a training node; all others are halo.
        tolerance: a certificate above this warns.
        seed: random seed of the partition, the initialisations and the order of the batches.
        fast_dropout: let `nn.Dropout` inside the model draw its masks faster on the CPU (see `models/dropout`).
        memory: GiB that may be taken, by default what is free; matrices of all nodes lie on disk where they need more.
        cache: keep the partition on disk, and a first compensation that has no offset, no `call` and no `regroup`.
        call: how to call the model on a batch, `lambda model, batch: ...`, where names do not suffice.
        accumulate: batches of a step, where you take it after several; by default as many as there are processes.
        ranks: the processes that share out batches and exact inference, all with the same graph (docs/distributed.md).
        progress: told what is being done, how much of it is done and how much there is.

    >>> import topoff, torch_geometric.nn as gnn
    >>> data = topoff.load("wordnet")
    >>> model = gnn.GCN(data.num_features, 16, num_layers=2, out_channels=45)
    >>> top = topoff.TOP(model, data, ratio=0.1)
    >>> out = top(next(iter(top)))
    """

    handler: Compensated
    _loader: Loader | None
    keeps_features: ClassVar[bool] = False  # whether the features outside a batch are seen at rank 0, too

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        ratio: float | None = None,
        rank: int | float | None = None,
        batches: str | NodeSets | SampledSets = "kaminpar",
        parts: int | None = None,
        estimator: str = "ridge",
        inits: int | None = None,
        ridge: float = 1e-5,
        anchors: int | None = None,
        refresh: str = "auto",
        offset: bool | None = None,
        late: bool = False,
        regroup: bool = False,
        train_only: bool = False,
        reach: int | None = None,
        tolerance: float = 0.5,
        seed: int = 0,
        fast_dropout: bool = False,
        memory: float | None = None,
        cache: bool = False,
        call: Call | None = None,
        accumulate: int | None = None,
        ranks: Ranks | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(model, data, call=call, fast_dropout=fast_dropout, memory=memory, progress=progress)
        if isinstance(batches, str):
            of: dict[str, Any] = {"train_only": train_only, "reach": reach}
            ratio = chosen_ratio(data, **of) if ratio is None else ratio
            batches = named_sets(batches, ratio=ratio, parts=parts, seed=seed, regroup=regroup, **of)
        self.offset = has_offset(offset=offset, estimator=estimator, refresh=refresh)
        rank = rank_for(batches, data, offset=self.offset) if rank is None else rank
        self.sets, self.refreshing = batches, Refreshing.parse(refresh)
        width = NARROW if self.refreshing.interval else WIDE  # a basis that must last is worth a wider regression
        self.compensator = Compensator(rank, estimator=estimator, ridge=ridge, anchors=anchors, width=width, seed=seed)
        self.inits = (1 if self.refreshing.interval else 2) if inits is None else inits
        self._held_out = inits != 1  # whether random initialisations may be drawn
        if self.inits < 1:
            raise ValueError(f"Expected inits to be at least 1 (got {inits}).")
        self.tolerance, self.seed, self.cache, self.late, self._loader = tolerance, seed, cache, late, None
        self.ranks = ranks or Ranks()
        self.accumulate = self.ranks.size if accumulate is None else accumulate

    # ---- training

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.sets)

    def __iter__(self) -> Iterator[Data]:
        """Yield one epoch of batches; refreshes the basis by itself when it is due."""
        return self.batches()

    def batches(self) -> Iterator[Data]:
        """Return what is left of the current epoch; the basis is refreshed before it, where that is due."""
        loader = self.prepare()
        loader.position.begin_epoch()
        if self.basis.due() and not self.frozen:
            self.refresh(output=False)
        return iter(loader) if self.device.type == "cpu" else map(self.placed, loader)

    def prepare(self, *, networks: Sequence[nn.Module] | None = None, epoch: int = 0) -> Loader:
        """Partition, embed and estimate, at the first call; return the loader, which then begins with `epoch`.

        `networks` make the first basis; by default the model with its current weights and inits - 1 random ones.
        """
        if self._loader is not None:
            return self._loader
        check_processes(self.ranks, accumulate=self.accumulate, batches=len(self.sets))
        self.graph = graph_for(plain(self.model), self.data, memory=self.memory)
        plan = make_plan(self.model, self.graph, call=self.call)
        looks_out = self.compensator.rank or self.offset or self.keeps_features
        self.plan: Plan = plan if looks_out else plan.in_batch_only()
        self._announce(plan.remarks())
        self._tell("partitioning", 0, 1)
        if self.sets.parts_ is None:
            fit_together(self.sets, self.data, ranks=self.ranks, cache=self.cache)
        self._tell("partitioning", 1, 1)
        seen: dict[str, Any] = {"compensator": self.compensator, "seed": self.seed, "progress": self.progress}
        loader = Loader(self.graph, self.plan, sets=self.sets, accumulate=self.accumulate, ranks=self.ranks, **seen)
        loader.position.epoch = epoch
        settings: dict[str, Any] = {"tolerance": self.tolerance, "seed": self.seed, "held_out": self._held_out}
        basis = Basis(self.model, loader, refreshing=self.refreshing, offset=self.offset, call=self.call, **settings)
        first = networks is None  # later bases would fill the disk for one use each
        basis.fit(networks or [self.model, *self._random_networks()], cache=self.cache and first, late=self.late)
        self.handler = Compensated(self.plan.convs, offset=self.offset)
        self.basis, self._loader = basis, loader  # once all is whole
        if not self.refreshing.interval:
            self.certify()
        return loader

    def refresh(self, *, output: bool = True) -> Any:
        """Re-estimate from the model's current embeddings, by one exact forward; return its `output` (n, out).

        The old basis is certified on the new embeddings.
        """
        self.refreshed_at = self.prepare().position.epoch
        with self.ranks.counting("refresh"):
            return self.basis.refresh(output=output)

    def exact(self) -> tuple[Any, bool]:
        """Return the exact output, and whether the basis was refreshed: where it is due, one forward gives both."""
        self.prepare()
        return (self.refresh(), True) if self.basis.due() and not self.frozen else (self.predict(), False)

    # ---- looking at the result

    def predict(self) -> Any:
        """Return the exact output for every node, in eval mode; (n, out), or as many tensors as the model returns."""
        self.prepare()
        return self.basis.passes.output()

    def evaluate(self, *, metric: str | None = None, refresh: bool = False) -> dict[str, float]:
        """Return exact scores by split on pooled predictions, where there are labels; `refresh` changes the basis."""
        masks = given_masks(self.data, purpose="evaluate()")
        out = one_tensor(self.refresh() if refresh else self.predict(), purpose="evaluate()")
        return score(out.cpu(), self.data.y, masks=masks, metric=metric)

    def cover(self) -> list[Data]:
        """Return the batches at hand."""
        return self.prepare().batches()

    def fidelity(self, *, gradients: bool = False, loss: Loss | None = None) -> Fidelity:
        """Measure how close batches are to the exact forward: outputs, layers; the gradient, at full-batch memory."""
        if gradients:
            given_masks(self.data, purpose="fidelity(gradients=True)")
        batches, layers = self.prepare().batches(), LayerErrors()
        with evaluating(self.model):
            truth = one_tensor(self.basis.embed(self.model, layers.add_exact), purpose="fidelity()")
            error, _ = output_error(layers.watching(self.forward, self.handler), batches, truth)
        missed = cosine = None
        if gradients:
            need = readable(gradient_memory(self.model, self.data))
            self._tell(f"gradient of the whole graph, about {need}", 0, 1)
            whole = whole_graph(self.graph, self.plan).to(self.device)
            loss = loss or default_loss(self.data.y)
            missed, cosine = gradient_gap(self.model, self, batches, whole=whole, loss=loss)
        return Fidelity(1 - error, error, layers.values(), missed, cosine, self.certificate_)

    def certify(self, network: nn.Module | None = None) -> float:
        """Measure the compensation on the embeddings of a network, by default a held-out random initialisation.

        Where inits=1 was asked for, or a parameter cannot be drawn anew, it is the model itself: that flatters.
        """
        self.prepare()
        return self.basis.certify(network)

    def report(self) -> list[BatchReport]:
        """Describe the compensation of every batch: size, boundary, rank kept, condition, certificate."""
        loader, own = self.prepare(), self.certificates_[self.ranks.rank :: self.ranks.size]
        rows = [as_row(describe_batch(*pair)) for pair in zip(loader.batches(), own, strict=True)]
        return [report_of(row) for row in loader.pooled(rows)]

    @property
    def certificate_(self) -> float:
        """How much of the messages from outside the batches is missed: ||A[B,C] (H_C - R H_B)|| / ||A[B,C] H_C||.

        Of the first basis on a held-out random initialisation; after a refresh, of the old one on new ones. Pooled.
        """
        self.prepare()
        return self.basis.certificates()[0]

    @property
    def certificates_(self) -> list[float]:
        """The certificate of each batch."""
        self.prepare()
        return self.basis.certificates()[1]

    def __repr__(self) -> str:
        kind, rank, estimator = f"{len(self)} x {self.sets.method}", self.compensator.rank, self.compensator.estimator
        name, nodes = type(plain(self.model)).__name__, self.data.num_nodes
        return f"TOP({name}, {nodes=}, batches={kind}, {rank=}, estimator={estimator}, refresh={self.refreshing})"

    # ---- resuming

    def state(self) -> dict[str, Any]:
        """Return where training stands: position, age and certificates of the basis; JSON-able.

        With `weights`, those that the basis was estimated from, this is all that `restore` needs: the compensation
        itself is estimated again, to the same bits.
        """
        return {"loader": self.prepare().state_dict(), **self.basis.state()}

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that the basis was estimated from."""
        self.prepare()
        return self.basis.fitted_

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on from a `state`, before anything is prepared; `weights` are those that its basis comes from."""
        if self._loader is not None:
            raise RuntimeError("Expected restore() before anything is prepared (got a prepared TOP); make a new one.")
        network = copy.deepcopy(plain(self.model))
        network.load_state_dict(weights)
        self.refreshing, self.late = Refreshing(**state["refreshing"]), state.get("bare", False)
        networks = [network, *(self._random_networks() if state["first"] else ())]
        self.prepare(networks=networks, epoch=state["fitted_at"]).load_state_dict(state["loader"])
        self.refreshed_at = None if state["first"] else state["fitted_at"]
        self.basis.restore(state)

    def _random_networks(self) -> list[nn.Module]:
        """Return the random initialisations behind the first basis; none where nothing is compensated."""
        return random_networks(self.model, self.inits - 1 if self.compensator.rank else 0, seed=self.seed)

    def _pooled(self, outputs: Tensor) -> Tensor:
        """Return the outputs (n, out) of the batches of all processes; the mean where several have a node."""
        if self.ranks.size == 1:
            return outputs
        known = ~outputs.flatten(1).isnan().any(dim=1).view(-1, *[1] * (outputs.dim() - 1))
        return self.ranks.sum(outputs.where(known, 0.0)) / self.ranks.sum(known.to(outputs.dtype))  # 0 / 0 is NaN

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(what, done, total)
