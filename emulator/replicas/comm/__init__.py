"""Communication between replicas: the protocol, and the engines that need no torch."""

from emulator.replicas.comm.errors import CollectiveMismatch as CollectiveMismatch
from emulator.replicas.comm.errors import CollectiveTimeout as CollectiveTimeout
from emulator.replicas.comm.errors import DataParallelError as DataParallelError
from emulator.replicas.comm.errors import Disagreement as Disagreement
from emulator.replicas.comm.errors import PeerLost as PeerLost
from emulator.replicas.comm.protocol import Communicator as Communicator
from emulator.replicas.comm.protocol import ReduceOp as ReduceOp
