"""A GPT-2 of Hugging Face that learns to sort digits: a whole training.

    python examples/hf_gpt2.py compile --pef-name=hf_gpt2
    python examples/hf_gpt2.py run --pef=out/hf_gpt2/hf_gpt2.pef --log-dir=out/log
    python examples/hf_gpt2.py test --pef=out/hf_gpt2/hf_gpt2.pef
    python examples/hf_gpt2.py measure-performance --pef=out/hf_gpt2/hf_gpt2.pef
    python examples/hf_gpt2.py measure-sections --pef=out/hf_gpt2/hf_gpt2.pef

The model is shown ``5 2 9 >`` and has to go on with ``2 5 9``. Lines have several lengths and are
filled up to one. The training warms up and decays, is evaluated after each epoch, and writes a
checkpoint then; with ``--resume`` it goes on from there, to the same weights as without the break:

    python examples/hf_gpt2.py run --pef=out/hf_gpt2/hf_gpt2.pef --checkpoint=gpt2.pt --stop-after=2
    python examples/hf_gpt2.py run --pef=out/hf_gpt2/hf_gpt2.pef --checkpoint=gpt2.pt --resume \
        --save-pretrained=out/sorter
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.pef_utils import get_pefmeta

SEPARATOR, PAD, VOCABULARY = 10, 11, 12
SHORTEST, LONGEST = 3, 6
LENGTH = 2 * LONGEST + 1
"""Tokens of a line: digits, the separator, and the digits sorted."""
IGNORED = -100  # what Hugging Face's loss leaves out
TEST_LINES = 500

Batch = dict[str, torch.Tensor]


def add_common_args(parser: argparse.ArgumentParser) -> None:
    """Options of every sub-command."""
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--max-grad-norm", type=float, default=1.0)


def add_run_args(parser: argparse.ArgumentParser) -> None:
    """Options of ``run``."""
    parser.add_argument("-e", "--num-epochs", type=int, default=8)
    parser.add_argument("--lines", type=int, default=6400, help="lines to train with")
    parser.add_argument("--warmup-steps", type=int, default=50)
    parser.add_argument(
        "--checkpoint", type=Path, help="write a checkpoint to this file after each epoch"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--stop-after", type=int, help="stop after this many of the epochs")
    parser.add_argument("--save-pretrained", type=Path, help="write a folder for from_pretrained()")


def make_lines(count: int, seed: int) -> Batch:
    """Return lines of random digits as the model takes them, filled up to one length."""
    drawn = torch.Generator().manual_seed(seed)
    tokens = torch.full((count, LENGTH), PAD)
    labels = torch.full((count, LENGTH), IGNORED)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count,), generator=drawn)
    for row, length in enumerate(lengths.tolist()):
        digits = torch.randint(10, (length,), generator=drawn)
        tokens[row, :length] = digits
        tokens[row, length] = SEPARATOR
        tokens[row, length + 1 : 2 * length + 1] = digits.sort().values
        labels[row, length + 1 : 2 * length + 1] = digits.sort().values
    return {"input_ids": tokens, "attention_mask": (tokens != PAD).long(), "labels": labels}


def batches(lines: Batch, size: int, order: torch.Tensor) -> Iterator[Batch]:
    """Yield the lines in batches, in an order."""
    for picked in order.split(size):
        yield {
            name: samba.from_torch_tensor(tensor[picked], name=name, batch_dim=0)
            for name, tensor in lines.items()
        }


def make_model(args: argparse.Namespace) -> GPT2LMHeadModel:
    """Return a small GPT-2; a trained one would come from ``from_pretrained``."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=args.heads,
        bos_token_id=SEPARATOR,
        eos_token_id=PAD,
        pad_token_id=PAD,
        use_cache=False,  # the device has no use for the cache of keys and values
    )
    return GPT2LMHeadModel(config)


