"""Communication between replicas: the protocol, and the engines that need no torch."""

from emulator.comm.errors import CollectiveMismatch as CollectiveMismatch
from emulator.comm.errors import CollectiveTimeout as CollectiveTimeout
from emulator.comm.errors import DataParallelError as DataParallelError
from emulator.comm.errors import Disagreement as Disagreement
from emulator.comm.errors import PeerLost as PeerLost
from emulator.comm.protocol import Communicator as Communicator
from emulator.comm.protocol import ReduceOp as ReduceOp
