from samba.distributed.bagua.cuda_on_cpu import (
    cuda_means_cpu as cuda_means_cpu,
    cuda_means_cuda as cuda_means_cuda,
)
