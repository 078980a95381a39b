from samba.lazy_param import (
    MultithreadedRNG as MultithreadedRNG,
    RNGProvider as RNGProvider,
    RNGProviderFactory as RNGProviderFactory,
    disable_lazy_param as disable_lazy_param,
    enable_lazy_param as enable_lazy_param,
    lazy_param as lazy_param,
    use_lazy_param as use_lazy_param,
)
