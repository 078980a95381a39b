"""Communication between replicas: the protocol, and the engines that need no torch."""

from emulator.replicas.comm.errors import (
    CollectiveMismatch as CollectiveMismatch,
    CollectiveTimeout as CollectiveTimeout,
    DataParallelError as DataParallelError,
    Disagreement as Disagreement,
    PeerLost as PeerLost,
)
from emulator.replicas.comm.protocol import Communicator as Communicator, ReduceOp as ReduceOp
