"""What one SambaTensor is: names, host memory, device memory, and how torch functions treat it."""
