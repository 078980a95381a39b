"""parse_app_args: built-in options, options of apps, and the conflicts between them."""

from __future__ import annotations

import logging
import sys

import pytest

from samba.argconf import parsed
from samba.argconf.options import COMMANDS, OPTIONS
from samba.support.deviations import Deviations
from samba.utils.argparser import (
    last_parsed_args,
    parse_app_args,
    parse_yaml_to_args,
)
from samba.utils.flat_yaml import YamlError, YamlMissing, YamlUnreadable, parse_flat_yaml
from tests.api.covers import covers

PEF = "--pef=x.pef"


@pytest.fixture(autouse=True)
def log_level():
    yield
    logging.getLogger("samba").setLevel(logging.NOTSET)


def fails(capsys, arguments, **functions) -> str:
    with pytest.raises(SystemExit) as caught:
        parse_app_args(arguments, **functions)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ("-b=1", {"batch_size": 1}),
        ("-b 8 -mb 8", {"batch_size": 8, "microbatch_size": 8}),
        ("-b4", {"batch_size": 4}),
        ("--batch-size=64 -mb=4 --inference", {"batch_size": 64, "inference": True}),
        ("-ws=2", {"world_size": 2}),
        ("-ws 2 --data-parallel", {"world_size": 2, "data_parallel": True}),
        ("--pef='x'", {"pef": "'x'"}),
        ("-p x.pef", {"pef": "x.pef"}),
        ("--pef-name lenet --output-folder=pef", {"pef_name": "lenet", "output_folder": "pef"}),
        ("--mapping spatial --num-spatial-batches 500", {"num_spatial_batches": 500}),
        ("--resources-scaling-factors 0.8 0.8 0.8", {"resources_scaling_factors": ["0.8"] * 3}),
        ("--resources-scaling-factors -1.0 2", {"resources_scaling_factors": ["-1.0", "2"]}),
        ("--log-level=error --num-tiles 4 --mac-v2", {"num_tiles": 4, "mac_v2": True}),
        ("--o0", {"optim_level": "o0"}),
        ("--o1 --compiler-configs-file F", {"optim_level": "o1", "compiler_configs_file": "F"}),
        ("--o0 --o3", {"optim_level": "o3"}),
        ("--mac-human-decision F --enable-conv-tiling", {"mac_human_decision": "F"}),
        ("--arch sn20 --debug", {"arch": "sn20", "debug": True}),
        ("--enable-mixed-precision-ops gemm softmax", {"batch_size": 1}),
        ("--graphamp-preset mp1 --tensor-parallel batch", {"tensor_parallel": "batch"}),
        ("--n-chips 2", {"n_chips": 2}),
        ("--num-chips 2", {"n_chips": 2}),
        ("--grad-accumulation-steps 4", {"grad_accumulation_steps": 4}),
        ("--verbose --verbose", {"verbose": 2}),
    ],
)
def test_command_lines_that_are_in_use(arguments, fields):
    args = parse_app_args(["compile", *arguments.split()])
    assert args.command == "compile"
    for name, value in fields.items():
        assert getattr(args, name) == value


DEFAULTS = {
    "batch_size": 1,
    "mapping": "section",
    "num_iterations": 100,
    "n_chips": 1,
    "num_tiles": -1,
    "num_spatial_batches": 1,
    "microbatch_size": None,
    "world_size": 1,
    "min_duration": 0.0,
    "log_level": "warning",
    "log_dir": None,
    "optim_level": "o3",
    "data_parallel_mode": "normal",
    "distlearn_config": "",
    "grad_accumulation_steps": 1,
    "default_device": "DDR",
    "num_sections": None,
    "local_rank": -1,
    "verbose": 0,
    "compiler_configs_file": "",
    "json": None,
    "bench_report_json": None,
    "acc_report_json": None,
    "compiled_stats_json": None,
    "json_counters": "",
    "resources_scaling_factors": ["-1.0"] * 4,
    "amp_level": 4,
    "recompute_ratio": -1.0,
    "tensor_parallel": "none",
    "pef_name": None,
    "output_folder": "./out",
    "inference": False,
    "data_parallel": False,
    "reduce_on_rdu": False,
    "run_graph_only": False,
    "visualize": False,
    "acc_test": False,
    "debug": False,
    "dev_mode": False,
    "gold_file_path": None,
    "yaml_config": None,
    "mac_human_decision": None,
    "resource_report_path": None,
    "verbose_report": False,
    "mock_inference": False,
    "enable_profiler": False,
    "listen_for_input": False,
}


