"""Training steps of Hugging Face's BERT in FP32: random weights and tokens, AdamW."""

import argparse
import json
import statistics
import time

import torch
from transformers import BertConfig, BertForMaskedLM

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--width", type=int, default=768)
args = parser.parse_args()
torch.manual_seed(0)
with torch.device("cuda"):
    model = BertForMaskedLM(BertConfig(hidden_size=args.width, num_hidden_layers=6, intermediate_size=4 * args.width,
                                       hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    tokens = torch.randint(30522, (args.batch, 512))
optimizer, times, losses = torch.optim.AdamW(model.parameters(), lr=1e-4), [], []
for _ in range(args.steps):
    torch.cuda.synchronize()
    start = time.perf_counter()
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
    losses.append(float(loss))
print(json.dumps({"ms": 1e3 * statistics.median(times[3:]), "numbers": losses[:4]}))
