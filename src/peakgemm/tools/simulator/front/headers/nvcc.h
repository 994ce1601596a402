// What nvcc knows without an #include, as <cuda_runtime.h> brings glibc's headers: every source of a user begins with it.
#pragma once
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <sys/types.h>