@pytest.mark.parametrize("command", ["run", "test", "measure-performance", "measure-sections"])
@pytest.mark.parametrize("older", [True, False])
def test_the_older_name_of_a_report_is_another_for_it(command, older):
    """Apps of before read ``args.json``, later ones the longer field, whatever is typed."""
    name = "bench_report_json" if command.startswith("measure") else "acc_report_json"
    option = "--json" if older else f"--{name.replace('_', '-')}"
    args = parse_app_args([command, PEF, option, "report.json"])
    assert (args.json, getattr(args, name)) == ("report.json", "report.json")
    both = [command, PEF, "--json=a.json", f"--{name.replace('_', '-')}=b.json"]
    args = parse_app_args(both)
    assert (args.json, getattr(args, name)) == ("a.json", "b.json")


def test_an_own_option_called_json_names_no_report():
    """Where the app declares it, it may mean anything."""
    args = parse_app_args(
        ["measure-sections", PEF, "--json=data.json"],
        common_parser_fn=lambda parser: parser.add_argument("--json"),
    )
    assert (args.json, args.bench_report_json) == ("data.json", None)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_field_is_there_for_every_command(command):
    args = parse_app_args([command] if command == "compile" else [command, PEF])
    for name, value in DEFAULTS.items():
        assert getattr(args, name) == value, name
    assert args.pef == (None if command == "compile" else "x.pef")
    for option in OPTIONS:
        assert hasattr(args, option.dest)


def test_list_defaults_are_not_shared():
    first, second = parse_app_args(["run", PEF]), parse_app_args(["run", PEF])
    first.resources_scaling_factors.append("1")
    assert second.resources_scaling_factors == ["-1.0"] * 4


def test_arguments_of_the_process(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["app.py", "compile"])
    assert parse_app_args().command == "compile"


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "compile"])
def test_a_pef_is_needed_to_run(command, capsys):
    assert "required: -p/--pef" in fails(capsys, [command])


def test_mistakes(capsys):
    text = fails(capsys, [])
    assert "the following arguments are required: command" in text
    assert "{compile,run,test,measure-performance,measure-sections}" in text
    assert "unrecognized arguments: -ws 8" in fails(capsys, ["run", PEF, "-ws", "8"])
    assert "unrecognized arguments: --no-such" in fails(capsys, ["compile", "--no-such"])
    assert "invalid choice: 'train'" in fails(capsys, ["train"])
    assert "-b/--batch-size: invalid int value: 'x'" in fails(capsys, ["compile", "-b", "x"])


@pytest.mark.parametrize(
    ("line", "guess"),
    [
        ("compile --pefname=x", "Did you mean --pef-name for --pefname?"),
        ("compile --outputfolder x", "Did you mean --output-folder for --outputfolder?"),
        ("run -p x --pefname=x", "Did you mean --pef-name, which compile has, for --pefname?"),
        ("run -p x --pef-name=x", "--pef-name is an option of compile."),
        ("compile -b 8 --reduce-on-rdu", "--reduce-on-rdu is an option of run, test, measure-"),
        ("run --peff=x", "are required: -p/--pef. Did you mean --pef for --peff?"),
        ("compile --epoch 3", "Did you mean --epochs for --epoch?"),
    ],
)
def test_a_misspelt_option_is_answered_in_one_line(line, guess, capsys):
    functions = {"common_parser_fn": lambda p: p.add_argument("--epochs", type=int)}
    text = fails(capsys, line.split(), **functions)
    assert guess in text
    command = line.split()[0]
    assert text.count("\n") == 1
    assert f"{command}: error: " in text and text.endswith(f"{command} --help lists the options.\n")


