// What a parser of host code must know of CUDA and of the C++ library to read launches: names and types, no meaning. It is
// for libclang alone, which has no headers of either; NVRTC never sees it.
#pragma once
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define CUDART_CB
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
extern const int warpSize;
struct float2 { float x, y; };
struct float3 { float x, y, z; };
struct float4 { float x, y, z, w; };
struct double2 { double x, y; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct __half { unsigned short bits; };
typedef __half half;
struct __half2 { __half x, y; };
typedef __half2 half2;
struct __nv_bfloat16 { unsigned short bits; };
typedef __nv_bfloat16 nv_bfloat16;
typedef int cudaError_t, cublasStatus_t, cudaMemcpyKind;
typedef void *cudaStream_t, *cudaEvent_t, *cublasHandle_t;
struct cudaDeviceProp { int maxThreadsPerBlock, multiProcessorCount, sharedMemPerBlock, warpSize, major, minor; char name[256]; };
extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared = 0, void *stream = nullptr);
template <typename... Args> cudaError_t cudaMalloc(Args &&...);
template <typename... Args> cudaError_t cudaMallocManaged(Args &&...);
template <typename... Args> cudaError_t cudaMallocAsync(Args &&...);
template <typename... Args> cudaError_t cudaFree(Args &&...);
template <typename... Args> cudaError_t cudaMemcpy(Args &&...);
template <typename... Args> cudaError_t cudaMemset(Args &&...);
template <typename... Args> cudaError_t cudaEventCreate(Args &&...);
template <typename... Args> cudaError_t cudaEventRecord(Args &&...);
template <typename... Args> cudaError_t cudaEventSynchronize(Args &&...);
template <typename... Args> cudaError_t cudaEventElapsedTime(Args &&...);
template <typename... Args> cudaError_t cudaFuncSetAttribute(Args &&...);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetLastError();
enum { cudaSuccess, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
void *malloc(size_t);
void free(void *);
void exit(int);
int atoi(const char *);
double atof(const char *);
int printf(const char *, ...);
template <typename T> double ceil(T);
template <typename T> double floor(T);
template <typename T> float ceilf(T);
template <typename T, typename U> decltype(T() + U()) min(T, U);
template <typename T, typename U> decltype(T() + U()) max(T, U);
namespace std {
using ::size_t;
using ::ceil;
using ::floor;
using ::min;
using ::max;
using ::malloc;
using ::free;
using ::atoi;
template <typename T> struct vector {
  template <typename... Args> vector(Args &&...);
  T *data();
  size_t size();
  T &operator[](size_t);
};
struct string {
  string(const char *);
  const char *c_str();
};
int stoi(const string &);
}
