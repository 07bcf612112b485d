// All kernels, compiled by `scripts/kernels` into one fatbin.

#include "attention.cuh"
#include "copy.cuh"
#include "cross_entropy.cuh"
#include "elementwise.cuh"
#include "index.cuh"
#include "matmul.cuh"
#include "norm.cuh"
#include "optimizer.cuh"
#include "random.cuh"
#include "reduce.cuh"
#include "rope.cuh"
#include "sort.cuh"