@pytest.mark.parametrize("word", ["--batch", "--batch=8", "--infer", "--grad-accumulation"])
def test_an_option_is_not_abbreviated(word, capsys):
    text = fails(capsys, ["compile", word])
    assert f"unrecognized arguments: {word}. Did you mean --" in text


def test_a_word_like_no_option_is_not_guessed_at(capsys):
    assert "mean" not in fails(capsys, ["compile", "--zzzzzz", "-Z", "word"])


def test_options_of_apps_by_command(capsys):
    functions = {
        "common_parser_fn": lambda p: p.add_argument("--lr", type=float, default=0.0015),
        "run_parser_fn": lambda p: p.add_argument("-e", "--num-epochs", type=int, default=1),
        "test_parser_fn": lambda p: p.add_argument("--atol", type=float, default=0.1),
    }
    args = parse_app_args(["run", PEF, "-e", "3"], **functions)
    assert (args.lr, args.num_epochs) == (0.0015, 3)
    assert not hasattr(args, "atol")
    assert parse_app_args(["test", PEF, "--lr", "1"], **functions).lr == 1
    assert parse_app_args(["measure-sections", PEF], **functions).lr == 0.0015
    assert "unrecognized arguments: -e 3" in fails(capsys, ["test", PEF, "-e", "3"], **functions)


def test_an_app_redefines_built_in_options():
    def common(parser):
        parser.add_argument("-b", "--batch-size", type=int, default=32, metavar="B")
        parser.add_argument("--world-size", type=int, default=7)
        parser.add_argument("--data-parallel", action="store_true")
        parser.add_argument("-n", "--num-iterations", type=int, default=5)
        parser.add_argument("--visualize", action="store_true")
        parser.add_argument("--pef", default="fixed.pef")

    args = parse_app_args(["compile"], common_parser_fn=common)
    assert (args.batch_size, args.world_size, args.num_iterations) == (32, 7, 5)
    assert args.pef == "fixed.pef"
    args = parse_app_args(["compile", "-ws", "2", "-b=4"], common_parser_fn=common)
    assert (args.world_size, args.batch_size) == (2, 4)
    assert parse_app_args(["compile", "--world-size=3"], common_parser_fn=common).world_size == 3
    assert parse_app_args(["run"], common_parser_fn=common).pef == "fixed.pef"
    assert parse_app_args(["run", "-p", "y.pef"], common_parser_fn=common).pef == "y.pef"


def test_a_short_flag_taken_by_an_app_leaves_the_long_one():
    args = parse_app_args(
        ["compile", "-b", "--batch-size", "3"],
        common_parser_fn=lambda p: p.add_argument("-b", "--bias", action="store_true"),
    )
    assert (args.bias, args.batch_size) == (True, 3)


def test_the_same_option_from_both_functions():
    functions = {
        "common_parser_fn": lambda p: p.add_argument("-e", "--num-epochs", type=int, default=1),
        "run_parser_fn": lambda p: p.add_argument("-e", "--num-epochs", type=int, default=9),
    }
    assert parse_app_args(["run", PEF], **functions).num_epochs == 9
    assert parse_app_args(["test", PEF], **functions).num_epochs == 1


def test_two_options_of_an_app_for_one_field_keep_their_order():
    def common(parser):
        parser.add_argument("--bias", dest="bias", action="store_true", default=True)
        parser.add_argument("--no-bias", dest="bias", action="store_false", default=False)

    assert parse_app_args(["compile"], common_parser_fn=common).bias is True
    assert parse_app_args(["compile", "--no-bias"], common_parser_fn=common).bias is False


def test_options_in_a_group_of_an_app():
    def common(parser):
        group = parser.add_argument_group("model")
        group.add_argument("--batch-size", type=int, default=16)
        group.add_argument("--hidden", type=int, default=128)

    args = parse_app_args(["compile"], common_parser_fn=common)
    assert (args.batch_size, args.hidden) == (16, 128)
    assert parse_app_args(["compile", "-b", "2"], common_parser_fn=common).batch_size == 2


