from samba.optim.moments import (
    Adamax as Adamax,
    NAdam as NAdam,
    RAdam as RAdam,
)