def make_optimizer(args: argparse.Namespace, model: nn.Module) -> samba.optim.AdamW:
    """Return AdamW that decays matrices only."""
    params = list(model.parameters())
    return samba.optim.AdamW(
        [
            {"params": [p for p in params if p.dim() > 1], "weight_decay": args.weight_decay},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=args.lr,
        betas=(0.9, 0.999),
        max_grad_norm=args.max_grad_norm,
    )


def train(
    args: argparse.Namespace, model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer
) -> None:
    """Train with a schedule, evaluate and write a checkpoint after each epoch."""
    lines, held_out = make_lines(args.lines, seed=1), make_lines(TEST_LINES, seed=2)
    steps_per_epoch = args.lines // args.batch_size
    scheduler = get_linear_schedule_with_warmup(
        optimizer, args.warmup_steps, steps_per_epoch * args.num_epochs
    )
    first = 0
    checkpoint = None
    if args.checkpoint is not None:
        checkpoint = utils.TrainingCheckpoint(
            args.checkpoint, model, optimizer, scheduler=scheduler
        )
        if args.resume:
            saved = checkpoint.load()
            first = 0 if saved is None else saved["epochs"]
    evaluator = samba.session.evaluator(model)
    for epoch in range(first, min(args.num_epochs, args.stop_after or args.num_epochs)):
        # Of an epoch's own seed, so that it is the same after a break.
        order = torch.randperm(args.lines, generator=torch.Generator().manual_seed(epoch))
        total = 0.0
        for batch in batches(lines, args.batch_size, order[: steps_per_epoch * args.batch_size]):
            loss, _ = samba.session.run(batch, model.output_tensors)
            scheduler.step()  # the next run takes the rate from the optimizer
            total += loss.item()
        mean, rate = total / steps_per_epoch, scheduler.get_last_lr()[0]
        print(f"Epoch [{epoch + 1}/{args.num_epochs}], Loss: {mean:.4f}, next rate {rate:.6f}")
        evaluate(args, evaluator, held_out)
        if checkpoint is not None:
            checkpoint.save(epochs=epoch + 1)
    if args.save_pretrained is not None:
        save_pretrained(model, args.save_pretrained)


def evaluate(args: argparse.Namespace, evaluator: Any, lines: Batch) -> None:
    """Score lines that were not trained; the last batch is smaller."""
    right, total = 0, 0.0
    count = len(lines["labels"])
    for batch in batches(lines, args.batch_size, torch.arange(count)):
        loss, logits = evaluator.run(batch)
        labels = samba.to_torch(batch["labels"])[:, 1:]
        found = samba.to_torch(logits).argmax(-1)[:, :-1]
        right += int(((found == labels) | (labels == IGNORED)).all(1).sum())
        total += loss.item() * len(labels)
    print(f"Test Accuracy: {100 * right / count:.2f}  Loss: {total / count:.4f}")


def save_pretrained(model: GPT2LMHeadModel, folder: Path) -> None:
    """Write a folder that ``GPT2LMHeadModel.from_pretrained`` reads, on any machine."""
    samba.session.to_cpu(model)
    plain = GPT2LMHeadModel(model.config)
    state = {name: samba.to_torch(tensor) for name, tensor in model.state_dict().items()}
    plain.load_state_dict(state)
    plain.save_pretrained(folder)
    print(f"Saved: {folder}")


def test(model: GPT2LMHeadModel, inputs: Batch) -> None:
    """Compare outputs and gradients of the device with plain PyTorch, dropout off."""
    model.eval()
    gold = model(**inputs)
    gold.loss.backward()
    loss, logits = samba.session.run(
        input_tensors=inputs,
        output_tensors=model.output_tensors,
        section_types=["fwd", "bckwd"],
        train=False,
    )
    utils.assert_close(loss, gold.loss, "loss", threshold=1e-5, rtol=1e-5)
    utils.assert_close(logits, gold.logits, "logits", threshold=1e-5, rtol=1e-5)
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
    model = samba.from_torch_model_(make_model(args))
    inputs = next(
        batches(make_lines(args.batch_size, 0), args.batch_size, torch.arange(args.batch_size))
    )
    optimizer = make_optimizer(args, model)

    if args.command == "compile":
        samba.session.compile(
            model,
            inputs,
            optimizer,
            name="hf_gpt2",
            app_dir=utils.get_file_dir(__file__),
            config_dict=vars(args),
            pef_metadata=get_pefmeta(args, model),
        )
        return

    utils.trace_graph(model, inputs, optimizer, pef=args.pef, mapping=args.mapping)
    if args.command == "run":
        train(args, model, optimizer)
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
