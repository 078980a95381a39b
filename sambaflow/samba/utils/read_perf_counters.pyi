from samba.utils.read_perf_counters import (
    main as main,
)
