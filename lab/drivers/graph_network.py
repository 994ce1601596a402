"""PyTorch Geometric: training steps of a graph convolutional network on a random graph."""

import torch
from steps import options
from torch_geometric.nn import GCN
from training import finish, setup, train

args = options(nodes=32768, edges=131072, features=1024, width=1024, layers=3)
dtype = setup(args)
with torch.device(args.device):
    model = GCN(args.features, args.width, args.layers, out_channels=64)
    x, edges = torch.randn(args.nodes, args.features).to(dtype), torch.randint(args.nodes, (2, args.edges))
    labels = torch.randint(64, (args.nodes,))
finish(args, model)
train(args, model, lambda: torch.nn.functional.cross_entropy(model(x, edges), labels))
