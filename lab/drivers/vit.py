"""Training steps of Hugging Face's ViT in FP32: random weights and images, AdamW."""

import torch
from steps import options
from training import finish, setup, train
from transformers import ViTConfig, ViTForImageClassification

args = options(batch=48, width=768, layers=6)
dtype = setup(args)
with torch.device(args.device):
    model = ViTForImageClassification(ViTConfig(
        hidden_size=args.width, num_hidden_layers=args.layers, intermediate_size=4 * args.width, num_labels=1000))
    images = torch.randn(args.batch, 3, 224, 224).to(dtype)
    labels = torch.randint(1000, (args.batch,))
finish(args, model)
train(args, model, lambda: model(pixel_values=images, labels=labels).loss)
