"""Training steps of Hugging Face's GPT-2 in FP32: random weights and tokens, AdamW."""

import torch
from steps import options
from training import finish, setup, train
from transformers import GPT2Config, GPT2LMHeadModel

args = options(batch=8, width=768, layers=6, tokens=1024)
setup(args)
with torch.device(args.device):
    model = GPT2LMHeadModel(GPT2Config(n_embd=args.width, n_layer=args.layers, resid_pdrop=0.0, embd_pdrop=0.0,
                                       attn_pdrop=0.0))
    tokens = torch.randint(50257, (args.batch, args.tokens))
finish(args, model)
train(args, model, lambda: model(input_ids=tokens, labels=tokens).loss)
