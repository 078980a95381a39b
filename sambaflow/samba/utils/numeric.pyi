from samba.utils.numeric import (
    MAX_BF16_TRUNCATE_NORMAL_REL as MAX_BF16_TRUNCATE_NORMAL_REL,
    NotClose as NotClose,
    assert_close as assert_close,
)
