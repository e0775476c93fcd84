"""Every class of `torch_geometric.nn.models` with its verdict; those that are no models of nodes are left aside."""

from typing import Any

import torch
import torch_geometric.nn as gnn
from pyg_calls import WIDTH as W
from pyg_zoo import CLASSES, EXACT, REFUSED, Build, Variant, aside, degrees, mlp
from pyg_zoo import EDGE_WIDTH as E
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn.models.gpse import IdentityHead


def exact(what: str, build: Build, *needs: str, **settings: Any) -> Variant:
    """Return a model that must be exact, called by the names of its arguments unless there is a `call`."""
    return Variant(what, EXACT, build, needs=needs, **settings)


def refused(what: str, build: Build, *needs: str, **settings: Any) -> Variant:
    """Return a model that must be refused, with `reason` for people and `match` for the message."""
    return Variant(what, REFUSED, build, needs=needs, **settings)


def gcn(**settings: Any) -> nn.Module:
    """Return PyG's GCN of three layers."""
    return gnn.GCN(W, W, 3, W, act="tanh", **settings)


class Deep(nn.Module):
    """Stack two layers between an encoder and a classifier, as users of DeepGCNLayer and GroupAddRev do."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.first, self.layers, self.last = nn.Linear(W, W), nn.ModuleList(layers), nn.Linear(W, W)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, edge_index)
            x = x[:, -W:] if x.size(1) > W else x  # no view where none is needed: GroupAddRev frees what it is given
        return self.last(x)


class Masked(nn.Module):
    """Add the labels of the training nodes to their features, then convolve."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.label = gnn.MaskLabel(CLASSES, W, method)
        self.conv, self.last = gnn.GCNConv(W if method == "add" else 2 * W, W), gnn.GATConv(W, W)

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor, train_mask: Tensor) -> Tensor:
        return self.last(self.conv(self.label(x, y, train_mask), edge_index).tanh(), edge_index)


class Two(nn.Module):
    """Return mean and deviation, as an encoder of VGAE does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mean, self.deviation = (gnn.GCNConv(W, W) for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x, edge_index).tanh()
        return self.mean(x, edge_index), self.deviation(x, edge_index)


class Node(nn.Module):
    """Sum the edge features at their targets, as the node model of a MetaLayer does."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(E, W)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, *_: Any) -> Tensor:
        return x.index_add(0, edge_index[1], self.lin(edge_attr) * x[edge_index[0]])


def infomax(data: Data) -> nn.Module:
    """Return PyG's DGI around a GCN; its corruption shuffles the rows of all nodes."""
    return gnn.DeepGraphInfomax(
        W, gcn(), lambda z, *_: z.mean(0).sigmoid(), lambda x, e: (x[torch.randperm(len(x))], e)
    )


def encoder(data: Data) -> nn.Module:
    """Return a GPSE that gives its representation of the nodes, as the pretrained ones do."""
    model = gnn.GPSE(W, dim_inner=W, layers_mp=2)
    model.post_mp = IdentityHead()
    return model


def global_polynormer(data: Data) -> nn.Module:
    """Return a Polynormer with its second, global stage switched on."""
    model = gnn.Polynormer(W, W, W, local_layers=2)
    model._global = True
    return model


def by_sign(model: nn.Module, batch: Data) -> Any:
    """Call SignedGCN with the edges split by their type."""
    positive = batch.edge_type > 0
    return model(batch.x, batch.edge_index[:, positive], batch.edge_index[:, ~positive])


def soft(model: nn.Module, batch: Data) -> Any:
    """Correct and smooth soft predictions, with the labels of the training nodes."""
    return model(batch.x.softmax(-1), batch.y[batch.train_mask], batch.train_mask, batch.edge_index)


def wide_labels(model: nn.Module, batch: Data) -> Any:
    """Propagate one-hot labels with a column for every class."""
    labels = nn.functional.one_hot(batch.y, CLASSES).to(batch.x.dtype)
    return model(labels, batch.edge_index, batch.train_mask, batch.edge_weight)


def labels(model: nn.Module, batch: Data) -> Any:
    """Propagate the labels as PyG's example does."""
    return model(batch.y, batch.edge_index, batch.train_mask)


def rare(data: Data) -> Data:
    """Let one node alone have the last class."""
    data.y = torch.zeros_like(data.y)
    data.y[-1] = CLASSES - 1
    return data


def embedding(model: nn.Module, batch: Data) -> Any:
    """Return the embeddings of LightGCN."""
    return model.get_embedding(batch.edge_index)  # type: ignore[operator]


def layer(**settings: Any) -> nn.Module:
    """Return a DeepGCNLayer around GENConv."""
    return gnn.DeepGCNLayer(gnn.GENConv(W, W, norm="layer"), nn.LayerNorm(W), nn.Tanh(), **settings)


