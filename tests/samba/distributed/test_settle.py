"""Memory that gloo's threads may still hold when the program ends."""

import numpy as np
import pytest

from samba.distributed.gloo import as_bytes, as_torch, settle


@pytest.mark.parametrize("lend", [as_bytes, as_torch])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_])
def test_settling_waits_until_all_lent_memory_is_back(lend, dtype):
    buffer = np.zeros(4, dtype)
    held = lend(buffer)
    held[:1] = 1
    assert buffer.view(np.uint8).any(), "it is the same memory"
    assert not settle(0.01)
    del held
    assert settle(0.01)
    assert buffer.size == 4  # the buffer itself may live on
