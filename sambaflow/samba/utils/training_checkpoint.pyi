from samba.utils.training_checkpoint import (
    Stateful as Stateful,
    TrainingCheckpoint as TrainingCheckpoint,
)
