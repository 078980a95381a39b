from samba.functional.binning import (
    UndocumentedFunction as UndocumentedFunction,
    groupby as groupby,
)
