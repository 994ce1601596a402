// Stands for CUDA's <cuda.h>, which declares functions of the host and does not compile in NVRTC: what kernels take of it.
#pragma once
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
typedef CUtensorMap_st CUtensorMap;