def test_single_dash_options_of_several_letters():
    def common(parser):
        parser.add_argument("-bs", type=int, default=100)
        parser.add_argument("-mbatch", type=int, default=1)

    args = parse_app_args(["run", PEF, "-bs", "5", "-b", "6", "-mb", "3"], common_parser_fn=common)
    assert (args.bs, args.batch_size, args.microbatch_size, args.mbatch) == (5, 6, 3, 1)
    assert parse_app_args(["run", PEF, "-mbatch=4"], common_parser_fn=common).mbatch == 4


def test_exact_names_win_over_abbreviations():
    def common(parser):
        for letter in "whcnksr":
            parser.add_argument(f"--{letter}", type=int, default=1)
        parser.add_argument("--dtype", default="bfloat16")

    line = "compile --w=14 --h=14 --c=8 --n=4 --k=16 --s=3 --r=3 --dtype=float"
    args = parse_app_args(line.split(), common_parser_fn=common)
    assert (args.w, args.h, args.c, args.n, args.k, args.s, args.r) == (14, 14, 8, 4, 16, 3, 3)
    assert args.num_iterations == 100


def test_help_shows_hardware_options_only_when_asked(capsys):
    for arguments, shown in ((["compile", "-h"], False), (["compile", "--debug", "-h"], True)):
        with pytest.raises(SystemExit) as caught:
            parse_app_args(arguments)
        assert caught.value.code == 0
        assert ("--enable-conv-tiling" in capsys.readouterr().out) is shown
    with pytest.raises(SystemExit):
        parse_app_args(["compile", "-h"], dev_mode=True)
    assert "--enable-conv-tiling" in capsys.readouterr().out
    assert parse_app_args(["compile"], dev_mode=True).dev_mode is True


def test_the_last_parsed_arguments_are_kept():
    args = parse_app_args(["compile", "--pef-name=one"])
    assert last_parsed_args() is args
    args.pef_name = "two"
    assert last_parsed_args().pef_name == "two"
    with pytest.raises(SystemExit):
        parse_app_args(["nonsense"])
    assert last_parsed_args() is args


def test_log_level():
    parse_app_args(["compile", "--log-level=error"])
    assert logging.getLogger("samba").level == logging.ERROR


@covers("samba.utils.argparser.parse_app_args(microbatch_size)")
@pytest.mark.parametrize("command", [["compile"], ["run", "-p=app.pef"]])
@pytest.mark.parametrize(
    ("batch", "microbatch"), [("4", "8"), ("10", "4"), ("1", "2"), ("64", "128")]
)
def test_a_microbatch_divides_the_batch(capsys, batch, microbatch, command):
    args = parse_app_args([*command, "-b=64", "-mb=4"])
    assert (args.batch_size, args.microbatch_size) == (64, 4)
    with pytest.raises(SystemExit) as error:
        parse_app_args([*command, "-b", batch, "-mb", microbatch])
    assert error.value.code == 2
    assert (
        f"argument -mb/--microbatch-size: found {microbatch}, "
        f"expected a divisor of the batch size {batch}"
    ) in capsys.readouterr().err


def test_options_that_do_nothing_are_told_once(caplog, monkeypatch):
    monkeypatch.setattr(parsed, "deviations", Deviations())
    line = ["compile", "--plot", "--sambatune-graph", "--dump-traced-graph", "--mac-v2"]
    for _ in range(2):
        parse_app_args([*line, "--mlir-file-name", "net.mlir", "-b", "8"])
    (text,) = [r.getMessage() for r in caplog.records if r.name == "samba"]
    assert text == (
        "options accepted without effect: --mlir-file-name, --sambatune-graph: nothing is written; "
        "--mac-v2: for the hardware compiler [deviation: option-without-effect]"
    )


def test_every_option_does_something_or_says_what_is_lost():
    """Apps read the last ones themselves."""
    read_by_apps = {"acc-test", "dump-accuracy-debug-info", "ignore-output-grads"}
    read_by_apps |= {"listen-for-input", "local-rank", "distlearn-config"}
    silent = {
        option.flags[0].lstrip("-") for option in OPTIONS if not option.help and not option.lost
    }
    assert silent == read_by_apps


