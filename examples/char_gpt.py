"""A small GPT that learns to write like Python's own documentation, letter by letter.

python examples/char_gpt.py compile --pef-name=char_gpt
python examples/char_gpt.py run --pef=out/char_gpt/char_gpt.pef --num-steps=1000
python examples/char_gpt.py test --pef=out/char_gpt/char_gpt.pef
python examples/char_gpt.py measure-performance --pef=out/char_gpt/char_gpt.pef
python examples/char_gpt.py measure-sections --pef=out/char_gpt/char_gpt.pef
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.pef_utils import get_pefmeta

VOCABULARY = 128  # ASCII: the token of a letter is its code

BOOKS = (
    "argparse ast calendar codecs collections configparser contextlib copy csv dataclasses "
    "datetime decimal difflib email enum fractions functools heapq inspect io ipaddress "
    "itertools json logging operator os pathlib pickle pprint queue random re sched shelve "
    "shutil socket statistics string subprocess tarfile tempfile textwrap threading timeit "
    "tokenize traceback types unittest uuid warnings weakref zipfile"
)
"""Modules of the standard library whose documentation strings are the text."""


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a two-layer network, each behind a LayerNorm and bridged."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder-only transformer; returns the mean loss and the logits."""

    def __init__(self, vocabulary: int, length: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self, token_ids: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(token_ids.shape[1])
        x = self.tokens(token_ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


def add_common_args(parser: argparse.ArgumentParser) -> None:
    """Options of every sub-command."""
    parser.add_argument("-b", "--batch-size", type=int, default=8)
    parser.add_argument(
        "--length", type=int, default=64, help="letters in the context of the model"
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--max-grad-norm", type=float, default=1.0)


def add_run_args(parser: argparse.ArgumentParser) -> None:
    """Options of ``run``."""
    parser.add_argument("--num-steps", type=int, default=1000)
    parser.add_argument("--warmup-steps", type=int, default=50)
    parser.add_argument("--sample", type=int, default=200, help="letters to write at the end")


def load_text() -> torch.Tensor:
    """Return the documentation strings of :data:`BOOKS` as one sequence of letter codes."""
    docs: dict[str, None] = {}  # ordered, and every string only once
    for name in BOOKS.split():
        module = importlib.import_module(name)
        members = [value for _, value in sorted(vars(module).items())]
        classes = [value for value in members if inspect.isclass(value)]
        methods = [value for c in classes for _, value in sorted(vars(c).items())]
        for value in (module, *members, *methods):
            if value is module or inspect.isclass(value) or inspect.isroutine(value):
                docs[inspect.getdoc(value) or ""] = None
    return torch.tensor(list("\n\n".join(docs).encode("ascii", "ignore")))


def make_inputs(args: argparse.Namespace) -> tuple[samba.SambaTensor, samba.SambaTensor]:
    """Return inputs of the right shapes, for tracing."""
    shape = (args.batch_size, args.length)
    token_ids = samba.randint(VOCABULARY, shape, name="token_ids", batch_dim=0)
    targets = samba.randint(VOCABULARY, shape, name="targets", batch_dim=0)
    return token_ids, targets


def make_optimizer(args: argparse.Namespace, model: nn.Module) -> samba.optim.AdamW:
    """Return AdamW that decays matrices only."""
    params = list(model.parameters())
    return samba.optim.AdamW(
        [
            {"params": [p for p in params if p.dim() > 1], "weight_decay": args.weight_decay},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=args.lr,
        betas=(0.9, 0.99),
        max_grad_norm=args.max_grad_norm,
    )


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """Return the rate for a step: a linear rise, then half a cosine down to a tenth."""
    if step < args.warmup_steps:
        return args.lr * (step + 1) / args.warmup_steps
    done = (step - args.warmup_steps) / max(1, args.num_steps - args.warmup_steps)
    return args.lr * (0.55 + 0.45 * math.cos(math.pi * done))


def train(args: argparse.Namespace, model: nn.Module) -> None:
    """Train on random stretches of the text, then write some."""
    text = load_text()
    recent: list[float] = []
    for step in range(args.num_steps):
        starts = torch.randint(len(text) - args.length, (args.batch_size, 1))
        stretch = text[starts + torch.arange(args.length + 1)]
        inputs = (
            samba.from_torch_tensor(stretch[:, :-1], name="token_ids", batch_dim=0),
            samba.from_torch_tensor(stretch[:, 1:], name="targets", batch_dim=0),
        )
        loss, _ = samba.session.run(
            input_tensors=inputs,
            output_tensors=model.output_tensors,
            hyperparam_dict={"lr": learning_rate(args, step)},
        )
        recent.append(samba.to_torch(loss).item())
        if (step + 1) % 100 == 0 or step + 1 == args.num_steps:
            mean = sum(recent) / len(recent)
            print(f"Step [{step + 1}/{args.num_steps}], Loss: {mean:.4f}")
            recent.clear()

    samba.session.to_cpu(model)
    print(write(model, args.length, args.sample))


def write(model: nn.Module, length: int, letters: int) -> str:
    """Let the model continue an empty line, on the CPU."""
    ids = torch.full((1, 1), ord("\n"))
    with torch.no_grad():
        for _ in range(letters):
            seen = ids[:, -length:]
            _, logits = model(seen, seen)
            chances = samba.to_torch(logits)[0, -1].softmax(0)
            ids = torch.cat([ids, torch.multinomial(chances, 1)[None]], dim=1)
    return bytes(ids[0, 1:].tolist()).decode("ascii")


def test(model: nn.Module, inputs: tuple[samba.SambaTensor, ...]) -> None:
    """Compare outputs and gradients of the device with plain PyTorch."""
    gold_loss, gold_logits = model(*inputs)
    gold_loss.backward()
    loss, logits = samba.session.run(
        input_tensors=inputs,
        output_tensors=model.output_tensors,
        section_types=["fwd", "bckwd"],
    )
    utils.assert_close(loss, gold_loss, "loss", threshold=1e-5, rtol=1e-5)
    utils.assert_close(logits, gold_logits, "logits", threshold=1e-5, rtol=1e-5)
    for name, param in model.named_parameters():
        utils.assert_close(param.sn_grad, param.grad, f"{name} grad", threshold=1e-5, rtol=1e-5)
    print("Test passed: the device agrees with PyTorch")


def main(argv: list[str]) -> None:
    """Run one sub-command."""
    utils.set_seed(256)
    args = parse_app_args(
        argv=argv,
        dev_mode=True,
        common_parser_fn=add_common_args,
        run_parser_fn=add_run_args,
    )
    inputs = make_inputs(args)
    model = GPT(VOCABULARY, args.length, args.layers, args.heads, args.width)
    samba.from_torch_model_(model)
    optimizer = make_optimizer(args, model)

    if args.command == "compile":
        samba.session.compile(
            model,
            inputs,
            optimizer,
            name="char_gpt",
            app_dir=utils.get_file_dir(__file__),
            config_dict=vars(args),
            pef_metadata=get_pefmeta(args, model),
        )
        return

    utils.trace_graph(model, inputs, optimizer, pef=args.pef, mapping=args.mapping)
    if args.command == "run":
        train(args, model)
    elif args.command == "test":
        test(model, inputs)
    elif args.command == "measure-performance":
        utils.measure_performance(
            model,
            inputs,
            args.batch_size,
            args.n_chips,
            args.inference,
            run_graph_only=args.run_graph_only,
            n_iterations=args.num_iterations,
            json=args.bench_report_json,
            min_duration=args.min_duration,
        )
    elif args.command == "measure-sections":
        utils.measure_sections(
            model,
            inputs,
            num_sections=args.num_sections,
            n_iterations=args.num_iterations,
            batch_size=args.batch_size,
            json=args.bench_report_json,
            min_duration=args.min_duration,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