def reversible(**settings: Any) -> nn.Module:
    """Return a reversible layer of two groups."""
    return gnn.GroupAddRev(gnn.SAGEConv(W // 2, W // 2), num_groups=2, **settings)


MOLECULE = "predicts a value per molecule, from positions"
LINKS = "scores pairs of nodes"
FUNCTION = "a function for explanations"

MODELS: dict[str, list[Variant]] = {
    "MLP": [refused("", lambda d: gnn.MLP([W, W, W]), reason="passes no messages", match="MessagePassing",
                    call=lambda model, batch: model(batch.x))],
    "GCN": [
        exact("", lambda d: gcn()),
        exact("edge_weight", lambda d: gcn(), "edge_weight"),
        exact("dropout, act_first, jk='cat'", lambda d: gcn(dropout=0.5, act_first=True, jk="cat")),
        exact("jk='lstm'", lambda d: gcn(jk="lstm")),
        exact("norm='batch_norm'", lambda d: gcn(norm="batch_norm")),
        exact("norm='layer_norm'", lambda d: gcn(norm="layer_norm")),
        exact("norm=LayerNorm(mode='node')", lambda d: gcn(norm="layer_norm", norm_kwargs={"mode": "node"})),
        exact("norm='graph_norm'", lambda d: gcn(norm="graph_norm")),
        exact("norm='instance_norm'", lambda d: gcn(norm="instance_norm")),
        exact("norm='pair_norm'", lambda d: gcn(norm="pair_norm")),
        exact("norm=PairNorm(scale_individually)", lambda d: gcn(norm=gnn.PairNorm(scale_individually=True))),
        exact("norm=MeanSubtractionNorm()", lambda d: gcn(norm=gnn.MeanSubtractionNorm())),
        exact("norm='diff_group_norm'", lambda d: gcn(norm="diff_group_norm", norm_kwargs={"groups": 2})),
        exact("norm=GraphSizeNorm()", lambda d: gcn(norm=gnn.GraphSizeNorm())),
        exact("lazy", lambda d: gnn.GCN(-1, W, 2, W)),
    ],
    "GraphSAGE": [
        exact("jk='max'", lambda d: gnn.GraphSAGE(W, W, 2, W, jk="max")),
        exact("aggr='max', norm='batch_norm'", lambda d: gnn.GraphSAGE(W, W, 2, W, aggr="max", norm="batch_norm")),
    ],
    "GIN": [
        exact("norm='batch_norm'", lambda d: gnn.GIN(W, W, 2, W, norm="batch_norm")),
        exact("jk='cat', train_eps", lambda d: gnn.GIN(W, W, 2, W, jk="cat", train_eps=True)),
    ],
    "GAT": [
        exact("heads", lambda d: gnn.GAT(W, W, 2, W, heads=2)),
        exact("v2, edge_attr, norm='layer_norm'", lambda d: gnn.GAT(
            W, W, 2, W, v2=True, edge_dim=E, norm="layer_norm"), "edge_attr"),
    ],
    "PNA": [
        exact("", lambda d: gnn.PNA(W, W, 2, W, aggregators=["mean", "max"], scalers=["identity"], deg=degrees(d))),
        exact("edge_attr", lambda d: gnn.PNA(W, W, 2, W, aggregators=["sum", "std"], scalers=["linear"],
                                             deg=degrees(d), edge_dim=E), "edge_attr"),
    ],
    "EdgeCNN": [
        exact("", lambda d: gnn.EdgeCNN(W, W, 2, W)),
        exact("norm='batch_norm'", lambda d: gnn.EdgeCNN(W, W, 2, W, norm="batch_norm")),
        refused("norm='graph_norm'", lambda d: gnn.EdgeCNN(W, W, 2, W, norm="graph_norm"), match="GraphNorm",
                reason="normalises over all edges"),
    ],
    "JumpingKnowledge": [aside("a part of models; see GCN(jk=...)")],
    "HeteroJumpingKnowledge": [aside("a part of heterogeneous models")],
    "MetaLayer": [
        refused("", lambda d: gnn.MetaLayer(None, Node()), "edge_attr",
                reason="passes messages without PyG's MessagePassing",
                match="^(?!.*needs no compensation).*MessagePassing",
                call=lambda model, batch: model(batch.x, batch.edge_index, batch.edge_attr)[0]),
    ],
    "Node2Vec": [aside("embeds nodes without features, by random walks")],
    "DeepGraphInfomax": [
        refused("", infomax, reason="shuffles the rows of all nodes", match="random",
                call=lambda model, batch: model(batch.x, batch.edge_index)[1]),
    ],
    "InnerProductDecoder": [aside(LINKS)],
    "GAE": [exact("", lambda d: gnn.GAE(gcn()))],
    "VGAE": [exact("two outputs", lambda d: gnn.VGAE(Two()))],
    "ARGA": [exact("", lambda d: gnn.ARGA(gcn(), mlp()))],
    "ARGVA": [exact("two outputs", lambda d: gnn.ARGVA(Two(), mlp()))],
    "SignedGCN": [exact("edges split by sign", lambda d: gnn.SignedGCN(W, W, 2), "edge_type", call=by_sign)],
    "RENet": [aside("forecasts events of a temporal knowledge graph")],
    "GraphUNet": [
        refused("", lambda d: gnn.GraphUNet(W, W, W, depth=1), reason="pools: keeps the best nodes of all",
                match="GraphUNet.*pool|TopKPooling"),
    ],
    "SchNet": [aside(MOLECULE)],
    "DimeNet": [aside(MOLECULE)],
    "DimeNetPlusPlus": [aside(MOLECULE)],
    "GPSE": [
        exact("its representation of the nodes", encoder, call=lambda model, batch: model(batch)[0]),
    ],
    "GPSENodeEncoder": [aside("encodes each node by itself; passes no messages")],
    "to_captum_model": [aside(FUNCTION)],
    "to_captum_input": [aside(FUNCTION)],
    "captum_output_to_dicts": [aside(FUNCTION)],
    "MetaPath2Vec": [aside("embeds nodes without features, by random walks")],
    "DeepGCNLayer": [
        exact("block='res+'", lambda d: Deep([layer(), layer()])),
        exact("block='dense'", lambda d: Deep([layer(block="dense"), layer(block="dense")])),
        exact("ckpt_grad", lambda d: Deep([layer(ckpt_grad=True), layer(ckpt_grad=True)])),
    ],
    "TGNMemory": [aside("remembers events of a temporal graph")],
    "LabelPropagation": [
        exact("one-hot labels, edge_weight", lambda d: gnn.LabelPropagation(3, 0.8), "edge_weight", call=wide_labels),
        refused("labels as integers", lambda d: gnn.LabelPropagation(3, 0.8), call=labels, alter=rare,
                match="part of the graph|LabelPropagation",
                reason="counts the classes that it sees; give it one-hot labels"),
    ],
    "CorrectAndSmooth": [
        refused("", lambda d: gnn.CorrectAndSmooth(2, 0.8, 2, 0.5), call=soft, match="CorrectAndSmooth|all nodes",
                reason="scales by the errors of all training nodes"),
    ],
    "AttentiveFP": [
        refused("", lambda d: gnn.AttentiveFP(W, W, W, E, 2, 2), "edge_attr", "batch",
                reason="pools: one row per graph", match="one row per node|pool"),
    ],
    "RECT_L": [exact("edge_weight", lambda d: gnn.RECT_L(W, W), "edge_weight")],
    "LINKX": [
        refused("", lambda d: gnn.LINKX(d.num_nodes, W, W, W, 2), reason="has a weight for every node of the graph",
                match="LINKX.*every node of the graph"),
    ],
    "LightGCN": [
        refused("its embeddings", lambda d: gnn.LightGCN(d.num_nodes, W, 2), call=embedding,
                reason="has an embedding for every node of the graph", match="every node of the graph"),
    ],
    "MaskLabel": [
        exact("method='add'", lambda d: Masked("add")),
        exact("method='concat'", lambda d: Masked("concat")),
    ],
    "GroupAddRev": [exact("", lambda d: Deep([reversible(), reversible()]))],
    "GNNFF": [aside(MOLECULE)],
    "PMLP": [
        exact("norm=False", lambda d: gnn.PMLP(W, W, W, 2, norm=False)),
        exact("", lambda d: gnn.PMLP(W, W, W, 2)),
    ],
    "NeuralFingerprint": [
        refused("", lambda d: gnn.NeuralFingerprint(W, W, W, 2), reason="pools: one row per graph",
                match="one row per node|pool"),
    ],
    "ViSNet": [aside(MOLECULE)],
    "LPFormer": [aside(LINKS)],
    "SGFormer": [
        refused("", lambda d: gnn.SGFormer(W, W, W), "batch", reason="attends over all nodes",
                match="SGFormer.*attends over all nodes"),
    ],
    "Polynormer": [
        exact("its local stage", lambda d: gnn.Polynormer(W, W, W, local_layers=2), "batch"),
        refused("its global stage", global_polynormer, "batch", reason="attends over all nodes",
                match="Polynormer.*attends over all nodes"),
    ],
    "ARLinkPredictor": [aside(LINKS)],
}  # fmt: skip
