"""Sentence-Transformers: embeddings of sentences of random words by a model with random weights, which is saved first.
"""

import random
import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, models
from steps import options
from training import finish, infer, setup
from transformers import BertConfig, BertModel, BertTokenizer

args = options(sentences=512, width=768, layers=6, words=120)
setup(args)
words = [f"w{i}" for i in range(20000)]
with tempfile.TemporaryDirectory() as folder:
    vocabulary = Path(folder, "vocab.txt")
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    BertTokenizer(str(vocabulary)).save_pretrained(folder)
    BertModel(BertConfig(
        vocab_size=len(words) + 5, hidden_size=args.width, num_hidden_layers=args.layers,
        num_attention_heads=args.width // 64, intermediate_size=4 * args.width)).save_pretrained(folder)
    transformer = models.Transformer(folder, max_seq_length=128)
model = SentenceTransformer(modules=[transformer, models.Pooling(args.width)], device=args.device)
finish(args, model)
draw = random.Random(0)
sentences = [" ".join(draw.choices(words, k=args.words)) for _ in range(args.sentences)]
infer(args, model, lambda: torch.as_tensor(model.encode(sentences, batch_size=128, convert_to_tensor=True)))
