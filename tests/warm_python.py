"""In the place of an interpreter: has a process forked that runs the command, and ends as it does.

It passes signals on. What was forked is killed if this process is.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time


def main() -> None:
    """Ask for the process, and wait for its end."""
    # A handler of Python's would wait for as long as the answer if a signal came just before that.
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while peer.connect_ex(os.environ["WARM_SOCKET"]):  # who forks begins
        time.sleep(0.02)
    args, env = sys.argv[1:], dict(os.environ)
    if args[0] == "-u":
        args, env["PYTHONUNBUFFERED"] = args[1:], "1"
    host = int(env.get("WARM_HOST", 0)) or None
    request = {"args": args, "cwd": os.getcwd(), "env": env, "host": host}
    socket.send_fds(peer, [json.dumps(request).encode()], [1, 2, 0])
    while peer not in (ready := select.select([peer, woken], [], [])[0]):
        for number in woken.recv(64) if woken in ready else b"":
            peer.send(b"%d" % number)
    code = int(peer.recv(64) or b"1")
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
