from samba.utils.job_of_replicas import (
    job_of_replicas as job_of_replicas,
)
