"""Inference by Hugging Face's Llama in FP32: the logits of a batch of prompts, random weights and tokens."""

import torch
from steps import options
from training import finish, infer, setup
from transformers import LlamaConfig, LlamaForCausalLM

args = options(batch=4, width=2048, layers=4, tokens=1024)
setup(args)
with torch.device(args.device):
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=args.width, num_hidden_layers=args.layers, intermediate_size=11 * args.width // 4,
        num_attention_heads=args.width // 64, num_key_value_heads=args.width // 256))
    tokens = torch.randint(32000, (args.batch, args.tokens))
finish(args, model)
infer(args, model, lambda: model(input_ids=tokens, use_cache=False).logits)
