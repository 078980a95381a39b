from samba.utils.elastic_sampler import (
    ElasticSampler as ElasticSampler,
)
