from samba.utils.benchmark_acc import (
    AccuracyReport as AccuracyReport,
)
