"""Every class of `torch_geometric.nn.conv` with its verdict."""

from typing import Any

import torch_geometric.nn as gnn
from pyg_calls import WIDTH as W
from pyg_calls import (
    before,
    by_target,
    column,
    given,
    in_fours,
    layered,
    looped,
    one_hot,
    paired,
    recolored,
    signed,
    typed,
)
from pyg_zoo import EDGE_WIDTH as E
from pyg_zoo import KINDS, RELATIONS, Variant, absent, aside, degrees, exact, mlp, refused
from torch import nn

WEIGHT, ATTR, TYPE, ROOT = given("edge_weight"), given("edge_attr"), given("edge_type"), before("root")


METADATA = (["node"], [("node", "to", "node")])
POINTS = before("pos")
CONNECTED = ("directed", "undirected", "acyclic")
PADDED: dict[str, Any] = {
    "alter": by_target,
    "reason": "pads the neighbours of every node to the largest degree of the graph, and reads the padding",
}
SEVERAL = {"aggregators": ["mean", "min", "max", "std"], "scalers": ["identity", "amplification", "attenuation"]}

CONVS: dict[str, list[Variant]] = {
    "MessagePassing": [aside("the base class; your own convs are tested in tests/laws/zoo.py")],
    "SimpleConv": [
        exact("mean, combine_root='self_loop'", lambda d: gnn.SimpleConv("mean", "self_loop")),
        exact("sum, edge_weight", lambda d: gnn.SimpleConv(), WEIGHT),
        exact("max, combine_root='cat'", lambda d: gnn.SimpleConv("max", "cat"), WEIGHT),
        exact("several aggregations", lambda d: gnn.SimpleConv(["mean", "max", "std"], "cat")),
    ],
    "GCNConv": [
        exact("", lambda d: gnn.GCNConv(W, W)),
        exact("edge_weight", lambda d: gnn.GCNConv(W, W), WEIGHT),
        exact("a column of edge_attr", lambda d: gnn.GCNConv(W, W), column),
        exact("improved, no bias", lambda d: gnn.GCNConv(W, W, improved=True, bias=False), WEIGHT),
        exact("add_self_loops=False", lambda d: gnn.GCNConv(W, W, add_self_loops=False), WEIGHT),
        exact("normalize=False", lambda d: gnn.GCNConv(W, W, normalize=False), WEIGHT),
        exact("cached", lambda d: gnn.GCNConv(W, W, cached=True), WEIGHT),
        exact("flow='target_to_source'", lambda d: gnn.GCNConv(W, W, flow="target_to_source"), WEIGHT),
        exact("aggr='max'", lambda d: gnn.GCNConv(W, W, aggr="max")),
        exact("lazy", lambda d: gnn.GCNConv(-1, W)),
    ],
    "ChebConv": [
        exact("K=1", lambda d: gnn.ChebConv(W, W, K=1)),
        exact("K=3, edge_weight", lambda d: gnn.ChebConv(W, W, K=3), WEIGHT),
        exact("K=2, normalization='rw'", lambda d: gnn.ChebConv(W, W, K=2, normalization="rw"),
              lambda conv, x, d: conv(x, d.edge_index, lambda_max=x.new_tensor(3.0))),
    ],
    "SAGEConv": [
        exact("", lambda d: gnn.SAGEConv(W, W)),
        exact("aggr='max'", lambda d: gnn.SAGEConv(W, W, aggr="max")),
        refused("aggr='lstm'", lambda d: gnn.SAGEConv(W, W, aggr="lstm"), match="LSTMAggregation", **PADDED),
        exact("aggr='median', self-loops", lambda d: gnn.SAGEConv(W, W, aggr="median"), alter=looped),
        refused("aggr='median', nodes that receive nothing", lambda d: gnn.SAGEConv(W, W, aggr="median"),
                reason="PyG's own fails where the first row receives nothing", match="IndexError|Median",
                not_on=("acyclic",)),
        refused("aggr=GRUAggregation", lambda d: gnn.SAGEConv(W, W, aggr=gnn.aggr.GRUAggregation(W, W)),
                match="GRUAggregation", **PADDED),
        exact("several aggregations", lambda d: gnn.SAGEConv(W, W, aggr=["mean", "max", "var"])),
        exact("aggr=SoftmaxAggregation", lambda d: gnn.SAGEConv(W, W, aggr=gnn.aggr.SoftmaxAggregation(learn=True))),
        exact("project, normalize", lambda d: gnn.SAGEConv(W, W, project=True, normalize=True)),
        exact("a pair, aggr='sum'", lambda d: gnn.SAGEConv((W, W), W, aggr="sum"), paired),
        exact("root_weight=False, flow='target_to_source'",
              lambda d: gnn.SAGEConv(W, W, root_weight=False, flow="target_to_source")),
        exact("lazy", lambda d: gnn.SAGEConv(-1, W)),
    ],
    "CuGraphSAGEConv": [absent(lambda d: gnn.CuGraphSAGEConv(W, W), reason="pylibcugraphops")],
    "GraphConv": [
        exact("edge_weight", lambda d: gnn.GraphConv(W, W), WEIGHT),
        exact("aggr='max'", lambda d: gnn.GraphConv(W, W, aggr="max"), WEIGHT),
        exact("aggr='mean', lazy", lambda d: gnn.GraphConv(-1, W, aggr="mean")),
    ],
    "GravNetConv": [
        absent(lambda d: gnn.GravNetConv(W, W, 2, 2, 3), lambda conv, x, d: conv(x), reason="torch-cluster"),
    ],
    "GatedGraphConv": [exact("edge_weight", lambda d: gnn.GatedGraphConv(W, 2), WEIGHT)],
    "ResGatedGraphConv": [
        exact("", lambda d: gnn.ResGatedGraphConv(W, W)),
        exact("edge_attr", lambda d: gnn.ResGatedGraphConv(W, W, edge_dim=E), ATTR),
    ],
    "GATConv": [
        exact("heads, concat", lambda d: gnn.GATConv(W, W // 2, heads=2)),
        exact("heads, concat=False, edge_attr", lambda d: gnn.GATConv(W, W, heads=2, concat=False, edge_dim=E), ATTR),
        exact("edge_weight as edge_attr", lambda d: gnn.GATConv(W, W, edge_dim=1, fill_value=1.0), WEIGHT),
        exact("add_self_loops=False, residual", lambda d: gnn.GATConv(W, W, add_self_loops=False, residual=True)),
        exact("a pair, flow='target_to_source'",
              lambda d: gnn.GATConv((W, W), W, add_self_loops=False, flow="target_to_source"), paired),
        exact("lazy", lambda d: gnn.GATConv(-1, W)),
        exact("return_attention_weights, unused", lambda d: gnn.GATConv(W, W),
              lambda conv, x, d: conv(x, d.edge_index, return_attention_weights=True)[0]),
    ],
    "CuGraphGATConv": [absent(lambda d: gnn.CuGraphGATConv(W, W), reason="pylibcugraphops")],
    "FusedGATConv": [absent(lambda d: gnn.FusedGATConv(W, W, add_self_loops=False), reason="dgNN")],
    "GATv2Conv": [
        exact("heads, concat=False, edge_attr", lambda d: gnn.GATv2Conv(W, W, heads=2, concat=False, edge_dim=E), ATTR),
        exact("share_weights, residual", lambda d: gnn.GATv2Conv(W, W, share_weights=True, residual=True)),
    ],
    "TransformerConv": [
        exact("heads", lambda d: gnn.TransformerConv(W, W // 2, heads=2)),
        exact("beta, edge_attr", lambda d: gnn.TransformerConv(W, W, beta=True, edge_dim=E), ATTR),
    ],
    "AGNNConv": [
        exact("", lambda d: gnn.AGNNConv()),
        exact("add_self_loops=False", lambda d: gnn.AGNNConv(add_self_loops=False)),
    ],
    "TAGConv": [
        exact("edge_weight", lambda d: gnn.TAGConv(W, W, K=2), WEIGHT),
        exact("normalize=False", lambda d: gnn.TAGConv(W, W, K=2, normalize=False), WEIGHT),
    ],
    "GINConv": [
        exact("train_eps", lambda d: gnn.GINConv(mlp(), train_eps=True)),
        exact("aggr='max'", lambda d: gnn.GINConv(mlp(), aggr="max")),
    ],
    "GINEConv": [exact("edge_attr", lambda d: gnn.GINEConv(mlp(), edge_dim=E), ATTR)],
    "ARMAConv": [
        exact("", lambda d: gnn.ARMAConv(W, W)),
        exact("stacks, layers, edge_weight", lambda d: gnn.ARMAConv(W, W, num_stacks=2, num_layers=2), WEIGHT),
        exact("shared_weights, dropout", lambda d: gnn.ARMAConv(W, W, 2, 3, shared_weights=True, dropout=0.5)),
    ],
    "SGConv": [
        exact("K=2, edge_weight", lambda d: gnn.SGConv(W, W, K=2), WEIGHT),
        exact("cached", lambda d: gnn.SGConv(W, W, K=2, cached=True)),
    ],
    "SSGConv": [exact("edge_weight", lambda d: gnn.SSGConv(W, W, alpha=0.2, K=2), WEIGHT)],
    "APPNP": [
        exact("edge_weight", lambda d: gnn.APPNP(K=3, alpha=0.1), WEIGHT, encode=True),
        exact("dropout", lambda d: gnn.APPNP(K=2, alpha=0.1, dropout=0.5), encode=True),
    ],
    "MFConv": [exact("", lambda d: gnn.MFConv(W, W, max_degree=3))],
    "RGCNConv": [
        exact("edge_type", lambda d: gnn.RGCNConv(W, W, RELATIONS), TYPE),
        exact("num_bases", lambda d: gnn.RGCNConv(W, W, RELATIONS, num_bases=2), TYPE),
        exact("num_blocks, aggr='max'", lambda d: gnn.RGCNConv(W, W, RELATIONS, num_blocks=2, aggr="max"), TYPE),
        exact("a clone of edge_type", lambda d: gnn.RGCNConv(W, W, RELATIONS),
              lambda conv, x, d: conv(x, d.edge_index, d.edge_type.clone())),
        refused("x=None", lambda d: gnn.RGCNConv(d.num_nodes, W, RELATIONS),
                lambda conv, x, d: conv(None, d.edge_index, d.edge_type),
                reason="has a weight for every node of the graph", match="every node of the graph"),
    ],
    "FastRGCNConv": [
        exact("edge_type", lambda d: gnn.FastRGCNConv(W, W, RELATIONS), TYPE),
        exact("num_bases", lambda d: gnn.FastRGCNConv(W, W, RELATIONS, num_bases=2), TYPE),
    ],
    "CuGraphRGCNConv": [absent(lambda d: gnn.CuGraphRGCNConv(W, W, RELATIONS), TYPE, reason="pylibcugraphops")],
    "RGATConv": [
        exact("edge_type", lambda d: gnn.RGATConv(W, W, RELATIONS), TYPE),
        exact("within-relation, edge_attr", lambda d: gnn.RGATConv(
            W, W // 2, RELATIONS, attention_mechanism="within-relation", heads=2, edge_dim=E),
            given("edge_type", "edge_attr")),
    ],
    "SignedConv": [
        exact("edges split by sign", lambda d: gnn.SignedConv(W, W // 2, first_aggr=True), signed),
        exact("first_aggr=False", lambda d: gnn.SignedConv(W // 2, W // 2, first_aggr=False), signed),
    ],
    "DNAConv": [
        exact("heads", lambda d: gnn.DNAConv(W, heads=2, groups=1), layered, encode=True),
        exact("cached", lambda d: gnn.DNAConv(W, cached=True), layered, encode=True),
    ],
    "PointNetConv": [
        exact("pos", lambda d: gnn.PointNetConv(mlp(W + 3), mlp()), POINTS),
        exact("add_self_loops=False", lambda d: gnn.PointNetConv(mlp(W + 3), add_self_loops=False), POINTS),
    ],
    "GMMConv": [
        exact("edge_attr", lambda d: gnn.GMMConv(W, W, dim=E, kernel_size=2), ATTR),
        exact("separate_gaussians", lambda d: gnn.GMMConv(W, W, E, 2, separate_gaussians=True), ATTR),
    ],
    "SplineConv": [absent(lambda d: gnn.SplineConv(W, W, E, 2), ATTR, reason="pyg-lib or torch-spline-conv")],
    "NNConv": [exact("edge_attr", lambda d: gnn.NNConv(W, W, nn.Linear(E, W * W), aggr="mean"), ATTR)],
    "CGConv": [exact("edge_attr, batch_norm", lambda d: gnn.CGConv(W, dim=E, batch_norm=True), ATTR)],
    "EdgeConv": [
        exact("", lambda d: gnn.EdgeConv(mlp(2 * W))),
        exact("aggr='mean'", lambda d: gnn.EdgeConv(mlp(2 * W), aggr="mean")),
    ],
    "DynamicEdgeConv": [
        absent(lambda d: gnn.DynamicEdgeConv(mlp(2 * W), 3), lambda conv, x, d: conv(x), reason="torch-cluster"),
    ],
    "XConv": [absent(lambda d: gnn.XConv(W, W, 3, 3), lambda conv, x, d: conv(x, d.pos), reason="torch-cluster")],
    "PPFConv": [exact("pos, normal", lambda d: gnn.PPFConv(mlp(W + 4), mlp()), before("pos", "normal"))],
    "FeaStConv": [
        exact("heads", lambda d: gnn.FeaStConv(W, W, heads=2)),
        exact("add_self_loops=False", lambda d: gnn.FeaStConv(W, W, add_self_loops=False)),
    ],
    "PointTransformerConv": [exact("pos", lambda d: gnn.PointTransformerConv(W, W), POINTS)],
    "HypergraphConv": [
        refused("", lambda d: gnn.HypergraphConv(W, W), reason="its edges join a node and a hyperedge",
                match="HypergraphConv.*hyperedge"),
    ],
    "LEConv": [exact("edge_weight", lambda d: gnn.LEConv(W, W), WEIGHT)],
    "PNAConv": [
        exact("", lambda d: gnn.PNAConv(W, W, **SEVERAL, deg=degrees(d))),
        exact("towers, edge_attr", lambda d: gnn.PNAConv(W, W, **SEVERAL, deg=degrees(d), edge_dim=E, towers=2), ATTR),
    ],
    "ClusterGCNConv": [
        exact("", lambda d: gnn.ClusterGCNConv(W, W)),
        exact("diag_lambda", lambda d: gnn.ClusterGCNConv(W, W, diag_lambda=0.5)),
    ],
    "GENConv": [
        exact("softmax, learn_t, edge_attr", lambda d: gnn.GENConv(W, W, learn_t=True, edge_dim=E), ATTR),
        exact("powermean, msg_norm", lambda d: gnn.GENConv(W, W, aggr="powermean", learn_p=True, msg_norm=True)),
    ],
    "GCN2Conv": [
        exact("", lambda d: gnn.GCN2Conv(W, 0.1), ROOT),
        exact("edge_weight, theta", lambda d: gnn.GCN2Conv(W, 0.1, theta=0.5, layer=1, shared_weights=False),
              lambda conv, x, d: conv(x, d.root, d.edge_index, d.edge_weight), encode=True),
    ],
    "PANConv": [absent(lambda d: gnn.PANConv(W, W, 2), lambda conv, x, d: conv(x, d.edge_index)[0],
                       reason="torch-sparse")],
    "WLConv": [
        refused("", lambda d: gnn.WLConv(), recolored, reason="refines integer colours and learns nothing",
                match="WLConv", alter=one_hot),
    ],
    "WLConvContinuous": [
        exact("", lambda d: gnn.WLConvContinuous()),
        exact("edge_weight", lambda d: gnn.WLConvContinuous(), WEIGHT),
    ],
    "FiLMConv": [
        exact("", lambda d: gnn.FiLMConv(W, W)),
        exact("edge_type", lambda d: gnn.FiLMConv(W, W, num_relations=RELATIONS), TYPE),
    ],
    "SuperGATConv": [
        exact("MX, heads", lambda d: gnn.SuperGATConv(W, W // 2, heads=2)),
        exact("SD", lambda d: gnn.SuperGATConv(W, W, attention_type="SD", add_self_loops=False)),
    ],
    "FAConv": [
        exact("", lambda d: gnn.FAConv(W), ROOT, encode=True),
        exact("cached", lambda d: gnn.FAConv(W, cached=True), ROOT),
        exact("add_self_loops=False", lambda d: gnn.FAConv(W, add_self_loops=False), ROOT),
        exact("normalize=False", lambda d: gnn.FAConv(W, normalize=False),
              lambda conv, x, d: conv(x, d.root, d.edge_index, d.edge_weight), encode=True),
    ],
    "EGConv": [
        exact("symnorm", lambda d: gnn.EGConv(W, W, num_heads=2, num_bases=2)),
        exact("sum", lambda d: gnn.EGConv(W, W, ["sum"], num_heads=2), not_on=("lonely",)),
        refused("sum, isolated last nodes", lambda d: gnn.EGConv(W, W, ["sum"], num_heads=2),
                match="EGConv.*self-loops", not_on=CONNECTED, reason="adds self-loops up to the largest id only"),
        exact("several aggregations", lambda d: gnn.EGConv(W, W, ["sum", "symnorm", "max", "std"], num_heads=3)),
        exact("add_self_loops=False", lambda d: gnn.EGConv(W, W, ["mean"], num_heads=2, add_self_loops=False)),
    ],
    "PDNConv": [
        exact("edge_attr", lambda d: gnn.PDNConv(W, W, edge_dim=E, hidden_channels=4), ATTR),
        exact("normalize=False", lambda d: gnn.PDNConv(W, W, E, 4, normalize=False, add_self_loops=False), ATTR),
    ],
    "GeneralConv": [
        exact("edge_attr", lambda d: gnn.GeneralConv(W, W, in_edge_channels=E), ATTR),
        exact("attention, heads", lambda d: gnn.GeneralConv(W, W, attention=True, heads=2, l2_normalize=True)),
    ],
    "HGTConv": [
        refused("", lambda d: gnn.HGTConv(W, W, METADATA), typed, reason="works on several node types",
                match="HGTConv.*several node types"),
    ],
    "HEATConv": [
        exact("node_type, edge_type, edge_attr", lambda d: gnn.HEATConv(W, W, KINDS, RELATIONS, 2, E, 2),
              given("node_type", "edge_type", "edge_attr")),
    ],
    "HeteroConv": [
        refused("", lambda d: gnn.HeteroConv({METADATA[1][0]: gnn.SAGEConv(W, W)}), typed,
                reason="works on several node types", match="HeteroConv.*several node types"),
    ],
    "HANConv": [
        refused("", lambda d: gnn.HANConv(W, W, METADATA), typed, reason="works on several node types",
                match="HANConv.*several node types"),
    ],
    "LGConv": [
        exact("edge_weight", lambda d: gnn.LGConv(), WEIGHT, encode=True),
        exact("normalize=False", lambda d: gnn.LGConv(normalize=False)),
    ],
    "PointGNNConv": [exact("pos", lambda d: gnn.PointGNNConv(mlp(W, 3), mlp(W + 3), mlp()), POINTS)],
    "GPSConv": [
        refused("", lambda d: gnn.GPSConv(W, gnn.GCNConv(W, W)), reason="attends over all nodes",
                match="^(?!.*per-node norm).*GPSConv.*attends over all nodes"),
    ],
    "AntiSymmetricConv": [
        exact("", lambda d: gnn.AntiSymmetricConv(W)),
        exact("num_iters=2, GATConv", lambda d: gnn.AntiSymmetricConv(W, gnn.GATConv(W, W), num_iters=2)),
    ],
    "DirGNNConv": [
        exact("GCNConv", lambda d: gnn.DirGNNConv(gnn.GCNConv(W, W))),
        exact("SAGEConv, no root", lambda d: gnn.DirGNNConv(gnn.SAGEConv(W, W), root_weight=False)),
        exact("GATConv", lambda d: gnn.DirGNNConv(gnn.GATConv(W, W))),
    ],
    "MixHopConv": [exact("edge_weight", lambda d: gnn.MixHopConv(W, W, powers=[0, 1, 2]), WEIGHT)],
    "MeshCNNConv": [
        exact("four neighbours each", lambda d: gnn.MeshCNNConv(W, W), alter=in_fours,
              not_on=("undirected",)),  # its messages are in float32 always, too coarse for differences of the loss
    ],
}  # fmt: skip