def test_an_option_of_the_app_is_not_told(caplog, monkeypatch):
    monkeypatch.setattr(parsed, "deviations", Deviations())
    parse_app_args(
        ["compile", "--plot"],
        common_parser_fn=lambda p: p.add_argument("--plot", action="store_true"),
    )
    assert not [r for r in caplog.records if r.name == "samba"]


def test_no_two_options_share_a_flag():
    for command in COMMANDS:
        flags = [flag for o in OPTIONS if command in o.commands for flag in o.flags]
        assert len(flags) == len(set(flags))


def test_yaml_replaces_arguments(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "# settings\n---\nbatch-size: 64\nlr: 1.5e-3  # rate\nname: 'a # b'\nshuffle: true\n"
        "ops: [gemm, 'soft max', 3]\nlayers:\n  - 1\n  - two\nnothing:\npath: /data/x:y\n"
        "empty: []\nanswer: No\n"
    )
    args = parse_app_args(["compile"])
    assert parse_yaml_to_args(path, args) is args
    assert (args.batch_size, args.lr, args.name, args.shuffle) == (64, 0.0015, "a # b", True)
    assert (args.ops, args.layers) == (["gemm", "soft max", 3], [1, "two"])
    assert (args.nothing, args.path, args.empty, args.answer) == (None, "/data/x:y", [], False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 2", r"config:3: found 'c: 2', expected 'name: value'"),
        ("a: 1\na: 2", r"config:2: found 'a: 2', expected every name once"),
        ("just words", r"config:1: found 'just words', expected 'name: value'"),
        ("a: {b: 1}", r"config:1: found '{b: 1}', expected a number, a word"),
        ("a: [1, [2]]", r"config:1: found '\[2\]', expected a number, a word"),
        ("a: 'open", r"config:1: found \"'open\", expected a closing quote"),
        ("a: |\n  text", r"config:1: found '\|'"),
        ("a: 1\n- 2", r"config:2: found '- 2', expected 'name: value'"),
    ],
)
def test_yaml_beyond_options_is_refused(text, message):
    with pytest.raises(YamlError, match=message):
        parse_flat_yaml(text, where="config")


def test_a_yaml_file_that_cannot_be_read_is_named(tmp_path):
    args = parse_app_args(["compile"])
    before = dict(vars(args))
    missing = tmp_path / "none.yaml"
    with pytest.raises(FileNotFoundError, match=r"none\.yaml: found 'No such file") as caught:
        parse_yaml_to_args(missing, args)
    assert isinstance(caught.value, YamlMissing)
    assert caught.value.path == str(missing)
    with pytest.raises(OSError, match="found 'Is a directory'") as caught:
        parse_yaml_to_args(tmp_path, args)
    assert type(caught.value) is YamlUnreadable
    assert vars(args) == before


@pytest.mark.parametrize("text", ["0", "-4"])
def test_a_batch_has_samples(text, capsys):
    with pytest.raises(SystemExit):
        parse_app_args(["compile", f"--batch-size={text}"])
    assert f"-b/--batch-size: found {text}, expected 1 or more" in capsys.readouterr().err


def declares_cpu(parser) -> None:
    parser.add_argument("--cpu", action="store_true")


def test_an_app_that_can_run_on_the_cpu_needs_no_pef_for_that(capsys):
    args = parse_app_args(["run", "--cpu", "-b=4"], common_parser_fn=declares_cpu)
    assert (args.cpu, args.pef, args.batch_size) == (True, None, 4)
    assert parse_app_args(["run", "--cpu"], run_parser_fn=declares_cpu).cpu
    assert parse_app_args(["run", "--cpu", PEF], run_parser_fn=declares_cpu).pef == "x.pef"
    missing = "the following arguments are required: -p/--pef"
    assert missing in fails(capsys, ["run"], common_parser_fn=declares_cpu)
    assert missing in fails(capsys, ["test", "--cpu"], run_parser_fn=declares_cpu)
    assert "required: -p/--pef" in fails(capsys, ["run", "--cpu"])
