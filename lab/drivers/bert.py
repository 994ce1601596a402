"""Training steps of Hugging Face's BERT in FP32: random weights and tokens, AdamW."""

import torch
from steps import options
from training import finish, setup, train
from transformers import BertConfig, BertForMaskedLM

args = options(batch=16, width=768, layers=6, tokens=512)
setup(args)
with torch.device(args.device):
    model = BertForMaskedLM(BertConfig(
        hidden_size=args.width, num_hidden_layers=args.layers, intermediate_size=4 * args.width,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    tokens = torch.randint(30522, (args.batch, args.tokens))
finish(args, model)
train(args, model, lambda: model(input_ids=tokens, labels=tokens).loss)
