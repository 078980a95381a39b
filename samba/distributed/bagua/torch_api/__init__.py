"""The place of ``bagua.torch_api`` in this package: ``tensor`` patches ``torch.Tensor``."""
