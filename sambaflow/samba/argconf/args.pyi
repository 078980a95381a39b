from samba.argconf.args import (
    CommonArgs as CommonArgs,
    CompileArgs as CompileArgs,
    RunArgs as RunArgs,
)
